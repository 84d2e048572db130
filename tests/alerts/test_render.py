"""Notifications as text, HTML and JSON, with hostile words in them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import html5lib
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts import render as alert_render
from site_builder.alerts.model import ALL_RULES, Alert, Notification
from tests.support.hypothesis_profiles import examples

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/alert.schema.json").read_text())
PARIS = ZoneInfo("Europe/Paris")
AT = int(datetime(2026, 11, 17, 14, 4, tzinfo=PARIS).timestamp())
LINK = "https://gpus.lab.org/hosts/atlas.html"
DOWN = Alert(
    "1-1", "host-down", "begun", "atlas is down", "no snapshot since 14:02", AT, "atlas", (), AT - 120, None,
    ("alice", "bob"), LINK, "", "rule host-down",
)  # fmt: skip


def build_notification(*alerts: Alert, to: str = "channel:lab", more: int = 0) -> Notification:
    return Notification("1-2", to, alerts, AT, AT, omitted_count=more)


def test_a_single_alert_has_all_facts() -> None:
    message = alert_render.render_notification(build_notification(DOWN), PARIS)
    assert message.title == "atlas is down"
    assert message.text == (
        "No snapshot since 14:02.\n"
        "Since: Tue 17 Nov 14:02 CET\n"
        "On: atlas\n"
        "Affected: alice, bob\n"
        "https://gpus.lab.org/hosts/atlas.html\n"
        "\n"
        "Sent by gpuboard, by the rule host-down."
    )
    for words in ("<b>atlas is down</b>", "No snapshot since 14:02.", "Affected: alice, bob", f'<a href="{LINK}">'):
        assert words in message.html
    html5lib.HTMLParser(strict=True).parseFragment(message.html)


@pytest.mark.parametrize(
    ("alert", "lines"),
    [
        (
            DOWN._replace(step="over", until=AT + 7200, title="atlas is back, after 2 h", what="", people=()),
            ["When: Tue 17 Nov 14:02 to 16:04 CET (2 h 2 min)", "On: atlas"],
        ),
        (
            DOWN._replace(rule="gpu-lost", gpus=("0", "3"), what="the driver cannot reach it.", link=None),
            ["The driver cannot reach it.", "Since: Tue 17 Nov 14:02 CET", "On: atlas, GPUs 0, 3"],
        ),
        (
            DOWN._replace(step="happened", since=AT, until=AT + 86400, gpus=("1",), what=""),
            ["When: Tue 17 Nov 14:04 CET to Wed 18 Nov 14:04 CET (1 d)", "On: atlas, GPU 1"],
        ),
        (DOWN._replace(step="happened", rule="host-new", since=None), ["Noticed: Tue 17 Nov 14:04 CET"]),
        (
            Alert("t", "test", "test", "a test", "alerts of this board arrive here", AT),
            ["Alerts of this board arrive here.", "Sent by gpuboard, as a test."],
        ),
        (DOWN._replace(since=10**15), ["Since: Wed 16 Mar 13:56 CET"]),
        (
            DOWN._replace(people=tuple(f"user{number}" for number in range(30))),
            [f"Affected: {', '.join(f'user{number}' for number in range(12))} and 18 more"],
        ),
    ],
)
def test_each_kind_of_alert_reads_well(alert: Alert, lines: list[str]) -> None:
    text = alert_render.render_notification(build_notification(alert), PARIS).text.splitlines()
    assert [line for line in text if line in lines] == lines, text


def test_several_alerts_make_one_notification() -> None:
    alerts = [DOWN._replace(host=f"gpu{number:02}", title=f"gpu{number:02} is down") for number in range(50)]
    message = alert_render.render_notification(build_notification(*alerts, more=7), PARIS)
    assert message.title.startswith("57 hosts are down: gpu00, gpu01")
    first = "- gpu00 is down. No snapshot since 14:02. Since: Tue 17 Nov 14:02 CET. Affected: alice, bob."
    assert message.text.splitlines()[:2] == [first, LINK]
    assert len(message.text.splitlines()) == 2 * alert_render.MAX_LISTED_ALERTS + 4, "two lines an alert"
    assert f'<b><a href="{LINK}">gpu00 is down</a></b><br>No snapshot since 14:02. Since:' in message.html
    html5lib.HTMLParser(strict=True).parseFragment(message.html)
    assert "\n\nand 17 more\n\n" in message.text
    assert "and 17 more</p>" in message.html
    assert json.loads(message.hook_json)["host"] == "gpu00"


def test_a_listed_alert_names_its_place_if_its_title_does_not() -> None:
    lost = DOWN._replace(rule="gpu-lost", title="a GPU of atlas is lost", gpus=("0", "3"), link=None, people=())
    message = alert_render.render_notification(build_notification(lost, DOWN), PARIS)
    assert message.text.startswith(
        "- a GPU of atlas is lost. No snapshot since 14:02. Since: Tue 17 Nov 14:02 CET. On: atlas, GPUs 0, 3.\n"
        "- atlas is down."
    )
    assert "On: atlas, GPUs 0, 3." in message.html


def test_a_notification_with_only_omitted_alerts_says_how_many() -> None:
    message = alert_render.render_notification(build_notification(more=3), PARIS)
    assert message[:2] == ("3 alerts", "`gpuboard alerts list` shows them.\n\nSent by gpuboard.")


def test_hidden_people_are_named_only_to_themselves() -> None:
    message = alert_render.render_notification(build_notification(DOWN), PARIS, shows_users=False)
    assert not any(name in f"{message}" for name in ("alice", "bob", "Affected"))
    own = alert_render.render_notification(build_notification(DOWN, to="person:bob"), PARIS, shows_users=False)
    assert ("Affected: bob\n" in own.text, "alice" in f"{own}") == (True, False)


HOSTILE = "<script>alert(1)</script>\"'><img src=x>\r\nBcc: victim@lab.org\x00\x1b[31m\u202e\ud800 <!channel>"


def test_hostile_words_are_only_words() -> None:
    alert = DOWN._replace(title=HOSTILE, what=HOSTILE, people=(HOSTILE,), gpus=(HOSTILE,), host=HOSTILE, link=HOSTILE)
    message = alert_render.render_notification(build_notification(alert, alert), PARIS)
    assert message.title.isprintable()
    assert "<script" not in message.html
    assert "<img" not in message.html
    assert all(line.isprintable() for line in message.text.split("\n"))
    assert not any(line.startswith("Bcc") for line in message.text.split("\n"))
    message.hook_json.decode("utf-8")
    page = html5lib.parseFragment(message.html, namespaceHTMLElements=False)
    assert {element.tag for element in page.iter()} - {"DOCUMENT_FRAGMENT"} == {"div", "p", "b", "br", "a"}


texts = st.text(max_size=50)
numbers = st.one_of(st.none(), st.integers(-(2**60), 2**60))
steps = st.sampled_from(["begun", "over", "happened", "test"])
links = st.one_of(st.none(), texts)
several = st.lists(texts, max_size=3).map(tuple)


@examples(40)
@given(
    st.builds(
        Alert,
        *(texts, st.sampled_from(ALL_RULES), steps, texts, texts, st.integers(0, 2**60)),
        *(texts, several, numbers, numbers, several, links),
        severity=st.sampled_from(["critical", "warning", "info"]),
    )
)
def test_any_alert_can_be_written(alert: Alert) -> None:
    message = alert_render.render_notification(build_notification(alert), timezone.utc)
    assert "\n" not in message.title
    message.text.encode()
    jsonschema.validate(json.loads(message.hook_json), {**SCHEMA, "properties": {**SCHEMA["properties"], "at": {}}})


def test_the_json_is_as_documented() -> None:
    alert_json = json.loads(alert_render.render_alert_json(DOWN))
    jsonschema.validate(alert_json, SCHEMA)
    assert alert_json["since"] == AT - 120
    assert set(alert_json) == set(SCHEMA["properties"]) == set(SCHEMA["required"])
    assert SCHEMA["properties"]["rule"]["enum"] == [*ALL_RULES, "test"]
