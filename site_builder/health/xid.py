"""Xid errors: what NVIDIA's driver reports in the kernel log of a host when something is wrong with a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from site_builder.core.formatting import DAY
from site_builder.core.model import Xid
from site_builder.health.model import UNKNOWN_XID_CODE, XID_CODES, XID_KIND_PREFIX, EventValue, KnownXid, XidCode

# What the driver logs when its GPU needs a reset, and ending with these words, no more.
RECOVERY_CODE, RECOVERED_WORDS = 154, "(none)"
# A host that reads its log again from the beginning may calculate slightly other times. It tells two errors of one code
# and GPU apart if ten minutes are between them.
SAME_XID_WITHIN_S = 300
# A host reports errors of a week.
FORGET_AFTER_S, MAX_KNOWN_XIDS = 8 * DAY, 100


def get_xid_code(code: int) -> XidCode:
    return XID_CODES.get(code, UNKNOWN_XID_CODE)


def parse_xid_kind(kind: str) -> int:
    """Return the code in the kind of an event."""
    code = kind[len(XID_KIND_PREFIX) :]
    return int(code) if code.isdecimal() else 0


def describe_xid_event(kind: str, value: EventValue) -> str:
    """Describe an event about an Xid error: `Xid 13: a program caused an exception, 12 times`."""
    code = parse_xid_kind(kind)
    times, text, bus = (*value[:3], None, None, None)[:3]
    # the driver's words where they say more than ours
    what = text if code == RECOVERY_CODE and text else get_xid_code(code).what or text
    place = f" (PCI {bus})" if bus else ""
    repetitions = f", {times:,} times" if isinstance(times, int) and times > 1 else ""
    return f"Xid {code}{place}{f': {what}' if what else ''}{repetitions}"


def is_same_xid(known: Xid, reported: Xid) -> bool:
    is_same_kind = (known.bus, known.code) == (reported.bus, reported.code)
    return is_same_kind and abs(known.first - reported.first) <= SAME_XID_WITHIN_S


def select_known_xids(known_xids: Sequence[KnownXid], reported: Sequence[Xid], checked_at: int) -> tuple[KnownXid, ...]:
    """Return the errors to remember: those that the host reports, and others that it may report again."""
    kept = [known for known in known_xids if known.xid in reported or abs(checked_at - known.xid.last) < FORGET_AFTER_S]
    return tuple(sorted(kept, key=lambda known: (known.xid in reported, known.xid.last))[-MAX_KNOWN_XIDS:])
