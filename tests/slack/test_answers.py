"""What the bot understands, and its answers within the limits of Slack."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts.slack_client import escape_for_slack_api, truncate_for_slack_api
from site_builder.client.model import Fleet, FleetBooking, FleetGpu, FleetHost
from site_builder.core.clock import Now
from site_builder.core.model import GpuProblem, ProcessStatus
from site_builder.core.people import PeopleDirectory
from site_builder.slack import answers, blocks, bot
from site_builder.slack.answers import AnswerContext
from site_builder.slack.blocks import AnswerTable, SlackAnswer
from site_builder.slack.bot import BotCommand
from tests.support import block_kit
from tests.support.command_line import ROOT
from tests.support.hypothesis_profiles import examples

OWN = "UBOT00001"
NOW = int(time.time())


def busy(index: int, user: str | None = "alice", state: str = "busy", **overrides: Any) -> FleetGpu:  # noqa: ANN401
    process = ProcessStatus(42, user, "/usr/bin/python train.py", 7000, NOW - 7200)
    readings = {"memory_used": 70000, "memory_total": 81920, "utilization_gpu": 90}
    return FleetGpu(
        index, f"GPU-{index}", "NVIDIA A100", "A100 80 GB", state, "", processes=(process,), **{**readings, **overrides}
    )


def free(index: int, **overrides: Any) -> FleetGpu:  # noqa: ANN401
    readings = {"memory_used": 4, "memory_total": 81920, "utilization_gpu": 0}
    return FleetGpu(index, f"GPU-{index}", "NVIDIA A100", "A100 80 GB", "free", "", **{**readings, **overrides})


def host(name: str, *gpus: FleetGpu, state: str = "fresh", reason: str = "") -> FleetHost:
    return FleetHost(name, None, (), state, reason, NOW, (1.5, 1, 1), 64, gpus=gpus)


def scene(*hosts: FleetHost, **options: Any) -> AnswerContext:  # noqa: ANN401
    aliases = options.pop("aliases", {})
    return AnswerContext(Fleet(NOW, hosts), Now(NOW, timezone.utc), PeopleDirectory(aliases), **options)


def sent(answer: SlackAnswer) -> dict[str, Any]:
    """The message, which is right in all its forms."""
    ready = blocks.render_answer_blocks(answer)
    assert block_kit.faults({"text": ready.text, "blocks": ready.blocks}) == []
    assert block_kit.faults({"text": ready.plain_text}) == []
    assert len(ready.plain_text) < 8_000
    return {"text": ready.text, "blocks": ready.blocks, "plain": ready.plain_text}


def rows(answer: SlackAnswer) -> list[tuple[str, ...]]:
    return list(answer.table.rows) if answer.table else []


# What was said


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"<@{OWN}> hosts", "hosts"),
        (f"  <@{OWN}>:\n*free*   A100 ", ": *free* A100"),
        ("book <http://atlas.lab.org:0|atlas.lab.org:0> for 2h", "book atlas.lab.org:0 for 2h"),
        ("where <mailto:a@b.org|a@b.org>", "where a@b.org"),
        ("where <@U0123ABC>", "where @U0123ABC"),
        ("where <@U0123ABC|alice>", "where @U0123ABC"),
        ("in <#C012|gpus> and <!here>", "in gpus and here"),
        ("book a comment x &amp;&lt; y &amp;lt;", "book a comment x &< y &lt;"),
        ("book “atlas” \u202eevil\x1b[2J", 'book "atlas" ?evil?[2J'),
        ("`hosts`", "hosts"),
    ],
)
def test_slack_marks_become_the_words_that_were_typed(text: str, plain: str) -> None:
    assert bot.decode_bot_message(text, OWN) == plain


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("", BotCommand("help")),
        ("HOSTS", BotCommand("hosts")),
        ("/free A100", BotCommand("free", ("A100",))),
        (": all detail atlas", BotCommand("", (":", "all", "detail", "atlas"))),
        ("who alice", BotCommand("where", ("alice",))),
        ("where is Marek S.", BotCommand("where", ("Marek", "S."))),
        ("where is alice?", BotCommand("where", ("alice",))),
        ("who is on atlas?", BotCommand("all", ("atlas",))),
        ("free A100, please", BotCommand("free", ("A100",))),
        ("book atlas for 2h comment why not?", BotCommand("book", ("atlas", "for", "2h", "comment", "why", "not?"))),
        ("?", BotCommand("help")),
        ("fre", BotCommand("", ("fre",), "free")),
        ("relase k7m2xp", BotCommand("", ("relase", "k7m2xp"), "release")),
        ("supercalifragilistic", BotCommand("", ("supercalifragilistic",))),
    ],
)
def test_a_command_is_its_first_word_and_slips_are_hinted_at(text: str, ask: BotCommand) -> None:
    assert bot.parse_bot_command(text) == ask


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda of: st.lists(of, max_size=3))
)
@examples(50)
def test_no_envelope_is_too_odd(anything: object) -> None:
    event = dict.fromkeys(("type", "channel", "user", "ts", "text", "subtype"), anything)
    for payload in (anything, {"event": anything}, {"event": event}, {"event": {**event, "type": "app_mention"}}):
        bot.parse_bot_question({"payload": payload}, OWN)


# Orders


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("atlas:0,1 until fri 18:00", {"gpus": ["atlas:0,1"], "until": "fri 18:00"}),
        ("atlas:0, 1 zeus for 2h", {"gpus": ["atlas:0,1", "zeus"], "for": "2h"}),
        ("2 A100 for 8h", {"any": 2, "model": "A100", "for": "8h"}),
        ("2 gpus for 8h", {"any": 2, "for": "8h"}),
        ("atlas from mon 9:00 to 18:00", {"gpus": ["atlas"], "from": "mon 9:00", "until": "18:00"}),
        ("any RTX 4090 for 1d", {"any": 1, "model": "RTX 4090", "for": "1d"}),
        ("any 3 x H100 for 1d", {"any": 3, "model": "H100", "for": "1d"}),
        (
            "zeus from mon 9:00 for 3h comment ICML for the win",
            {"gpus": ["zeus"], "from": "mon 9:00", "for": "3h", "comment": "ICML for the win"},
        ),
        ('zeus --until "fri 18:00" name bob', {"gpus": ["zeus"], "until": "fri 18:00", "name": "bob"}),
    ],
)
def test_an_order_is_read_as_people_write_it(text: str, expected: dict[str, Any]) -> None:
    assert answers.parse_booking_to_answer(text.split()) == {"do": "book", **expected}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("for 2h", "Which GPUs?"),
        ("atlas", "Until when?"),
        ("atlas until", "`until` needs a value"),
        ("atlas for 2h for bob", "`for` is given twice"),
        ("atlas for 2h comment", "`comment` needs a value"),
    ],
)
def test_an_incomplete_booking_message_is_answered_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(answers.IncompleteBookingAnswerError) as error_info:
        answers.parse_booking_to_answer(text.split())
    assert str(error_info.value) == why


# Answers


def test_a_large_fleet_is_shortened_and_says_by_how_much() -> None:
    hosts = [host(f"node{number:04}", *(busy(index) for index in range(8))) for number in range(1000)]
    fleet = scene(*hosts, link="https://gpus.lab.org/")
    for answer, remainder_label in (
        (answers.answer_hosts(fleet), "more hosts"),
        (answers.answer_all(fleet), "more hosts"),
        (answers.answer_detail(fleet), "more GPUs: `all detail HOST`"),
        (answers.answer_where(fleet, "alice"), "more hosts"),
    ):
        message = sent(answer)
        table = next(block for block in message["blocks"] if block["type"] == "table")
        note, link = message["blocks"][-1]["elements"]
        left = len(rows(answer)) - len(table["rows"]) + 1
        assert left > 0
        assert note["text"].startswith(f"and {left} {remainder_label}")
        assert link["text"] == "<https://gpus.lab.org/|the board>"


def test_many_hosts_are_ordered_by_trouble_and_free_gpus() -> None:
    hosts = [host(f"node{number:03}", busy(0)) for number in range(150)]
    hosts[120], hosts[130] = host("spare", free(0)), host("dead", free(0)._replace(state="unknown"), state="down")
    for answer in (answers.answer_hosts(scene(*hosts)), answers.answer_all(scene(*hosts))):
        assert [row[0] for row in rows(answer)[:3]] == ["dead", "spare", "node000"]
    assert rows(answers.answer_hosts(scene(*hosts[:99])))[0][0] == "node000"


def test_all_lists_users_in_a_row_for_each_host() -> None:
    fleet = scene(
        host("atlas", free(0), busy(1), busy(2), busy(3, "bob", "held"), free(4), free(5), free(6)),
        host("hera", state="down", reason="no snapshot since 14:02"),
        host("none"),
        host("odd", busy(0, None), FleetGpu(None, None, None, "GPU", "lost", "fallen off the bus")),
    )
    assert rows(answers.answer_all(fleet)) == [
        ("atlas", "0,4-6 free · 1,2 alice · 3 bob (held)"),
        ("hera", "down: no snapshot since 14:02"),
        ("none", "no GPU"),
        ("odd", "0 busy · ? lost"),
    ]
    assert answers.answer_all(fleet).title == "9 GPUs: 4 free, 3 busy, 1 held, 1 lost"
    assert rows(answers.answer_all(fleet, ["hera"])) == [("hera", "down: no snapshot since 14:02")]
    assert answers.answer_all(fleet, ["zeus"]).title == "No match for “zeus”"
    assert answers.answer_hosts(scene()).title == "There are no hosts on the board yet"


def test_a_person_is_found_by_each_name_unless_people_are_hidden() -> None:
    until = datetime.fromtimestamp(NOW, timezone.utc) + timedelta(hours=2)
    promise = FleetBooking("k7m2xp", "Alice Smith", None, until, "ICML")
    over = promise._replace(until=until - timedelta(hours=3))
    fleet = scene(
        host("atlas", busy(0, "asmith"), busy(1, "Alice Smith"), free(2, bookings=(promise, over))),
        aliases={"asmith": "Alice Smith"},
    )
    answer = answers.answer_where(fleet, "asmith")
    assert answer.title == "Alice Smith is on 2 GPUs of 1 host"
    assert rows(answer)[0] == ("atlas", "0,1", "14 GiB", "train.py (2 h)")
    (line,) = answer.lines
    assert line.startswith("booked: atlas:2 until ")
    assert line.endswith("(ICML)")
    hidden = answers.answer_where(fleet._replace(users_shown=False), "asmith")
    assert (hidden.title, hidden.table, hidden.lines) == (answers.USERS_HIDDEN_MESSAGE, None, ())


def test_unknown_values_are_never_shown_as_free() -> None:
    fleet = scene(host("atlas", free(0)._replace(state="unknown"), state="stale"), host("zeus", busy(0)))
    for answer in (answers.answer_free(fleet), answers.answer_where(fleet, "bob")):
        assert "unknown: atlas is stale" in answer.notes
        assert answer.table is None
    assert answers.answer_free(fleet).title == "No GPU is free"
    assert answers.answer_free(fleet).lines == ("2 GPUs: 1 busy, 1 unknown",)


def test_a_gpu_in_trouble_is_not_offered() -> None:
    broken = (GpuProblem("repair-failed", "critical", "a repair failed", "have it replaced", avoid=True),)
    atlas = host("atlas", free(0, problems=broken), free(1))
    assert [row[:2] for row in rows(answers.answer_free(scene(atlas)))] == [("atlas", "1")]
    assert rows(answers.answer_all(scene(atlas))) == [("atlas", "0 free (faulty) · 1 free")]


def test_free_lists_mig_instances_after_whole_gpus_and_several_only_by_profile() -> None:
    parts = [
        free(0, place=f"0:{n}", profile="1g.10gb", parent_keys=("0",))._replace(model="A100 1g.10gb") for n in range(2)
    ]
    asked = scene(host("atlas", *parts), host("hydra", free(0, memory_total=1024)))
    assert [row[0] for row in rows(answers.answer_free(asked))] == ["hydra", "atlas"]
    assert answers.answer_free(asked, ["2", "A100"]).title == "No host has 2 A100 free"
    assert [row[:2] for row in rows(answers.answer_free(asked, ["2", "1g.10gb"]))] == [("atlas", "0:0,0:1")]


def test_free_takes_a_number_of_gpus_on_one_host_and_models_as_people_write_them() -> None:
    card = free(0)._replace(name="NVIDIA GeForce RTX 4090", model="RTX 4090 24 GB", memory_total=24564)
    fleet = scene(host("atlas", free(0), free(1)), host("zeus", free(0), busy(1)), host("hera", card))
    for asked, names in (
        ("", ["atlas", "zeus", "hera"]),
        ("2", ["atlas"]),
        ("2 A100", ["atlas"]),
        ("2 x a100 gpus", ["atlas"]),
        ("a100 80gb", ["atlas", "zeus"]),
        ("4090", ["hera"]),
        ("3 A100", []),
    ):
        assert [row[0] for row in rows(answers.answer_free(fleet, asked.split()))] == names
    assert answers.answer_free(fleet, ["2", "A100"]).title == "1 host with 2 A100 free"
    assert answers.answer_free(fleet, ["3", "A100"]).title == "No host has 3 A100 free"
    assert answers.answer_free(fleet, ["3", "A100"]).lines == ("4 GPUs: 3 free, 1 busy",)
    assert answers.answer_free(scene(host("hera", card))).title == "1 GPU free"


TEXT = (
    st.text(st.characters(codec="utf-8"), max_size=60)
    | st.just("<!channel> <@U0123> & `x` *y* <https://a|b>")
    | st.just("&" * 700)
)


@given(TEXT, st.lists(TEXT, max_size=20), st.lists(st.tuples(TEXT, TEXT), max_size=12), st.lists(TEXT, max_size=3))
@examples(100)
def test_no_answer_is_beyond_slacks_limits_nor_calls_anybody(
    title: str, lines: list[str], cells: list[tuple[str, str]], notes: list[str]
) -> None:
    table = AnswerTable(("a", "b"), tuple(cells * 10), frozenset({1}))
    sent(SlackAnswer(title or "x", tuple(lines), table, tuple(notes), "https://gpus.lab.org/"))


@given(TEXT, st.integers(2, 60))
def test_truncation_does_not_split_an_escape(text: str, most: int) -> None:
    truncated_text = truncate_for_slack_api(escape_for_slack_api(text), most)
    assert len(truncated_text) <= most
    assert list(block_kit.marks(truncated_text)) == []


def test_help_names_every_command() -> None:
    text = str(sent(answers.answer_help()))
    assert all(f"`{bot_command}" in text for bot_command in bot.BOT_COMMANDS)
    assert "did you mean `hosts`?" in str(sent(answers.answer_help("<hosst>", "hosts")))


def test_the_manifest_asks_for_what_the_bot_needs_and_for_no_more() -> None:
    manifest = json.loads((ROOT / "docs/slack-manifest.json").read_text())
    assert manifest["settings"]["socket_mode_enabled"]
    assert manifest["settings"]["event_subscriptions"]["bot_events"] == ["app_mention", "message.im"]
    scopes = {"app_mentions:read", "chat:write", "im:history", "im:write", "users:read", "users:read.email"}
    assert set(manifest["oauth_config"]["scopes"]["bot"]) == scopes
    assert manifest["features"]["app_home"]["messages_tab_enabled"]
    assert not manifest["features"]["app_home"]["messages_tab_read_only_enabled"]
