"""alerts.conf: accepted values, wrong lines, and that its example is the default."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts.contacts import MAX_RULES_BYTES, parse_contacts
from site_builder.alerts.model import ALL_RULES, AlertRule
from site_builder.alerts.rules import (
    DEFAULT_RULES,
    MOMENTARY_RULES,
    RULE_KEYS,
    drop_unknown_channels,
    format_rule_values,
    list_rule_keys,
    parse_rules,
)
from site_builder.core.formatting import format_duration
from tests.support.docs import blocks, inline, rows
from tests.support.samples import ROOT

EXAMPLE = ROOT / "alerts.conf.example"
PAGE = "docs/alerts.md"


def rule_of(text: str, name: str = "host-down") -> AlertRule:
    """One rule of a file in which nothing is wrong."""
    rules, problems = parse_rules(text.encode())
    assert problems == []
    return rules[name]


def test_every_rule_has_a_default_and_nothing_changes_it_but_a_line() -> None:
    assert tuple(DEFAULT_RULES) == ALL_RULES
    assert all(name == rule.name for name, rule in DEFAULT_RULES.items())
    assert parse_rules(b"") == (DEFAULT_RULES, [])


def test_the_example_names_every_key_of_every_rule_with_its_default() -> None:
    text = EXAMPLE.read_text()
    assert parse_rules(text.encode()) == (DEFAULT_RULES, []), "as it is, all of it is a comment"
    bare = re.sub(r"^#(?=[a-z_]+ = )", "", text, flags=re.MULTILINE)
    assert parse_rules(bare.encode()) == (DEFAULT_RULES, [])
    sections = {section.partition("]")[0]: section for section in bare.split("\n[")[1:]}
    assert set(sections) == {"all", *ALL_RULES}
    for name, rule in DEFAULT_RULES.items():
        assert re.findall(r"^(\w+) = (.*)$", sections[name], re.MULTILINE) == list(format_rule_values(rule).items())
    assert {key for name in ALL_RULES for key in list_rule_keys(name)} == set(RULE_KEYS)
    explained = re.findall(r"^# ([a-z_]+)  +", text, re.MULTILINE)
    assert sorted(explained) == sorted(RULE_KEYS)


def test_the_rules_and_contacts_of_the_docs_are_understood() -> None:
    for block in blocks("alerts"):
        rules, problems = parse_rules(block.text.encode())
        assert problems == []
        assert drop_unknown_channels(rules, ("lab", "ops"))[1] == []
    for block in blocks("contacts"):
        assert parse_contacts(block.text.encode()).problems == ()


def test_the_docs_list_each_rule_with_its_default_and_name_each_key() -> None:
    documented_rules = {row[0].strip("`"): row for row in rows(PAGE, "rule")}
    assert tuple(documented_rules) == ALL_RULES
    for name, row in documented_rules.items():
        rule = DEFAULT_RULES[name]
        assert (row[2] == "channels") == ("all" in rule.to)
        for seconds in (rule.delay, rule.before, rule.resolve_after if rule.send_resolved else 0):
            assert not seconds or format_duration(seconds) in row[3], (name, row[3])
        assert ("and: " in row[1]) == (rule.send_resolved and name not in MOMENTARY_RULES)
    assert set(RULE_KEYS) <= set(inline(PAGE)), "the example explains them"


@pytest.mark.parametrize("name", ALL_RULES)
def test_formatted_rules_are_parsed_to_the_same(name: str) -> None:
    changed_rule = DEFAULT_RULES[name]._replace(
        on=not DEFAULT_RULES[name].on, to=("ops", "person"), quiet_hours=(22 * 60, 7 * 60 + 30), max_per_hour=3
    )
    text = "\n".join(f"{key} = {value}" for key, value in format_rule_values(changed_rule).items())
    assert rule_of(f"[{name}]\n{text}", name) == changed_rule


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("on = no", "on", False),
        ("ON: Off", "on", False),
        ("  delay=90s", "delay", 90),
        ("delay = 90", "delay", 90),
        ("delay = 0", "delay", 0),
        ("resolve_after = 1d  # a day", "resolve_after", 86400),
        ("send_resolved = no ; for now", "send_resolved", False),
        ("to = ops, lab", "to", ("ops", "lab")),
        ("to = Ops ops person", "to", ("ops", "person")),
        ("to = none", "to", ()),
        ("quiet_hours = 22:00-07:00", "quiet_hours", (1320, 420)),
        ("quiet_hours: 22:00 – 7:00", "quiet_hours", (1320, 420)),
        ("quiet_hours = 0:00 to 6:30", "quiet_hours", (0, 390)),
        ("quiet_hours = none", "quiet_hours", None),
        ("quiet_hours =", "quiet_hours", None),
        ("max_per_hour = 1", "max_per_hour", 1),
    ],
)
def test_accepted_values_are_parsed(line: str, key: str, value: object) -> None:
    assert getattr(rule_of(f"\ufeff[Host_Down]\r\n{line}\r\n"), key) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("Mon 08:00", (0, 480)), ("friday 18:30", (4, 1110)), ("Sun 0:00", (6, 0)), ("wednes 9:05", (2, 545))],
)
def test_the_time_of_the_weekly_report_is_parsed(text: str, value: tuple[int, int]) -> None:
    assert rule_of(f"[weekly-report]\nat = {text}", "weekly-report").at == value


FIRST = "this is before any section: start with [all] or a rule such as [host-down]"
TIME = "but must be a time from 0s to 7d, such as 30s, 10m, 2h or 1d"
QUIET = "but must be two times such as 22:00-07:00, or none"
WEEKLY = "but must be a day and a time such as Mon 08:00"
TO = "but must be names of channels separated by spaces, or all, person, hooks or none"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("on = yes", f"line 1: {FIRST}"),
        ("[host-down\nx", f"line 1: {FIRST}"),
        ("[hostdown]", "line 1: there is no rule 'hostdown'; did you mean host-down?"),
        ("[zebra]\non = no\nnonsense", f"line 1: there is no rule 'zebra'; allowed: all, {', '.join(ALL_RULES)}"),
        ("[host-down]\ndelays = 5m", "line 2: there is no key 'delays'; did you mean delay?"),
        (
            "[host-new]\nat = Mon 08:00",
            "line 2: at does not apply to host-new, which has on, to, quiet_hours, max_per_hour",
        ),
        ("[all]\nhold = 1h", "line 2: hold is now called delay: rename it; until then this line is ignored"),
        ("[all]\nmost = 3", "line 2: most is now called max_per_hour: rename it; until then this line is ignored"),
        (
            "[all]\nover = 1h",
            "line 2: over is now called resolve_after: rename it; until then this line is ignored",
        ),
        (
            "[all]\nquiet = none",
            "line 2: quiet is now called quiet_hours: rename it; until then this line is ignored",
        ),
        (
            "[watch]\nrecovery = 1",
            "line 2: recovery is now called send_resolved: rename it; until then this line is ignored",
        ),
        ("[watch]\ndelay = 1h", "line 2: delay does not apply to watch, which has on, to, quiet_hours, max_per_hour"),
        ("[host-down]\nhold", "line 2: must be a [section] or `key = value`"),
        ("[host-down]\ndelay = 5 parsecs", f"line 2: delay is '5 parsecs', {TIME}"),
        ("[host-down]\ndelay = 8d", f"line 2: delay is '8d', {TIME}"),
        ("[host-down]\ndelay = -1", f"line 2: delay is '-1', {TIME}"),
        ("[booking-ends]\nbefore = 2d", f"line 2: before is '2d', {TIME.replace('7d', '1d')}"),
        ("[host-down]\ndelay =", f"line 2: delay is '', {TIME}"),
        ("[host-down]\non = perhaps", "line 2: on is 'perhaps', but must be yes or no"),
        ("[host-down]\nmax_per_hour = 0", "line 2: max_per_hour is '0', but must be a number from 1 to 1000"),
        ("[host-down]\nmax_per_hour = \u0661", "line 2: max_per_hour is '\u0661', but must be a number from 1 to 1000"),
        ("[host-down]\nquiet_hours = 22-7", f"line 2: quiet_hours is '22-7', {QUIET}"),
        ("[host-down]\nquiet_hours = 7:00-7:00", f"line 2: quiet_hours is '7:00-7:00', {QUIET}"),
        ("[host-down]\nquiet_hours = 25:00-7:00", f"line 2: quiet_hours is '25:00-7:00', {QUIET}"),
        ("[weekly-report]\nat = Someday 08:00", f"line 2: at is 'Someday 08:00', {WEEKLY}"),
        ("[weekly-report]\nat = Monday", f"line 2: at is 'Monday', {WEEKLY}"),
        ("[host-down]\nto = none ops", f"line 2: to is 'none ops', {TO}"),
        ("[host-down]\nto =", f"line 2: to is '', {TO}"),
    ],
)
def test_a_wrong_line_is_ignored_and_reported(text: str, problem: str) -> None:
    rules, problems = parse_rules(f"{text}\n[gpu-lost]\ndelay = 7m\n".encode())
    assert problems[:1] == [problem]
    assert rules.pop("gpu-lost").delay == 420
    assert rules == {name: rule for name, rule in DEFAULT_RULES.items() if name != "gpu-lost"}


def test_a_repeated_key_is_reported_and_the_last_counts() -> None:
    rules, problems = parse_rules(b"[host-down]\ndelay = 1m\n[host-failed]\n[host-down]\ndelay = 3m\n")
    assert rules["host-down"].delay == 180
    assert problems == ["line 5: delay is set twice for host-down; the last value counts"]


@pytest.mark.parametrize(
    "line",
    [
        "to = slack://xoxb-1234-secret/#lab",
        "to = bob@secret.org",
        "slack://secret/x = yes",
        "delay = aSecretThatIsFarTooLongToBeAnythingElseHere",
        "[slack://secret]",
        "mailto://bob:secret@lab.org",
    ],
)
def test_an_address_at_the_wrong_place_is_never_shown(line: str) -> None:
    _, problems = parse_rules(f"[host-down]\n{line}\n".encode())
    assert len(problems) == 1
    assert "secret" not in problems[0].lower()


def test_the_all_section_overrides_defaults_and_a_rules_own_section_overrides_it() -> None:
    rules, problems = parse_rules(
        b"[gpu-hot]\nmax_per_hour = 2\n[all]\nmax_per_hour = 5\nquiet_hours = 22:00-07:00\ndelay = 1h\nat = Fri 17:00\n"
    )
    assert problems == []
    assert (rules["gpu-hot"].max_per_hour, rules["host-down"].max_per_hour, rules["watch"].max_per_hour) == (2, 5, 5)
    assert {rule.quiet_hours for rule in rules.values()} == {(1320, 420)}
    assert (rules["host-down"].delay, rules["watch"].delay, rules["host-new"].delay) == (3600, 0, 0)
    assert (rules["weekly-report"].at, rules["host-down"].at) == ((4, 1020), None)


def test_all_off_and_one_rule_on_leaves_that_rule() -> None:
    rules, _ = parse_rules(b"[all]\non = no\n[host-down]\non = yes\n")
    assert [name for name, rule in rules.items() if rule.on] == ["host-down"]
    assert parse_rules(b"[all]\non = yes\n") == (DEFAULT_RULES, []), "what is off by default has a name of its own"


def test_rules_for_persons_reach_channels_only_by_their_own_section() -> None:
    rules, _ = parse_rules(b"[all]\nto = ops\n[gpu-held]\nto = person ops\n")
    assert rules["host-down"].to == rules["weekly-report"].to == ("ops",)
    assert rules["booking-broken"].to == rules["watch"].to == ("person", "hooks")
    assert rules["gpu-held"].to == ("person", "ops")


def test_an_unknown_channel_is_reported_and_no_alert_is_lost() -> None:
    rules, _ = parse_rules(
        b"[all]\nto = opps\n[gpu-lost]\nto = opps lab\n[booking-ends]\nto = zebra\n[gpu-hot]\nto = none\n"
    )
    checked_rules, problems = drop_unknown_channels(rules, ("lab", "ops"))
    assert problems == [
        "host-down, host-failed and 5 more should go to opps, but GPUBOARD_NOTIFY has no such channel; "
        "did you mean ops?",
        "booking-ends should go to zebra, but GPUBOARD_NOTIFY has no such channel; allowed: lab, ops, all, hooks, "
        "none, person",
    ]
    assert checked_rules["host-down"].to == ("all", "hooks")
    assert checked_rules["gpu-lost"].to == ("lab",)
    assert checked_rules["booking-ends"].to == ("person", "hooks")
    assert checked_rules["gpu-hot"].to == (), "nobody is what was asked for"
    assert drop_unknown_channels(DEFAULT_RULES, ()) == (DEFAULT_RULES, [])


@given(st.binary(max_size=2000))
def test_whatever_stands_there_is_read(data: bytes) -> None:
    check_whole(data)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([f"[{name}]" for name in ("all", *ALL_RULES)]),
            st.builds(
                lambda key, sign, value: f"{key}{sign}{value}",
                st.sampled_from(sorted(RULE_KEYS)),
                st.sampled_from(("=", " = ", ":", "")),
                st.one_of(st.text(max_size=12), st.from_regex(r"[0-9]{0,4}[smhd:-]?[0-9:]{0,5}", fullmatch=True)),
            ),
        ),
        max_size=30,
    )
)
def test_a_file_of_nearly_right_lines_is_read(lines: list[str]) -> None:
    check_whole("\n".join(lines).encode("utf-8", "surrogatepass"))


def check_whole(data: bytes) -> None:
    """Every rule is there, with values that can be; and what is said of the rest fits on the page."""
    rules, problems = parse_rules(data)
    assert list(rules) == list(ALL_RULES)
    for rule in rules.values():
        text = "\n".join(f"{key} = {value}" for key, value in format_rule_values(rule).items())
        assert rule_of(f"[{rule.name}]\n{text}", rule.name) == rule
    assert len(problems) <= 51
    assert all(len(problem) <= 320 and problem.isprintable() for problem in problems)


def test_a_file_of_wrong_lines_as_long_as_is_read_takes_no_time() -> None:
    for line in (
        b"hold\n",
        b"[\n",
        b"x = " + b"\n",
        b"quiet_hours = " + b"1:" * 400 + b"\n",
        b"[" * 900 + b"\n",
        b" " * 990 + b"x\n",
    ):
        data = b"[host-down]\n" + line * (MAX_RULES_BYTES // len(line))
        rules, problems = parse_rules(data)
        assert len(problems) <= 51
        assert rules["host-down"].delay == 120
