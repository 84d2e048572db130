"""`gpuboard pull`: what is typed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from site_builder.cli import main
from site_builder.discovery import hosts
from site_builder.remote.targets import Target, UnclearSshTargetsError, parse_target, read_targets_file
from tests.support.command_line import run_gpuboard

# What is typed


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("atlas", Target("atlas")),
        ("lab@atlas", Target("lab@atlas")),
        ("atlas=lab@10.0.0.7", Target("lab@10.0.0.7", "atlas")),
        ("ssh://lab@atlas:2222", Target("ssh://lab@atlas:2222")),
        ("http://atlas/spool", Target("http://atlas/spool/")),
        ("a=https://u:p@web:8443/x=y/", Target("https://u:p@web:8443/x=y/", "a")),
    ],
)
def test_a_host_can_be_named_in_each_of_these_ways(word: str, target: Target) -> None:
    assert parse_target(word) == target
    assert target.name == (target.given_name or "atlas")


@pytest.mark.parametrize(
    "word",
    [
        "",
        "-oProxyCommand=x",
        "../x",
        "a b",
        "a=-x",
        "ftp://x/",
        "http:///x/",
        "http://x/?q",
        "a=",
        "x\n",
    ],
)
def test_what_can_be_no_host_is_refused(word: str) -> None:
    with pytest.raises(UnclearSshTargetsError):
        parse_target(word)


def test_a_password_in_an_address_is_not_printed(tmp_path: Path) -> None:
    with pytest.raises(UnclearSshTargetsError) as error:
        parse_target("https://u:secret@web/?q")
    assert "secret" not in str(error.value)
    file = tmp_path / "hosts"
    file.write_bytes(b"a=https://u:secret#1@web/\nb=https://u:secret,1@web/\nc=http://web:99999/\n")
    with pytest.raises(UnclearSshTargetsError) as error:
        read_targets_file(file)
    assert str(error.value).split("; ") == [
        f"{file}, line 1: 'a=https://u:…' is not the URL of a folder",
        f"{file}, line 2: 'b=https://u:…' is not the URL of a folder",
        f"{file}, line 3: 'c=http://web:99999/' is not the URL of a folder",
    ]


def test_a_list_of_hosts_can_be_the_one_of_the_board(tmp_path: Path) -> None:
    file = tmp_path / "hosts.txt"
    listed = "# all\natlas, Big one, a100\n\ngpu2=10.0.0.7, maintenance: fan\n"
    file.write_text(listed)
    assert [target.name for target in read_targets_file(file)] == ["atlas", "gpu2"]
    file.write_text(f"{listed}not a host\natlas=elsewhere\n")
    with pytest.raises(UnclearSshTargetsError, match=r"line 5: .*; .*, line 6: the name atlas is given twice"):
        read_targets_file(file)


@pytest.mark.parametrize(
    ("words", "expected_error"),
    [
        ((), "name hosts"),
        (("a", "--for", "5"), "--for needs --every"),
        (("a b",), "'a b' is not a host"),
        (("http://[::1]/",), "'::1' is not a valid name on the board: use name=address"),
        (("--hosts-file", "nowhere"), "nowhere cannot be read"),
        (("--consul",), "GPUBOARD_CONSUL_SERVICE"),
        (("a", "--data", "nowhere"), "nowhere does not exist"),
    ],
)
def test_wrong_use_is_reported_and_is_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected_error: str
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUBOARD_CONF", "/dev/null")
    done = CliRunner().invoke(main, ["pull", *words])
    assert done.exit_code == 2
    assert expected_error in done.output


def test_hosts_that_consul_lists_are_pulled_by_their_names_on_the_board(tmp_path: Path) -> None:
    """Here by the list that is kept for when Consul does not answer."""
    (tmp_path / "data/gpu2.lab.org").mkdir(parents=True)
    (tmp_path / "state").mkdir()
    url = hosts.DiscoveredNode(
        "http://127.0.0.1:9/latest?", host="three"
    )  # whoever registers a service chooses its words
    nodes = hosts.discovered_nodes_to_json(
        [hosts.DiscoveredNode("gpu1.lab.org", host="one"), hosts.DiscoveredNode("gpu2.lab.org"), url]
    )
    kept = {"service": "gpus", "datacenter": None, "nodes": nodes}
    (tmp_path / "state/consul.json").write_text(json.dumps(kept))
    access = {"GPUBOARD_CONSUL_SERVICE": "gpus", "CONSUL_HTTP_ADDR": "127.0.0.1:9"}
    (tmp_path / "config").write_text("Host *.lab.org\n  HostName 127.0.0.1\n  Port 9\n")
    done = run_gpuboard(tmp_path, "pull", "--consul", "--ssh-config", "config", **access)
    assert done.returncode == 1
    first, second, *rest = sorted(done.stderr.splitlines())
    assert "the list of" in first
    assert second.endswith(": the node 'http://127.0.0.1:9/latest?' is ignored: not a valid machine name")
    assert [line.split()[1] for line in rest] == ["gpu2.lab.org", "one:"]
    assert all("refused" in line for line in rest)
