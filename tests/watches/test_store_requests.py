"""Requests as people write them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_builder.core.model import FreeGpu
from site_builder.core.timeparse.moments import UnclearTimeError
from site_builder.watches import store as watch_store
from site_builder.watches.build import WatchFreeGpuIndex, format_watch_gpu_places
from site_builder.watches.store import WatchedGpus

SAID = {
    "2 A100 free on one host": "2 A100 free on one host",
    "any GPU with 40 GB": "1 GPU with 40 GB or more free",
    "1 H100 free on atlas for 4h": "1 H100 free on atlas for 4 h or longer",
    "free": "1 GPU free",
    "A GPU, please!": "1 GPU free",
    "4090 free": "1 4090 free",
    "2x3090": "2 3090 free on one host",
    "2 x RTX 4090": "2 RTX 4090 free on one host",
    "A100 ×2": "2 A100 free on one host",
    "3090 x2": "2 3090 free on one host",
    "X1": "1 X1 free",
    "2 H100s on the same machine": "2 H100 free on one host",
    "two l40s": "2 L40S free on one host",
    "2 MI300X": "2 MI300X free on one host",
    "NVIDIA A100-80GB": "1 A100 with 80 GB or more free",
    "notify me when there are 2 A100 available": "2 A100 free on one host",
    "two RTX A6000 with at least 48GB of memory each for a day": (
        "2 RTX A6000 with 48 GB or more free on one host for 1 d or longer"
    ),
    "RTX 2080 Ti on atlas, zeus, or hydra": "1 RTX 2080 Ti free on atlas or zeus or hydra",
    "3 gpus on gpu01.lab.example.org": "3 GPUs free on gpu01.lab.example.org",
    "16 h100 in total": "16 H100 free anywhere",
    "4 GPUs across hosts for 1d12h or longer": "4 GPUs free anywhere for 1 d 12 h or longer",
    "one GPU anywhere": "1 GPU free",
    "2 TITAN V": "2 TITAN V free on one host",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "1 RTX PRO 6000 Blackwell Workstation Edition free",
    "≥24GiB": "1 GPU with 24 GB or more free",
}
UNCLEAR = {
    "": "is empty",
    " . ": "is empty",
    "x" * 300: "is too long",
    "hello world": 'is not understood at "hello"',
    "all A100": 'is not understood at "all"',
    "2 A100 and 2 H100": 'is not understood at "2"',
    "A100 or H100": 'is not understood at "or"',
    "0 A100": "asks for 0 GPUs",
    "A100 x0": "asks for 0 GPUs",
    "2 A100 x2": "gives the number twice",
    "1 GPU with 0 GB": "asks for 0 GB of memory",
    "2 GPUs on one host anywhere": "asks for one host and for several hosts",
    "1 GPU for 0h": "is zero",
    "1 GPU for 2 months": "has a unit of varying length",
    "<!channel> A100": 'is not understood at "<!channel>"',
}


@pytest.mark.parametrize("text", SAID)
def test_requests_are_parsed_and_formatted_again(text: str) -> None:
    wish = watch_store.parse_watched_gpus(text)
    assert watch_store.format_watched_gpus(wish) == SAID[text]
    assert watch_store.parse_watched_gpus(watch_store.format_watched_gpus(wish)) == wish


@pytest.mark.parametrize("text", UNCLEAR)
def test_unclear_requests_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UnclearTimeError) as why:
        watch_store.parse_watched_gpus(text)
    assert str(why.value).startswith(f"{UNCLEAR[text]}: write ")
    for one in why.value.examples:
        if "GPU" in one or "A100" in one:
            watch_store.parse_watched_gpus(one)


WORDS = [
    "2",
    "a",
    "A100",
    "free",
    "on",
    "for",
    "4h",
    "or",
    "x",
    "atlas",
    "40 GB",
    "host",
    "one",
    "anywhere",
    "RTX",
    ",",
]


@given(st.text(max_size=250) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
@example("on on on")
@example("2x AX2")
@example("X0A")
@example("2x" * 60)
@example("for 1 h " * 20)
def test_any_text_is_unclear_or_can_be_formatted_again(text: str) -> None:
    try:
        wish = watch_store.parse_watched_gpus(text)
    except UnclearTimeError:
        return
    assert watch_store.parse_watched_gpus(watch_store.format_watched_gpus(wish)) == wish
    assert wish.gpu_count >= 1


# Which GPUs fulfil one

NOW = 1_000_000.0
FREE = (
    FreeGpu("A100 40 GB", 40960, "atlas", 0),
    FreeGpu("A100 40 GB", 40960, "atlas", 3, NOW + 3600),
    FreeGpu("A100 80 GB", 81920, "zeus", 1),
    FreeGpu("RTX A1000 8 GB", 8192, "zeus", 2),
    FreeGpu("RTX 4090 24 GB", 24564, "juno", None),
)


@pytest.mark.parametrize(
    ("text", "gpu_places"),
    [
        ("1 GPU", "atlas:0"),
        ("2 A100", "atlas:0,3"),
        ("2 A100 for 1h", "atlas:0,3"),
        ("2 A100 for 2h", ""),
        ("2 A100 anywhere for 2h", "atlas:0 and zeus:1"),
        ("3 A100", ""),
        ("3 A100 anywhere", "atlas:0,3 and zeus:1"),
        ("A100 80GB", "zeus:1"),
        ("A100 on zeus.lab.example.org", "zeus:1"),
        ("A100 on juno or zeus", "zeus:1"),
        ("A1000", "zeus:2"),
        ("A10", ""),
        ("H100", ""),
        ("1 GPU with 24 GB on juno", "juno:?"),
        ("1 GPU with 81 GB", "zeus:1"),
        ("1 GPU with 90 GB", ""),
        ("5 GPUs anywhere", "atlas:0,3, zeus:1,2 and juno:?"),
        ("6 GPUs anywhere", ""),
    ],
)
def test_a_request_is_met_by_gpus_that_are_free_long_enough(text: str, gpu_places: str) -> None:
    assert (
        format_watch_gpu_places(WatchFreeGpuIndex(FREE, NOW).find_gpus(watch_store.parse_watched_gpus(text)))
        == gpu_places
    )


def test_an_empty_request_asks_for_any_gpu() -> None:
    assert watch_store.parse_watched_gpus("gpu") == WatchedGpus()
