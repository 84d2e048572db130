"""What `gpuboard deploy` makes of what is typed, of lists of hosts, and of what hosts answer."""

from __future__ import annotations

import io
import stat
import tarfile
from base64 import b64decode
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from site_builder.cli import main
from site_builder.core.model import ConsulAccess
from site_builder.deploy import host_job
from site_builder.deploy.host_job import HostDeployError, HostDeployJob, HostDeployPlan, describe_installer_failure
from site_builder.deploy.runner import LiveDeployDisplay, format_deploy_job_json
from site_builder.deploy.web_host import (
    WebHost,
    WebHostError,
    WebHostState,
    find_web_host_sshd_port,
    read_web_host_sshd_keys,
)
from site_builder.remote import targets
from site_builder.remote.ssh import RemoteCommandResult, SshConnection
from site_builder.remote.ssh_config import HostKey, SshHostConfig
from site_builder.remote.targets import Target, UnclearSshTargetsError
from tests.support.consul_server import ConsulServer

KEY = "ssh-ed25519 " + "A" * 68


def run(*words: str) -> tuple[int, str]:
    """The exit code, and all that is said."""
    done = CliRunner().invoke(main, ["deploy", *words], env={"GPUBOARD_CONSUL_SERVICE": ""})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "name the hosts, or use --consul or --hosts-file FILE"),
        (("a", "--consul"), "name the hosts, or use"),
        (("a", "--check", "--remove"), "cannot be combined"),
        (("a", "b", "--name", "x"), "--name is for one HOST; for several: NAME=HOST"),
        (("--consul", "--name", "x"), "--name is for one HOST"),
        (("x=http://atlas/spool/",), "x is a URL, but deploy uses ssh"),
        (("_x=a",), "'_x' is not a valid name on the board"),
        (("a", "--name", "../x"), "'../x' is not a valid name on the board"),
        (("a", "x=a"), "the host a is given twice"),
        (("x=a", "x=b"), "the name x is given twice"),
        (("--hosts-file", "/nowhere"), "/nowhere cannot be read: No such file"),
        (("--consul",), "first set GPUBOARD_CONSUL_SERVICE"),
        (("a", "--dest", "web:/data", "--data", "."), "'web:/data' is not a valid destination"),
        (("a", "--data", "/nowhere/at/all"), "the data folder /nowhere/at/all is missing: run ./install.sh web"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2(words: tuple[str, ...], why: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert why in output
    assert "Traceback" not in output


def test_a_file_has_lines_of_hosts_txt_or_such_words_as_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    listed = "# ours\natlas, Big one, a100 nvlink, maintenance: fan, and more\n"
    file.write_text(listed + "\nadmin@gpu02\nnova=10.0.0.7 # new\n10.0.0.8\n")
    assert targets.read_targets_file(file) == [
        Target("atlas", "atlas"),
        Target("admin@gpu02"),
        Target("10.0.0.7", "nova"),
        Target("10.0.0.8"),
    ]
    for bad in ("two words\n", "a b=c\n", "-oProxyCommand=x y\n", "# nobody\n"):
        file.write_text(bad)
        with pytest.raises(UnclearSshTargetsError):
            targets.read_targets_file(file)


@pytest.mark.slow
def test_the_hosts_of_consul_have_the_names_of_the_board(tmp_path: Path) -> None:
    server = ConsulServer(tmp_path / "consul")
    try:
        server.register("gpu01.lab.example", "gpus")
        server.register("n17", "gpus", host="atlas")
        access = ConsulAccess("gpus", address=server.address)
        deploy_targets = targets.read_consul_targets(access, tmp_path, tmp_path / "data")
        assert deploy_targets == [Target("n17", "atlas"), Target("gpu01.lab.example", "gpu01")]
    finally:
        server.stop()
    with pytest.raises(UnclearSshTargetsError, match="does not answer"):  # the last list would name hosts that are gone
        targets.read_consul_targets(access, tmp_path, tmp_path)


def test_what_goes_to_a_host_can_be_unpacked_and_started_there() -> None:
    text = host_job.build_install_program().split("<<'END'")[1].partition("\n")[2].partition("END\n")[0]
    with tarfile.open(fileobj=io.BytesIO(b64decode(text))) as archive:
        modes = {entry.name: entry.mode for entry in archive}
    assert modes["install.sh"] & stat.S_IXUSR
    assert modes["scripts/gpu-check.sh"] & stat.S_IXUSR
    assert {"install/host.sh", "install/key.sh", "scripts/lib/common.sh"} <= modes.keys()
    assert not any(name.endswith((".cgi", "~")) for name in modes)


ANSWER = """Welcome to gpu01!
gpuboard-look 1
own gpu01
name gpu01
home /home/lab
seen 10.0.0.5 40000 10.0.0.9 22
reach web.lab 10.0.0.5
reach web
missing nvidia-smi
installed gpu01
scripts abc
crontab * * * * * /home/lab/.local/share/gpuboard/scripts/gpu-check.sh
dest ssh://gpuboard@web.lab
key {key} gpuboard gpu01
known web.lab ssh-ed25519 WEB
loops ok
end 1
"""


def told(**changed: str) -> host_job.HostInspection:
    """The answer of a host, with some facts changed."""
    text = ANSWER.format(key=KEY)
    for word, value in changed.items():
        text = "\n".join(f"{word} {value}" if line.startswith(f"{word} ") else line for line in text.split("\n"))
    return host_job.parse_host_inspection(text.encode())


def test_what_a_host_answers_is_taken_apart_and_not_trusted() -> None:
    host_facts = told()
    assert (host_facts.name, host_facts.our_address, host_facts.public_key, host_facts.missing_required) == (
        "gpu01",
        "10.0.0.5",
        KEY,
        [],
    )
    assert not host_facts.has_driver
    assert told(key='ssh-ed25519 AAAA\ncommand="x" ssh-rsa').public_key == ""
    assert told(key="restrict ssh-ed25519 AAAA").public_key == ""
    assert told(seen="$(reboot) 1 2 3").our_address == ""
    assert told(missing="flock").missing_required == ["flock"]
    assert told(dest="\x1b[31mred").dest == "?[31mred"
    assert told(reach="").addresses_by_name == {"": ()}
    assert len(told(missing="x" * 9000).missing_required[0]) == 20
    for bad in ("../x", "-x", "a b", ""):
        with pytest.raises(HostDeployError, match="not a valid name on the board"):
            told(name=bad)
    for torn in (b"", b"gpuboard-look 1\nname gpu01\n", b"\xff\x00" * 1000):
        with pytest.raises(HostDeployError, match="incomplete"):
            host_job.parse_host_inspection(torn)


def order(**overrides: Any) -> HostDeployPlan:  # noqa: ANN401 of any kind
    """One for a web side that is elsewhere."""
    web = WebHost(
        lambda _: RemoteCommandResult(0, b"", b""),
        ["web.lab", "web; reboot"],
        "gpuboard",
        22,
        [HostKey("ssh-ed25519", "WEB")],
    )
    return HostDeployPlan(web, WebHostState(1000, {"gpu01": KEY}, {"gpu01": 990}), "", "", "abc", **overrides)


def test_a_host_is_up_to_date_only_if_all_of_it_is() -> None:
    good, job = told(), HostDeployJob(Target("gpu01"), order())
    assert job.list_outdated_parts(good, good.dest) == []
    for word, value, what in (
        ("scripts", "abd", "scripts"),
        ("crontab", "", "crontab"),
        ("dest", "ssh://other@web", "destination"),
        ("key", "ssh-ed25519 " + "B" * 68, "key"),
        ("known", "web.lab ssh-ed25519 OLD", "web host's key"),
        ("loops", "1 GPUs is not running", "loops"),
        ("installed", "gpu02", "loops"),
    ):
        assert job.list_outdated_parts(told(**{word: value}), good.dest) == [what]


OTHER = "ssh-ed25519 " + "B" * 68


@pytest.mark.parametrize(
    ("word", "named", "refused"),
    [
        ("gpu07", None, "it says that it is gpu01, but that name is taken; .* with gpu01=gpu07"),
        ("ssh://lab@10.0.0.7:22", None, "it says that it is gpu01, but that name is taken"),
        ("gpu01", None, None),
        ("ssh://lab@gpu01.lab.example:22", None, None),
        ("10.0.0.7", "gpu01", None),
    ],
)
def test_what_a_host_says_it_is_does_not_give_it_the_place_of_another(
    word: str, named: str | None, refused: str | None
) -> None:
    job = HostDeployJob(Target(word, named), order())
    job.check_name(told())  # its key is the one that is enrolled
    liar = told(key=OTHER)
    if refused is None:
        job.check_name(liar)  # it lost its key
        return
    with pytest.raises(HostDeployError, match=refused):
        job.check_name(liar)
    job.plan.web_state.enrolled_keys.clear()
    with pytest.raises(HostDeployError, match=refused):  # a host that pushes by scp
        job.check_name(liar)


class Host:
    """One that answers what it likes."""

    def __init__(self, out: str, code: int = 0) -> None:
        """So."""
        self.done = RemoteCommandResult(code, out.encode(), b"")
        self.commands: list[bytes] = []

    def run(self, _: str, stdin: bytes, __: float) -> RemoteCommandResult:
        """The same each time."""
        self.commands.append(stdin)
        return self.done


def test_a_host_that_answers_for_another_name_than_it_was_given_is_refused() -> None:
    answer: Any = Host(ANSWER.format(key=KEY))
    assert HostDeployJob(Target("gpu01", "gpu01"), order()).inspect(answer).name == "gpu01"
    with pytest.raises(HostDeployError, match="it answered for gpu01 instead of gpu07"):
        HostDeployJob(Target("gpu07", "gpu07"), order()).inspect(answer)


def test_remove_takes_no_key_of_another_host_and_leaves_a_web_host_its_board() -> None:
    enrolment_commands: list[str] = []
    for word, taken in (("gpu07", False), ("gpu01", True)):
        plan = order(action="remove")
        plan.web_state.arrival_times.clear()
        plan.web_host.run_enrolment = lambda words: (
            enrolment_commands.append(" ".join(words))  # type: ignore[func-returns-value]
            or RemoteCommandResult(0, b"", b"")
        )
        job, host = HostDeployJob(Target(word), plan), Host("")
        job.remove(host, told(key=OTHER))  # type: ignore[arg-type] # it does as one
        assert ("revoke gpu01" in enrolment_commands) is taken
        assert bool(job.reason) is not taken
        assert [command.split(b"\n")[-2] for command in host.commands] == [b"./install.sh remove host </dev/null"]


def test_what_a_host_says_steers_no_terminal() -> None:
    hostile = RemoteCommandResult(1, f"To fix it: \x1b]0;x\x07{'y' * 9000}\n".encode(), b"\x1b[2J no\n")
    assert describe_installer_failure(hostile).isprintable()
    assert len(describe_installer_failure(hostile)) < 700


def test_the_destination_is_found_out_or_asked_for() -> None:
    assert order().web_host.host_names == ["web.lab"], "what is no name never comes into a command"
    way = SshConnection(SshHostConfig("gpu01", "gpu01", 22, "lab"), None, ExitStack())  # type: ignore[arg-type] # it is not used
    assert HostDeployJob(Target("gpu01"), order()).choose_destination(way, told()) == "ssh://gpuboard@web.lab"
    with pytest.raises(
        HostDeployError, match=r"it cannot resolve web\.lab: set the address of the web host with --dest"
    ):
        HostDeployJob(Target("gpu01"), order()).choose_destination(way, told(reach="web.lab 127.0.1.1"))


@pytest.mark.parametrize(
    ("dest", "address"),
    [
        ("ssh://u@web", "web"),
        ("ssh://web:22", "web"),
        ("ssh://u@web:2222", "[web]:2222"),
        ("ssh://u@[::1]:2222", "[::1]:2222"),
        ("ssh://u@[fe80::1]", "fe80::1"),
    ],
)
def test_the_web_host_is_known_as_ssh_will_call_it(dest: str, address: str) -> None:
    web = order().web_host
    assert web.build_known_hosts_lines(dest) == (address, [f"{address} ssh-ed25519 WEB"])
    for bad in ("ssh://u@a b", "ssh://u@-x y", "ssh://u@a;b", "ssh://u@a/../b", "consul://x/y", "ssh://$(x)"):
        with pytest.raises(WebHostError):
            web.build_known_hosts_lines(bad)


def test_our_own_sshd_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_builder.deploy.web_host.SSH_FOLDER", tmp_path)
    assert (find_web_host_sshd_port(), read_web_host_sshd_keys()) == (22, [])
    (tmp_path / "sshd_config").write_text("#Port 22\nPort 2222\n")
    (tmp_path / "ssh_host_ed25519_key.pub").write_text(f"{KEY} root@web\n")
    (tmp_path / "ssh_host_ed25519_key").touch()
    (tmp_path / "junk.pub").write_bytes(b"\xff\xfe")
    (tmp_path / "junk").touch()
    (tmp_path / "user_ca.pub").write_text(f"ssh-ed25519 {'B' * 68} who logs in, and not sshd\n")
    assert find_web_host_sshd_port() == 2222
    assert [" ".join(key) for key in read_web_host_sshd_keys()] == [KEY]


def test_the_table_fits_80_columns_and_shows_the_busy_ones_first() -> None:
    jobs = [
        HostDeployJob(Target(f"gpu{number:02}.cluster.lab.example"), order(), step="install", started_at=1)
        for number in range(40)
    ]
    jobs[3].result, jobs[3].reason = "failed", "no"
    for job in jobs[10:]:
        job.result = "installed"
    table = LiveDeployDisplay(jobs, is_check=False)
    table.console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True)
    assert len(table.choose_rows(is_final=False)) == 21
    assert jobs[3] in table.choose_rows(is_final=False)
    table.console.print(table.build_table())
    lines = table.console.file.getvalue().split("\n")  # type: ignore[attr-defined] # a StringIO
    assert len(lines) <= 24
    assert "1 failed, 30 installed, 9 working" in "".join(lines)
    assert format_deploy_job_json(jobs[3])["why"] == "no"
