"""A lab in which people book through the service."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from dateutil import tz

from site_builder.bookings import service as booking_service
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.core.model import BookingPolicy, StateLimits
from tests.support.board_fixture import Lab

PARIS = tz.gettz("Europe/Paris")


# A Monday that is not over yet, so that all that a test writes has been there before
NOW = datetime(2029, 11, 12, 10, 30, tzinfo=PARIS)


FRESH = StateLimits(stale_after=1e10, down_after=2e10)


ALICE, BOB, ADMIN = BookingUser("alice"), BookingUser("bob"), BookingUser("root", is_admin=True)


class Counter:
    """A booking service in a lab, at a moment that a test sets."""

    def __init__(self, lab: Lab, **rules: Any) -> None:  # noqa: ANN401
        self.lab = lab
        self.time = NOW.timestamp()
        self.service = BookingService(
            lab.settings(zone=PARIS, limits=FRESH, booking_policy=BookingPolicy(**rules)), lambda: self.time
        )

    def do(
        self,
        who: BookingUser = ALICE,
        since: str | None = None,
        length: str | None = None,
        **request: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        time_fields = {key: value for key, value in (("from", since), ("for", length)) if value}
        return booking_service.handle_service_request(self.service, {**request, **time_fields}, who)

    def book(
        self,
        *gpus: str,
        who: BookingUser = ALICE,
        since: str | None = None,
        length: str | None = "2h",
        **extra_fields: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        return self.do(who, since, length, **{"do": "book", "gpus": list(gpus), **extra_fields})

    def after(self, **time: float) -> None:
        self.time += sum(value * {"hours": 3600, "minutes": 60, "days": 86400}[unit] for unit, value in time.items())

    @property
    def path(self) -> Path:
        return self.lab.data / "comments.json"

    def content(self) -> Any:  # noqa: ANN401
        return json.loads(self.path.read_text())

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.lab.data / "bookings.log").read_text().splitlines()]


def refusal(act: Any, error: type[Exception] = BookingRefusedError) -> str:  # noqa: ANN401
    with pytest.raises(error) as raised:
        act()
    assert type(raised.value) is error
    return str(raised.value)
