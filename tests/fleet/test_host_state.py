"""The state of a host: fresh, stale, down, failed, unseen or maintenance, and why."""

from __future__ import annotations

import pytest

from site_builder.core.model import (
    DiscoveredHost,
    DiskUse,
    GpuProcessRow,
    HostFacts,
    HostSnapshot,
    HostStatus,
    ParsedFile,
    PrivacySettings,
    Problem,
    StateLimits,
    ToolResult,
)
from tests.support.generated_fleet import (
    EVERY,
    NOW,
    booking,
    decide,
    gpu,
    head,
    host_data,
    now,
    person,
    process,
    used_by,
)


def verdict(host: HostStatus) -> tuple[str, str]:
    return host.state, host.reason


def legacy(age: float = 0) -> HostSnapshot:
    times = {"last_seen": NOW - age, "taken_at": {"gpus.csv": NOW - age}, "intervals": {"gpus.csv": 20}}
    return host_data(**times, is_legacy=True, clock_offset=None)  # type: ignore[arg-type]


def failed(rc: int, *tool_messages: str) -> str:
    host_status = decide(host_data(ParsedFile((), head("gpus", rc), messages=tool_messages)))
    return f"{host_status.state}: {host_status.reason}"


def whats(host: HostStatus) -> list[str]:
    return [problem.what for problem in host.problems]


# Age


def test_a_host_whose_snapshots_arrive_is_fresh() -> None:
    assert verdict(decide(host_data())) == ("fresh", "its snapshots arrive")


@pytest.mark.parametrize(("file", "limit"), [("host.txt", 60), ("gpus.csv", 90), ("processes.csv", 90)])
def test_three_intervals_and_30_s_after_a_file_was_made_its_host_is_stale(file: str, limit: int) -> None:
    assert decide(host_data(ages={file: limit - 0.1})).state == "fresh"
    assert decide(host_data(ages={file: limit})).state == "stale"


def test_an_old_ps_makes_no_host_stale() -> None:
    assert decide(host_data(ages={"ps.txt": 500})).state == "fresh"


def test_a_stale_host_says_since_when() -> None:
    assert verdict(decide(host_data(ages={"host.txt": 300}))) == ("stale", "no snapshot since 11:55")


@pytest.mark.parametrize("file", ["gpus.csv", "processes.csv"])
def test_a_host_that_pushes_an_old_file_says_which(file: str) -> None:
    assert verdict(decide(host_data(ages={file: 3 * 3600}))) == ("stale", f"it pushes, but {file} is from 09:00")


def test_ten_minutes_after_its_last_word_a_host_is_down() -> None:
    assert decide(host_data(ages={"host.txt": 599.9})).state == "stale"
    assert verdict(decide(host_data(ages={"host.txt": 600}))) == ("down", "no snapshot since 11:50")


@pytest.mark.parametrize("file", ["host.txt", "gpus.csv", "processes.csv"])
def test_no_claimed_interval_keeps_a_file_fresh_beyond_ten_minutes(file: str) -> None:
    every = {**EVERY, file: 999_999}
    assert decide(host_data(ages={file: 599.9}, intervals=every)).state == "fresh"
    assert decide(host_data(ages={file: 600}, intervals=every)).state != "fresh"


def test_a_host_that_was_last_heard_of_days_ago_says_the_day() -> None:
    assert decide(host_data(ages={"host.txt": 10 * 86400})).reason == "no snapshot since 6 Nov 12:00"


def test_the_limits_of_age_are_settings() -> None:
    limits = StateLimits(stale_after=0, down_after=100)
    assert decide(host_data(ages={"host.txt": 30}), limits=limits).state == "stale"
    assert decide(host_data(ages={"host.txt": 100}), limits=limits).state == "down"


def test_a_file_that_claims_to_be_from_before_all_time_is_stale_and_breaks_nothing() -> None:
    reason = decide(host_data(ages={"gpus.csv": 998_000_000_000})).reason
    assert reason == "it pushes, but gpus.csv is from 1 Jan 1970 01:00"


@pytest.mark.parametrize(("age", "expected"), [(89, "fresh"), (90, "stale"), (600, "down")])
def test_a_host_with_files_of_the_original_scripts_is_as_old_as_its_gpus(age: float, expected: str) -> None:
    assert decide(legacy(age)).state == expected


def test_a_stale_host_of_the_original_scripts_is_not_said_to_push() -> None:
    assert decide(legacy(300)).reason == "no snapshot since 11:55"


# Failed


@pytest.mark.parametrize(
    ("rc", "expected"),
    [
        (127, "there is no nvidia-smi on the host: words"),
        (124, "nvidia-smi did not answer in time and was stopped: words"),
        (137, "nvidia-smi did not answer in time and was killed: words"),
        (200, "an earlier nvidia-smi still hangs, so it was not started again: words"),
        (74, "the output of nvidia-smi could not be saved on the host: words"),
        (18, "nvidia-smi ended with exit code 18: words"),
        (0, "nvidia-smi printed: words"),
    ],
)
def test_a_host_without_a_gpu_row_has_failed_and_says_why_in_the_words_of_stderr(rc: int, expected: str) -> None:
    assert failed(rc, "words") == f"failed: {expected}"


@pytest.mark.parametrize(
    ("rc", "expected"),
    [
        (127, "there is no nvidia-smi on the host"),
        (18, "nvidia-smi ended with exit code 18"),
        (0, "nvidia-smi reported no GPU"),
    ],
)
def test_a_failure_without_words_has_a_reason_too(rc: int, expected: str) -> None:
    assert failed(rc) == f"failed: {expected}"


def test_only_the_first_messages_are_the_reason() -> None:
    assert failed(9, "a", "b", "c", "d") == "failed: nvidia-smi ended with exit code 9: a b c"
    assert len(failed(9, "a" * 5000)) < 400


def test_a_host_whose_gpus_never_came_has_failed() -> None:
    assert verdict(decide(host_data(gpus=None))) == ("failed", "it pushes, but gpus.csv has never arrived")


def test_a_failed_host_shows_its_bookings_on_the_host() -> None:
    (booking_status,) = decide(host_data(gpus=None), [booking("alice", gpu="3")]).bookings
    assert (booking_status.name, booking_status.phase) == ("alice", "now")


def test_a_host_that_is_old_is_down_rather_than_failed() -> None:
    assert decide(host_data(gpus=(), ages={"host.txt": 700})).state == "down"


def test_rows_beside_an_error_are_shown_and_the_error_is_a_problem() -> None:
    host = decide(host_data(ParsedFile((gpu(),), head("gpus", 15), messages=("Unable to determine the handle",))))
    assert [gpu_status.state for gpu_status in host.gpus] == ["free"]
    assert host.state == "fresh"
    assert host.problems == (
        Problem(
            "data/atlas/gpus.csv",
            "nvidia-smi ended with exit code 15: Unable to determine the handle; search dmesg for Xid, then reboot "
            "the host; if it happens again, check power, seating and cooling",
        ),
    )


def test_a_failure_to_report_the_processes_is_a_problem() -> None:
    parsed_processes: ParsedFile[GpuProcessRow] = ParsedFile(
        (), head("processes", 124), tool_results=(ToolResult("nvidia-smi", "nvidia", 124, is_complete=False),)
    )
    assert decide(host_data(processes=parsed_processes)).problems == (
        Problem("data/atlas/processes.csv", "nvidia-smi did not answer in time and was stopped"),
    )


# Unseen and maintenance


@pytest.mark.parametrize(
    ("listed_by", "expected"),
    [
        (("Consul",), "listed by Consul, but it has never pushed"),
        (("hosts.txt",), "listed by hosts.txt, but it has never pushed"),
        (("Consul", "hosts.txt"), "listed by Consul and hosts.txt, but it has never pushed"),
        ((), "it has never pushed"),
    ],
)
def test_a_host_that_never_pushed_is_unseen_and_says_who_knows_it(listed_by: tuple[str, ...], expected: str) -> None:
    assert verdict(decide(None, known=DiscoveredHost("atlas", listed_by=listed_by))) == ("unseen", expected)


def test_a_host_without_a_whole_host_file_is_unseen_and_says_so() -> None:
    data = host_data(last_seen=None, taken_at={}, facts=None, clock_offset=None)
    discovered_host = DiscoveredHost("atlas", listed_by=("Consul",))
    assert verdict(decide(data, known=discovered_host)) == ("unseen", "no complete host.txt has arrived yet")


def test_a_host_of_the_original_scripts_without_gpus_is_unseen() -> None:
    data = HostSnapshot("atlas", facts=ParsedFile((HostFacts(),)), is_legacy=True)
    assert verdict(decide(data)) == ("unseen", "its GPU file has not arrived yet")


@pytest.mark.parametrize("data", [None, host_data(), host_data(ages={"host.txt": 7000})])
def test_maintenance_wins_over_every_other_state(data: HostSnapshot | None) -> None:
    discovered_host = DiscoveredHost("atlas", maintenance="new fans")
    assert verdict(decide(data, known=discovered_host)) == ("maintenance", "new fans")


def test_no_gpu_of_a_host_in_maintenance_is_free() -> None:
    host = decide(host_data([gpu(0), gpu(1)]), known=DiscoveredHost("atlas", maintenance="new fans"))
    assert [gpu_status.state for gpu_status in host.gpus] == ["unknown", "unknown"]


# Consul


@pytest.mark.parametrize("age", [300, 700])
def test_what_consul_says_of_a_silent_host_stands_in_its_reason(age: float) -> None:
    discovered_host = DiscoveredHost("atlas", consul_status="critical", consul_message="Agent not live")
    assert decide(host_data(ages={"host.txt": age}), known=discovered_host).reason.endswith(
        ". Consul: critical, “Agent not live”"
    )


def test_consul_without_words_is_quoted_by_its_state_alone() -> None:
    discovered_host = DiscoveredHost("atlas", consul_status="warning")
    assert (
        decide(host_data(ages={"host.txt": 700}), known=discovered_host).reason
        == "no snapshot since 11:48. Consul: warning"
    )


def test_a_passing_consul_check_does_not_explain_silence() -> None:
    discovered_host = DiscoveredHost("atlas", consul_status="passing", consul_message="Agent alive")
    assert decide(host_data(ages={"host.txt": 700}), known=discovered_host).reason == "no snapshot since 11:48"


def test_a_critical_consul_check_of_a_fresh_host_is_a_note() -> None:
    host = decide(host_data(), known=DiscoveredHost("atlas", consul_status="critical", consul_message="disk full"))
    assert (host.state, host.notes) == ("fresh", ("Consul: critical, “disk full”",))


def test_a_host_that_is_not_in_consul_says_so() -> None:
    assert decide(host_data(), known=DiscoveredHost("atlas", is_missing_in_consul=True)).notes == ("not in Consul",)


def test_without_consul_its_state_is_not_mentioned() -> None:
    assert decide(host_data()).notes == ()


# Problems


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (60.0, []),
        (-60.0, []),
        (61.0, ["the clock of this host is 2 min ahead"]),
        (-3600.0, ["the clock of this host is 1 h behind, or its snapshots arrive late"]),
    ],
)
def test_a_clock_that_is_off_by_more_than_a_minute_is_a_problem(clock: float, expected: list[str]) -> None:
    assert decide(host_data(clock_offset=clock)).problems == tuple(Problem("atlas", what) for what in expected)


def test_a_clock_that_is_off_changes_nothing_else() -> None:
    right = decide(used_by("alice"))
    wrong = decide(
        used_by("alice", clock_offset=-31_536_000.0, ps=ParsedFile((person(),), head("ps")._replace(time=1)))
    )
    assert (wrong.state, [gpu_status.state for gpu_status in wrong.gpus]) == (
        right.state,
        [gpu_status.state for gpu_status in right.gpus],
    )


def test_the_start_of_a_process_is_on_our_clock() -> None:
    def started(off: int) -> int | None:
        ps = ParsedFile((person(elapsed=3600),), head("ps")._replace(time=int(NOW) + off))
        return decide(used_by("alice", clock_offset=float(off), ps=ps)).gpus[0].processes[0].started

    assert started(0) == started(7200) == started(-7200) == int(NOW) - 3600


@pytest.mark.parametrize(("elapsed", "time"), [(999_999_999_999, int(NOW)), (5, 999_999_999_999), (5, 0)])
def test_an_impossible_start_time_is_not_available(elapsed: int, time: int) -> None:
    ps = ParsedFile((person(elapsed=elapsed),), head("ps")._replace(time=time))
    assert decide(used_by("alice", ps=ps)).gpus[0].processes[0].started is None


def test_missing_files_are_a_problem_with_the_command_that_solves_it() -> None:
    host = decide(host_data(missing_files=("gpus.csv", "ps.txt")))
    assert host.problems == (
        Problem("data/atlas", "missing: gpus.csv, ps.txt; `gpuboard forget atlas` removes the host from the board"),
    )


def test_a_host_all_of_whose_files_are_gone_says_so() -> None:
    host = decide(host_data(ages={"host.txt": 700}, missing_files=tuple(EVERY)))
    assert host.reason == "no snapshot since 11:48, and its files are missing from data/"


def test_a_host_some_of_whose_files_are_gone_is_not_said_to_have_none() -> None:
    assert decide(host_data(ages={"host.txt": 700}, missing_files=("ps.txt",))).reason == "no snapshot since 11:48"


def test_problems_of_the_files_are_problems_of_the_host() -> None:
    torn = Problem("data/atlas/gpus.csv", "the file is incomplete: its end is missing")
    assert decide(host_data(problems=(torn,))).problems == (torn,)


# What else is said of a host


def test_title_tags_and_facts_are_those_of_the_host() -> None:
    host = decide(host_data(), known=DiscoveredHost("atlas", "The big one", ("vision",)))
    assert (host.name, host.title, host.tags) == ("atlas", "The big one", ("vision",))
    assert (host.facts, host.last_seen) == (HostFacts(cpus=4), NOW)


def test_a_process_on_a_gpu_that_the_host_does_not_report_is_shown_on_the_host() -> None:
    host = decide(host_data(processes=[process(on="GPU-9")], ps=[person()]))
    assert [(process_status.pid, process_status.user) for process_status in host.unmatched_processes] == [(42, "alice")]


def test_logins_are_learned_but_for_numbers_and_names_that_were_cut() -> None:
    users = ["alice", "Zoe", "1000", "carolin+", None]
    host = decide(used_by(*users), logins=["carolina"])
    assert host.logins == {"alice", "Zoe"}


def test_the_login_of_a_process_without_a_name_for_its_user_is_the_person_behind_it() -> None:
    row = person(user="1000", person="dora")
    assert decide(host_data(ps=[row])).logins == {"dora"}
    assert decide(host_data(ps=[row]), aliases={"uid 1000": "erik"}).logins == set()


def test_disk_use_by_person_is_not_shown_where_users_are_not() -> None:
    facts = ParsedFile((HostFacts(cpus=4, disk_use=(DiskUse("/data/alice", 5),)),), head("host"))
    host = decide(host_data(facts=facts), shown=PrivacySettings(users=False))
    assert host.facts == HostFacts(cpus=4)


@pytest.mark.parametrize(("claimed", "expected"), [(int(NOW), int(NOW)), (999_999_999_999, None)])
def test_disk_use_that_claims_to_be_of_a_time_to_come_has_no_time(claimed: int, expected: int | None) -> None:
    facts = decide(host_data(facts=ParsedFile((HostFacts(disk_use_time=claimed),), head("host")))).facts
    assert facts == HostFacts(disk_use_time=expected)


def test_users_are_unknown_once_ps_is_so_old_that_a_pid_may_be_another_process() -> None:
    def user(age: float) -> str | None:
        return decide(used_by("alice", ages={"ps.txt": age})).gpus[0].processes[0].user

    assert (user(599), user(600)) == ("alice", None)


def test_a_decision_holds_until_the_host_would_be_stale() -> None:
    moment = now()
    decide(host_data(), at=moment)
    assert moment.valid_until == NOW + 60


def test_a_host_from_the_future_is_not_fresh() -> None:
    ahead = decide(host_data(last_seen=NOW + 3600, taken_at={"host.txt": NOW + 3600}))
    assert ahead.state == "stale"
    assert "from the future" in ahead.reason
