"""Times that are over, as people say them: `7d`, `2 days ago`, `yesterday`, `mon 9:00`, `2026-10-01`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from site_builder.core.timeparse import dst, durations, moments
from site_builder.core.timeparse.durations import Length, Unclear
from site_builder.core.timeparse.time_of_day import Clock, parted

AGO = " ago"
AHEAD = ("+", "in ")


class Asked(moments.Asked):
    """For whom a text is read."""

    def examples(self) -> tuple[str, str]:
        """What can always be written."""
        return "7d", str(self.today() - moments.WEEK)


def moment(text: str, now: datetime, *, end: bool = False) -> datetime:
    """The moment that a text says, which is not after `now`; a length counts back from there."""
    asked = Asked(now, now, end, now.tzinfo or timezone.utc)
    return moments.checked(moment_of(text, asked), asked)


def moment_of(text: str, asked: Asked) -> datetime:
    """Parse a text, by the first reading that fits."""
    now, end = asked.now, asked.end
    text = moments.ISO_T.sub(r"\1 ", durations.tidy(text, *asked.examples()))
    bare = text[: -len(AGO)] if text.lower().endswith(AGO) else text
    if bare.lower() == "now":
        return now
    amount = durations.find(bare.lstrip("-"))
    if amount:
        if bare.lower().startswith(AHEAD):
            raise Unclear("has not come yet", *asked.examples())
        return before(amount, asked)
    day, clock = parted(bare)
    found = near_day(day, clock, asked) or moments.full_date(day, clock, asked)
    if is_over(found, asked):
        return found
    if not end:
        raise Unclear("has not come yet", *asked.examples())
    if is_whole(clock) and found == moments.settled(Clock(24).on(asked.today()), asked.zone):
        raise Unclear("could be the beginning of that day or this moment", f"{asked.today()} 00:00", "now")
    return now


def is_over(moment: datetime, asked: Asked) -> bool:
    """Whether it has come; of two times in one zone, Python compares what the clock shows, which it may show twice."""
    return moment.timestamp() <= asked.now.timestamp()


def is_whole(clock: Clock | None) -> bool:
    """Whether a day is named with none of its hours."""
    return clock is None or clock.midnight


def before(amount: Length, asked: Asked) -> datetime:
    """That much earlier; a day ago is at the same clock time."""
    now, zone = asked.now, asked.zone
    start = dst.first(dst.here(now, zone) - timedelta(days=amount.days), zone) if amount.days else now
    return (start.astimezone(timezone.utc) - timedelta(seconds=amount.seconds)).astimezone(zone)


def near_day(day: str, clock: Clock | None, asked: Asked) -> datetime | None:
    """`today`, `yesterday`, or the last day of that name; a clock time alone is that of today."""
    name, today = day.lower(), asked.today()
    if name in {"", "today"}:
        return moments.at(today, clock, asked, name) if clock or name else None
    if name == "yesterday":
        return moments.at(today - timedelta(days=1), clock, asked, name)
    found = moments.DAY_NAME.fullmatch(day)
    wanted = moments.WEEKDAYS.get(found[2].lower()) if found and not found[1] else None
    if wanted is None:
        return None
    last = today - timedelta(days=(today.weekday() - wanted) % 7)
    told = moments.at(last, clock, asked, str(last))
    if is_over(told, asked) or (asked.end and is_whole(clock)):
        return told
    return moments.at(last - moments.WEEK, clock, asked, str(last - moments.WEEK))
