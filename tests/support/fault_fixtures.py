"""Two hosts with a booking, and functions that are made to fail, for one of the hosts or for all."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from site_builder.board.outputs import host_json
from site_builder.core.model import AlertSettings
from tests.support.board_fixture import Lab, gpu, person, process, soon

EVIL = "evil"
CHANNEL = AlertSettings(channels=(("lab", "json://127.0.0.1:9"),))


def fill(lab: Lab, used: object = 7000, *extra_hosts: str) -> None:
    """Two hosts with a busy and a free GPU each, and a booking."""
    for name in ("good", EVIL, *extra_hosts):
        lab.host(
            name,
            gpu(0, used, 97, uuid=f"GPU-{name}-0") + gpu(1, uuid=f"GPU-{name}-1"),
            process(1, f"GPU-{name}-0"),
            person(1, "alice"),
        )
    lab.book({"good": {"0": {"name": "alice", "date": soon(9000)}}})


def break_function(
    monkeypatch: pytest.MonkeyPatch, dotted: str, when: Callable[..., bool] = lambda *_, **__: True
) -> list[int]:
    """Make a function raise, for the arguments of which `when` is true; each time is counted."""
    module, _, name = dotted.rpartition(".")
    if name.isdigit():  # of a table
        joined = list(host_json.JOINED_FILES)
        joined[int(name)] = joined[int(name)]._replace(join=lambda _: next(iter([])))
        monkeypatch.setattr(host_json, "JOINED_FILES", tuple(joined))
        return []
    try:
        owner: Any = importlib.import_module(f"site_builder.{module}")
    except ModuleNotFoundError:
        module, _, kind = module.rpartition(".")
        owner = getattr(importlib.import_module(f"site_builder.{module}"), kind)
    real = getattr(owner, name)
    count: list[int] = []

    def broken(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if when(*arguments, **named):
            count.append(1)
            message = f"nobody foresaw this, at {time.time_ns()}"
            raise RuntimeError(message)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, broken)
    return count


def is_evil(*arguments: object, **_: object) -> bool:
    """Whether a call is about that host, by whatever names it."""
    return any(name_of(argument) == EVIL for argument in arguments)


def name_of(argument: object) -> object:
    if isinstance(argument, (str, bytes)):
        return EVIL if f"host={EVIL} ".encode() in os.fsencode(argument)[:200] else argument
    discovered_host = getattr(argument, "discovered", argument)
    return getattr(discovered_host, "name", None) or getattr(discovered_host, "host", None)


def log_of(lab: Lab) -> str:
    return (lab.state / "build.log").read_text()
