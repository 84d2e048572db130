"""The small files that a person keeps: hosts.txt, aliases.csv, gpu-names.csv."""

from __future__ import annotations

from datetime import timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings import parser as booking_parser
from site_builder.core import people
from site_builder.core.model import ListedHost
from site_builder.core.names import is_host_name
from site_builder.discovery import hosts as discovery_hosts
from site_builder.fleet import gpu_models
from tests.support.captures import ROOT


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("atlas", ListedHost("atlas")),
        ("192.168.0.1", ListedHost("192.168.0.1")),
        ("atlas, The big one, vision nlp  # in room 7", ListedHost("atlas", "The big one", ("vision", "nlp"))),
        ("atlas,,vision", ListedHost("atlas", None, ("vision",))),
        ("atlas, hidden", ListedHost("atlas", is_hidden=True)),
        ("atlas, Big, a b, hidden", ListedHost("atlas", "Big", ("a", "b"), is_hidden=True)),
        ("atlas, maintenance: new fans, back on Monday", ListedHost("atlas", maintenance="new fans, back on Monday")),
        ("atlas, Big, maintenance", ListedHost("atlas", "Big", maintenance="no reason given")),
        ("atlas, Big, a, hidden, maintenance: x", ListedHost("atlas", "Big", ("a",), "x", is_hidden=True)),
    ],
)
def test_a_line_of_hosts(line: str, host: ListedHost) -> None:
    dump = discovery_hosts.parse_hosts_txt(f"# our hosts\n\n{line}\r\n".encode())
    assert (dump.rows, dump.problems) == ((host,), ())


def test_names_that_are_none_and_names_twice_are_told() -> None:
    dump = discovery_hosts.parse_hosts_txt(b"atlas\n../../etc\natlas, again\na b\n")
    assert dump.rows == (ListedHost("atlas"),)
    assert dump.problems == (
        "line 2: '../../etc' is not a host name",
        "line 3: atlas stands there twice; the first line counts",
        "line 4: 'a b' is not a host name; put commas between name, title and tags",
    )


@pytest.mark.parametrize("name", ["../x", "a/b", 'a b"<x>', "", ".x", "-x", "a\n", "ü", "a" * 64])
def test_what_is_not_a_host_name(name: str) -> None:
    assert not is_host_name(name)


@pytest.mark.parametrize("name", ["a", "gpu01", "GPU_1", "a.b-c", "a" * 63, "1"])
def test_what_is_a_host_name(name: str) -> None:
    assert is_host_name(name)


def test_the_last_alias_is_shown_and_case_does_not_matter() -> None:
    shown = people.parse_aliases(b"trobert, robert, Thomas  # note\n\n# alone\nbob\n")
    assert shown == {"trobert": "Thomas", "robert": "Thomas", "thomas": "Thomas", "bob": "bob"}


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
def test_short_names(name: str, expected: str) -> None:
    assert (
        gpu_models.shorten_gpu_name(name, gpu_models.parse_gpu_names(b"# ours\nMy GPU, the old one\nbroken line\n"))
        == expected
    )


@given(st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_nothing_makes_the_readers_fail(data: bytes) -> None:
    discovery_hosts.parse_hosts_txt(data)
    discovery_hosts.parse_hosts_txt(b"atlas, " + data)
    people.parse_aliases(data)
    assert gpu_models.shorten_gpu_name(data.decode("latin-1"), gpu_models.parse_gpu_names(data)) is not None


def test_the_examples_in_data_are_understood() -> None:
    data = ROOT / "data"
    bookings = booking_parser.parse_bookings((data / "comments.json.example").read_bytes(), timezone.utc)
    hosts = discovery_hosts.parse_hosts_txt((data / "hosts.txt.example").read_bytes())
    assert (len(bookings.rows), bookings.problems, bookings.is_complete) == (3, (), True)
    assert (len(hosts.rows), hosts.problems, hosts.rows[2].maintenance) == (4, (), "new power supply, back on Friday")
    assert people.parse_aliases((data / "aliases.csv.example").read_bytes())["trobert"] == "Thomas R."
    assert gpu_models.parse_gpu_names((data / "gpu-names.csv.example").read_bytes()) == {
        "NVIDIA A100-SXM4-80GB": "the big one"
    }
