"""What is understood of an answer of Consul."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings import parser as booking_parser
from site_builder.core import people
from site_builder.core.model import ConsulAccess, DiscoveredHost, Problem
from site_builder.core.names import is_host_name
from site_builder.discovery import hosts
from site_builder.discovery.hosts import DiscoveredNode, HostDiscovery
from site_builder.fleet import gpu_models
from tests.support.consul_server import READ_ALL, ROOT, TOOLS, ConsulServer
from tests.support.discovery_fixtures import check, entry, fill, nodes
from tests.support.missing import missing
from tests.support.ports import free_port


@pytest.fixture
def server(consul: ConsulServer) -> ConsulServer:
    """A Consul without ACLs that knows some hosts, by http and by https."""
    fill(consul)
    return consul


@pytest.fixture(scope="session")
def certificates(shared_consul: ConsulServer) -> Path:
    assert shared_consul.certificates
    return shared_consul.certificates


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[ConsulServer]:
    """A Consul that denies by default, and takes https only from those with a certificate."""
    folder = tmp_path_factory.mktemp("consul") / "locked"
    consul = ConsulServer(folder, acl=True, certificates=certificates, verify_incoming_https=True)
    try:
        consul.register("atlas", "gpu")
        yield consul
    finally:
        consul.stop()


# What is understood of an answer.


def test_short_names_are_used_where_they_are_unique() -> None:
    matched, problems = hosts.match_discovered_nodes_to_hosts(nodes("a.x", "b.x", "b.y", "c", "10.0.0.1"), [])
    assert ({host: node.node for host, node in matched.items()}, problems) == (
        {"a": "a.x", "b.x": "b.x", "b.y": "b.y", "c": "c", "10.0.0.1": "10.0.0.1"},
        [],
    )


def test_two_nodes_with_one_host_name_are_reported_and_both_shown() -> None:
    matched, problems = hosts.match_discovered_nodes_to_hosts(nodes("b.x", "b.y", "B"), ["b"])
    assert {host: node.node for host, node in matched.items()} == {"b": "B", "b.x": "b.x", "b.y": "b.y"}
    assert problems == [
        "the nodes B and b.x are both the host b: B is used",
        "the nodes B and b.y are both the host b: B is used",
    ]


def test_meta_host_counts_before_the_node_name_and_must_be_valid() -> None:
    listed_nodes = [
        DiscoveredNode("x", host="atlas"),
        DiscoveredNode("atlas"),
        DiscoveredNode("y", host="../z"),
        DiscoveredNode("ü", host="new"),
    ]
    matched, problems = hosts.match_discovered_nodes_to_hosts(listed_nodes, ["atlas"])
    assert {host: node.node for host, node in matched.items()} == {"atlas": "x", "y": "y", "new": "ü"}
    assert problems == [
        "the nodes x and atlas are both the host atlas: x is used",
        "the node y has '../z' as its meta host, which is not a host name",
    ]


def test_node_with_an_invalid_host_name_is_reported() -> None:
    assert hosts.match_discovered_nodes_to_hosts(nodes("ü", "a b"), []) == (
        {},
        [f"the node '{name}' is ignored: not a valid host name" for name in ("ü", "a b")],
    )


def test_two_instances_on_a_node_are_one_host_in_the_worse_state() -> None:
    first = entry("atlas", Service={"Tags": ["a", "b"]}, Checks=[check("warning", "hot")])
    second = entry("atlas", Service={"Tags": ["b", "c"], "Meta": {"title": "T"}}, Checks=[check("critical", "gone")])
    dump = hosts.parse_discovered_nodes([first, second, entry("atlas")])
    assert dump.rows == (DiscoveredNode("atlas", None, "T", ("a", "b", "c"), "critical", "gone"),)


def test_nothing_of_consul_is_longer_than_it_may_be() -> None:
    service = {"Tags": [f"{n:03}{'x' * 99}" for n in range(99)], "Meta": {"title": "t\x00" * 999}}
    (node,) = hosts.parse_discovered_nodes(
        [entry("atlas", Service=service, Checks=[check("critical", "o\n" * 9999)])]
    ).rows
    assert (len(node.tags), len(node.tags[0]), len(node.title or ""), len(node.message or "")) == (50, 60, 200, 199)
    assert "\x00" not in (node.title or "")
    dump = hosts.parse_discovered_nodes([entry(f"n{number}") for number in range(20_001)])
    assert (len(dump.rows), dump.problems) == (
        20_000,
        ("its answer has 20001 entries; only the first 20000 count",),
    )
    problems = hosts.parse_discovered_nodes([entry("atlas"), *[7] * 500]).problems
    assert (len(problems), problems[-1]) == (11, "490 more entries of its answer are ignored")


def test_unknown_check_status_is_critical() -> None:
    (node,) = hosts.parse_discovered_nodes([entry("atlas", Checks=[check("odd"), check("passing")])]).rows
    assert (node.status, node.message) == ("critical", "nvidia-smi answers")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


CHECK = st.fixed_dictionaries(
    {},
    optional={
        key: JSON | st.sampled_from(hosts.STATUSES_WORST_FIRST) for key in ("CheckID", "Status", "Output", "Notes")
    },
)


ENTRY = st.fixed_dictionaries(
    {
        "Node": st.fixed_dictionaries({"Node": st.text() | st.sampled_from(["a", "A", "a.b", "a.c"]) | JSON}),
        "Service": st.fixed_dictionaries({}, optional={"Tags": JSON, "Meta": st.dictionaries(st.text(), JSON) | JSON}),
        "Checks": st.lists(CHECK) | JSON,
    }
)


@given(JSON | st.lists(ENTRY | JSON, max_size=5), st.lists(st.sampled_from(["a", "A", "a.b", "b"])))
def test_any_response_is_parsed_and_stored_nodes_are_the_same(answer: object, names: list[str]) -> None:
    dump = hosts.parse_discovered_nodes(answer)
    matched, problems = hosts.match_discovered_nodes_to_hosts(dump.rows, names)
    assert all(is_host_name(name) for name in matched)
    "".join((*dump.problems, *problems, *(str(node) for node in dump.rows))).encode()
    again = hosts.parse_discovered_nodes(json.loads(json.dumps(hosts.discovered_nodes_to_json(dump.rows))))
    assert again.rows == dump.rows


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_hosts_json_is_parsed(data: bytes) -> None:
    "".join(
        (*(str(host) for host in hosts.parse_hosts_json(data).rows), *hosts.parse_hosts_json(data).problems)
    ).encode()


# The maintained continuation of python-consul.


CONFORMANCE = """
import json, sys
from importlib.metadata import distribution
from pathlib import Path
from site_builder.core.model import ConsulAccess
from site_builder.discovery.hosts import HostDiscovery
import consul
assert Path(consul.__file__).is_relative_to(sys.argv[1]), consul.__file__
told = []
for access in json.loads(sys.argv[3]):
    folder = Path(sys.argv[2])
    hosts, problems = HostDiscovery(folder, folder, ConsulAccess(**access)).list_hosts([])
    told.append([{name: host.consul_status for name, host in hosts.items()}, [problem.what for problem in problems]])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_the_maintained_continuation_of_the_library_does_the_same(
    tmp_path: Path, server: ConsulServer, locked: ConsulServer, certificates: Path
) -> None:
    library = TOOLS / "py-consul"
    if sys.version_info < (3, 10):
        pytest.skip("py-consul needs Python 3.10")
    if not library.is_dir():
        missing("py-consul is not here; ./install.sh test fetches it")
    down = f"127.0.0.1:{free_port()}"
    asked: list[dict[str, object]] = [
        {"service": "gpu", "address": server.address},
        {"service": "x", "address": f"https://127.0.0.1:{server.tls_port}", "ca": str(certificates / "ca.pem")},
        {"service": "gpu", "address": server.address, "datacenter": "mars"},
        {"service": "gpu", "address": locked.address, "token": "5e0c1f7a-0000-4000-8000-00000000bad0"},
        {"service": "gpu", "address": locked.address, "token": locked.new_token(READ_ALL)},
        {"service": "gpu", "address": down},
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(library), str(ROOT)]),
        "CONSUL_HTTP_ADDR": "127.0.0.1:1",
        "CONSUL_HTTP_TOKEN": "not-a-token",
    }
    command = [sys.executable, "-W", "error", "-c", CONFORMANCE, str(library), str(tmp_path), json.dumps(asked)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    (tmp_path / "consul.json").unlink()
    expected: list[tuple[dict[str, str | None], list[str]]] = []
    for access in asked:
        hosts, problems = HostDiscovery(tmp_path, tmp_path, ConsulAccess(**access)).list_hosts([])  # type: ignore[arg-type]
        expected.append(
            ({name: host.consul_status for name, host in hosts.items()}, [problem.what for problem in problems])
        )
    assert json.loads(result.stdout) == json.loads(json.dumps(expected))
    assert expected[0] == ({"atlas": "passing", "hydra": "critical", "kronos": "passing", "titan": "warning"}, [])
    assert "ACL not found" in expected[3][1][0]
    assert "connection refused" in expected[5][1][0]


def test_consul_is_imported_only_when_it_is_asked(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from site_builder.discovery.hosts import HostDiscovery;"
        "HostDiscovery(Path('.'), Path('.'), None).list_hosts([]);"
        "print('consul' in sys.modules or 'requests' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, capture_output=True, cwd=tmp_path, check=True).stdout == b"False\n"


def test_a_problem_is_one_sentence_with_its_place() -> None:
    host_list = hosts.ConsulHostList(Path("nowhere"), ConsulAccess("gpu", address="consul.lab"))
    assert host_list.build_problem("does not answer") == Problem(
        "Consul at consul.lab", "does not answer; there is no earlier list to use"
    )


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("atlas", DiscoveredHost("atlas")),
        ("192.168.0.1", DiscoveredHost("192.168.0.1")),
        ("atlas, The big one, vision nlp  # in room 7", DiscoveredHost("atlas", "The big one", ("vision", "nlp"))),
        ("atlas,,vision", DiscoveredHost("atlas", None, ("vision",))),
        ("atlas, hidden", DiscoveredHost("atlas", is_hidden=True)),
        ("atlas, Big, a b, hidden", DiscoveredHost("atlas", "Big", ("a", "b"), is_hidden=True)),
        (
            "atlas, maintenance: new fans, back on Monday",
            DiscoveredHost("atlas", maintenance="new fans, back on Monday"),
        ),
        ("atlas, Big, maintenance", DiscoveredHost("atlas", "Big", maintenance="no reason given")),
        ("atlas, Big, a, hidden, maintenance: x", DiscoveredHost("atlas", "Big", ("a",), "x", is_hidden=True)),
    ],
)
def test_line_of_hosts_txt(line: str, host: DiscoveredHost) -> None:
    dump = hosts.parse_hosts_txt(f"# our hosts\n\n{line}\r\n".encode())
    assert (dump.rows, dump.problems) == ((host,), ())


def test_invalid_and_repeated_names_are_reported() -> None:
    dump = hosts.parse_hosts_txt(b"atlas\n../../etc\natlas, again\na b\n")
    assert dump.rows == (DiscoveredHost("atlas"),)
    assert dump.problems == (
        "line 2: '../../etc' is not a host name",
        "line 3: atlas is listed twice; the first line is used",
        "line 4: 'a b' is not a host name; separate name, title and tags with commas",
    )


@pytest.mark.parametrize("name", ["../x", "a/b", 'a b"<x>', "", ".x", "-x", "a\n", "ü", "a" * 64])
def test_invalid_host_names(name: str) -> None:
    assert not is_host_name(name)


@pytest.mark.parametrize("name", ["a", "gpu01", "GPU_1", "a.b-c", "a" * 63, "1"])
def test_valid_host_names(name: str) -> None:
    assert is_host_name(name)


def test_last_alias_is_the_display_name_and_case_is_ignored() -> None:
    shown = people.parse_aliases(b"carol, caro, Carol C.  # note\n\n# alone\nbob\n")
    assert shown == {"carol": "Carol C.", "caro": "Carol C.", "carol c.": "Carol C.", "bob": "bob"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80 GB"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA GeForce RTX 2080 SUPER", "RTX 2080 SUPER"),
        ("GeForce GTX 1080 Ti", "GTX 1080 Ti"),
        ("Tesla P100-PCIE-16GB", "P100 16 GB"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA H200", "H200"),
        ("Orin (nvgpu)", "Orin (nvgpu)"),
        ("NVIDIA", "NVIDIA"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("Aqua Vanjaram [Instinct MI300A]", "MI300A"),
        ("Arcturus GL-XL [Instinct MI100]", "MI100"),
        ("AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI200"),
        ("Radeon Instinct MI50 32GB", "MI50 32 GB"),
        ("Navi 22 [Radeon RX 6700/6700 XT / 6800M]", "RX 6700/6700 XT / 6800M"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("AMD Radeon PRO W7900", "PRO W7900"),
        ("Vega 20 [Radeon VII]", "Radeon VII"),
        ("AMD Radeon Graphics", "Radeon Graphics"),
        ("My GPU", "the old one"),
    ],
)
def test_short_gpu_names(name: str, expected: str) -> None:
    assert (
        gpu_models.shorten_gpu_name(
            name, gpu_models.parse_gpu_model_names(b"# ours\nMy GPU, the old one\nbroken line\n")
        )
        == expected
    )


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_content_is_parsed(data: bytes) -> None:
    hosts.parse_hosts_txt(data)
    hosts.parse_hosts_txt(b"atlas, " + data)
    people.parse_aliases(data)
    assert gpu_models.shorten_gpu_name(data.decode("latin-1"), gpu_models.parse_gpu_model_names(data)) is not None


def test_the_examples_in_data_are_understood() -> None:
    data = ROOT / "data"
    bookings = booking_parser.parse_bookings((data / "comments.json.example").read_bytes(), timezone.utc)
    listed = hosts.parse_hosts_txt((data / "hosts.txt.example").read_bytes())
    assert (len(bookings.rows), bookings.problems, bookings.is_complete) == (3, (), True)
    assert (len(listed.rows), listed.problems, listed.rows[2].maintenance) == (
        4,
        (),
        "new power supply, back on Friday",
    )
    assert people.parse_aliases((data / "aliases.csv.example").read_bytes())["carol"] == "Carol C."
    assert gpu_models.parse_gpu_model_names((data / "gpu-names.csv.example").read_bytes()) == {
        "NVIDIA A100-SXM4-80GB": "the big one"
    }
