"""What was made of each host: its card, its part of each file of the fleet, and what the fleet needs to know of it.

A card serves again as long as nothing that it was made of has changed and time makes no difference to it; state/ keeps
them from one builder to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from site_builder.alerts.conditions import ConditionInput, find_conditions, list_host_users
from site_builder.alerts.model import Condition
from site_builder.board import card
from site_builder.board.outputs import detail, live, metrics, status, term
from site_builder.board.outputs.term import TermPart
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.faults import locate_exception, split_by_success
from site_builder.core.files import compute_digest
from site_builder.core.html import escape_html
from site_builder.core.model import Booking, HostStatus
from site_builder.core.parallel import map_parallel
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT
from site_builder.core.records import DamagedFileError, Record, dump_json, make_decoder, read_records, write_records
from site_builder.fleet import summary as fleet_summary
from site_builder.fleet.build import RETRY_AFTER_S, DecidedHost, HostSources, build_unrendered_status, decide_host
from site_builder.fleet.gpu_state import StateRules
from site_builder.health.gpu_health import pack_host_health
from site_builder.health.model import PackedHealthMetrics
from site_builder.history.block_format import PackedSample, pack_sample
from site_builder.history.model import sample_host
from site_builder.waste import rules as waste_rules

STORE_NAME, STORE_TITLE = "cards.kept", "gpuboard cards 1"
# What an older gpuboard left: a pickle, which could execute code, and is never read.
OLD_STORE_NAME = "cards.pickle"
# The texts that stand behind a card in the file, before a part for each family of metrics.
TEXT_NAMES = (
    "card",
    "status_before_age",
    "status_after_age",
    "live_before_revision",
    "live_after_revision",
    "term_plain",
    "term_coloured",
    "detail",
)
TEXT_COUNT = len(TEXT_NAMES) + len(metrics.PER_HOST_FAMILIES)
# Seconds of CPU time that one host may cost a build; of a host that costs more nothing is read for so many seconds.
# The first card of a process may take longer: templates are compiled, and modules imported.
MAX_HOST_CPU_S, MAX_FIRST_HOST_CPU_S, PAUSE_S = 2.0, 10.0, 600
PAUSED_REASON = (
    f"its files take more than {MAX_HOST_CPU_S:.0f} s to read, and so are read only every {PAUSE_S // 60} minutes"
)


class HostDigests(NamedTuple):
    """What tells one content from the next."""

    card: bytes
    status: bytes
    card_structure: bytes
    term: bytes
    detail: bytes


class BuiltHost(NamedTuple):
    """What was made of a host, of what, and until when it holds."""

    fingerprint: bytes  # a digest of it
    valid_until: float
    card_html: bytes
    status_json: tuple[bytes, bytes]  # between which the age stands
    live_json: tuple[bytes, bytes]  # between which the revision stands
    term_part: TermPart
    detail_text: bytes
    metric_lines: tuple[bytes, ...]
    last_seen: float | None
    digests: HostDigests
    summary: fleet_summary.HostSummary
    packed_sample: PackedSample | None  # what history keeps of it, if it is fresh
    packed_health: PackedHealthMetrics | None  # and the signs of its GPUs' health
    waste_marks: tuple[waste_rules.WasteCandidate, ...] = ()
    conditions: tuple[Condition, ...] | None = ()  # what people may be told of it; None where that cannot be told
    people: tuple[str, ...] = ()  # who is on it, whether shown or not
    truncated_logins: tuple[tuple[str, str | None], ...] = ()  # logins that `ps` cut, and whose they were taken for


class StoredBuiltHost(NamedTuple):
    """A card as it is stored, without the bytes that stand behind it in the file."""

    host: str
    fingerprint: bytes
    valid_until: float | None  # None is for ever
    gpus_by_state: tuple[tuple[str, str], ...]
    last_seen: float | None
    digests: HostDigests
    summary: fleet_summary.HostSummary
    packed_sample: PackedSample | None
    packed_health: PackedHealthMetrics | None
    waste_marks: tuple[waste_rules.WasteCandidate, ...]
    conditions: tuple[Condition, ...] | None
    people: tuple[str, ...]
    truncated_logins: tuple[tuple[str, str | None], ...]


class HostPipeline:
    """The cards of all hosts; made anew only where something changed."""

    def __init__(self, state: Path) -> None:
        """Take up those of the last builder."""
        self.store_path = state / STORE_NAME
        self.common_fingerprint = b""
        self.built_hosts: dict[str, BuiltHost] = {}
        self.has_changes = False
        self.paused_until: dict[str, int] = {}  # hosts that are too expensive, and until when they are not read
        with suppress(DamagedFileError, ValueError):  # of a damaged file nothing counts, and all are made anew
            self.common_fingerprint, self.built_hosts = load_built_hosts(self.store_path)

    def build_hosts(
        self, fleet_hosts: Sequence[HostSources], rules: StateRules, names: dict[str, str], settings: Settings, now: Now
    ) -> dict[str, BuiltHost]:
        """The card of each host, in their order."""
        by = fingerprint_facts(
            (
                CODE_FINGERPRINT,
                now.local.utcoffset(),
                settings.limits,
                settings.privacy,
                str(settings.zone),
                tuple(names.items()),
                rules.people.aliases,
            )
        )
        if by != self.common_fingerprint:
            self.common_fingerprint, self.built_hosts = by, {}
        before, self.built_hosts = self.built_hosts, {}
        parts = [
            (host, fingerprint_host_safely(host, rules))
            for host in (self.drop_files_while_paused(one, now) for one in fleet_hosts)
        ]
        known = set(before)
        stale = []
        for host, made_of in parts:
            one = before.get(host.discovered.name)
            if (
                one is None
                or one.fingerprint != made_of
                or now.epoch >= one.valid_until
                or has_outdated_login(one, rules.people)
            ):
                stale.append((host, made_of))
                before.pop(host.discovered.name, None)  # the new ones have its room
        anew = map_parallel(
            lambda part: measure_cpu_time(lambda: build_host(part[0], rules, names, now.copy_with_own_expiry())), stale
        )
        made = {}
        for (host, made_of), (card, seconds) in zip(stale, anew):
            name = host.discovered.name
            made[name] = card._replace(fingerprint=made_of)
            if seconds > (MAX_FIRST_HOST_CPU_S if host is stale[0][0] else MAX_HOST_CPU_S) and not host.unread_reason:
                self.paused_until[name] = int(now.epoch) + PAUSE_S
                without = self.drop_files_while_paused(host, now)
                made[name] = build_host(without, rules, names, now.copy_with_own_expiry())._replace(
                    fingerprint=fingerprint_host_safely(without, rules)
                )
        self.built_hosts = {
            host.discovered.name: made.get(host.discovered.name) or before[host.discovered.name] for host, _ in parts
        }
        self.has_changes = self.has_changes or bool(stale) or known != self.built_hosts.keys()
        return self.built_hosts

    def drop_files_while_paused(self, host: HostSources, now: Now) -> HostSources:
        """Return the host, without its files while they are too expensive."""
        left = self.paused_until.get(host.discovered.name, 0) - now.epoch
        if 0 < left <= PAUSE_S:
            return replace(host, files=None, unread_reason=PAUSED_REASON)
        self.paused_until.pop(host.discovered.name, None)
        return host

    def save(self) -> None:
        """Keep them for the next builder."""
        if self.has_changes:
            write_records(self.store_path, STORE_TITLE, self.iterate_records())
            self.has_changes = False

    def iterate_records(self) -> Iterator[Record]:
        """Yield what is stored: what all cards were made by, and then each of them."""
        yield self.common_fingerprint.hex().encode(), []
        for host, card in self.built_hosts.items():
            with suppress(TypeError):  # a text that JSON cannot hold costs that host a new card
                yield serialize_built_host(host, card)


def serialize_built_host(host: str, card: BuiltHost) -> Record:
    """Return a card as a record: JSON, and the bytes that are published as they are."""
    stored = StoredBuiltHost(
        host=host,
        fingerprint=card.fingerprint,
        valid_until=None if card.valid_until == float("inf") else card.valid_until,
        gpus_by_state=card.term_part.gpus_by_state,
        last_seen=card.last_seen,
        digests=card.digests,
        summary=card.summary,
        packed_sample=card.packed_sample,
        packed_health=card.packed_health,
        waste_marks=card.waste_marks,
        conditions=card.conditions,
        people=card.people,
        truncated_logins=card.truncated_logins,
    )
    texts = [
        card.card_html,
        *card.status_json,
        *card.live_json,
        card.term_part.plain_rows,
        card.term_part.coloured_rows,
        card.detail_text,
        *card.metric_lines,
    ]
    return dump_json(stored), texts


def load_built_hosts(store: Path) -> tuple[bytes, dict[str, BuiltHost]]:
    """Load what the last builder stored: what all cards were made by, and each card whose types are right."""
    decode = make_decoder(StoredBuiltHost)
    records = read_records(store, STORE_TITLE)
    rules = bytes.fromhex(next(records, (b"", []))[0].decode("ascii"))
    cards = {}
    for text, texts in records:
        try:
            stored: StoredBuiltHost = decode(orjson.loads(text))
        except ValueError:  # a number that JSON cannot hold: this one is made anew
            continue
        if len(texts) != TEXT_COUNT:
            raise DamagedFileError(stored.host)
        named = dict(zip(TEXT_NAMES, texts))
        cards[stored.host] = BuiltHost(
            fingerprint=stored.fingerprint,
            valid_until=float("inf") if stored.valid_until is None else stored.valid_until,
            card_html=named["card"],
            status_json=(named["status_before_age"], named["status_after_age"]),
            live_json=(named["live_before_revision"], named["live_after_revision"]),
            term_part=TermPart(named["term_plain"], named["term_coloured"], stored.gpus_by_state),
            detail_text=named["detail"],
            metric_lines=tuple(texts[len(TEXT_NAMES) :]),
            last_seen=stored.last_seen,
            digests=stored.digests,
            summary=stored.summary,
            packed_sample=stored.packed_sample,
            packed_health=stored.packed_health,
            waste_marks=stored.waste_marks,
            conditions=stored.conditions,
            people=stored.people,
            truncated_logins=stored.truncated_logins,
        )
    return rules, cards


def fingerprint_facts(facts: object) -> bytes:
    """Return what tells one set of facts from another, in this process and the next."""
    return compute_digest(repr(facts).encode("utf-8", "surrogatepass"))


def fingerprint_host(host: HostSources, rules: StateRules) -> bytes:
    """What must be the same for a card to serve again, as a digest."""
    bookings = tuple(
        (
            one.gpu,
            one.name,
            one.until.timestamp(),
            one.since and one.since.timestamp(),
            one.comment,
            one.id,
            one.rrule,
            rules.people.is_known(one.name),
        )
        for one in host.bookings
    )
    # a login that ps cut may become clear when others are known
    logins = len(rules.people.known_names) if bookings else 0
    facts = (
        host.files.fingerprint if host.files else None,
        host.discovered,
        bookings,
        logins,
        dict(host.sparklines),
        host.unread_reason,
    )
    return fingerprint_facts(facts)


def fingerprint_host_safely(host: HostSources, rules: StateRules) -> bytes:
    """The same; where a booking has a date that cannot be compared, by what it says."""
    try:
        return fingerprint_host(host, rules)
    except Exception:  # a fault of ours must not cost the other hosts
        return fingerprint_facts(
            (
                host.files.fingerprint if host.files else None,
                host.discovered,
                repr(host.bookings),
                0,
                dict(host.sparklines),
            )
        )


def has_outdated_login(card: BuiltHost, people: PeopleDirectory) -> bool:
    """Whether a login that `ps` cut is now known to be somebody's, or may be a second person's too."""
    return any(people.find_full_login(login) != whole for login, whole in card.truncated_logins)


def measure_cpu_time(work: Callable[[], BuiltHost]) -> tuple[BuiltHost, float]:
    """A card, and how many seconds of CPU time it took."""
    began = time.thread_time()
    return work(), time.thread_time() - began


def build_host(host: HostSources, rules: StateRules, names: dict[str, str], now: Now) -> BuiltHost:
    """Build everything that one host contributes: parse its files, decide its state, render its parts of the site.

    This is the heart of the builder. A fault of ours costs this host alone: it is shown as failed, and tried again soon.
    """
    decided = decide_host(host, rules, names, now)
    try:
        return render_host(host, decided, rules, now)
    except Exception as error:  # a fault of ours must not cost the other hosts
        place = locate_exception(error)
    now.has_passed(now.epoch + RETRY_AFTER_S)
    nameless = HostStatus(decided.status.name, None, (), "failed", "")
    for failed_status in (build_unrendered_status(decided.status, place), build_unrendered_status(nameless, place)):
        with suppress(Exception):
            without_gpus = decided._replace(status=failed_status, gpus_taken_at=None)
            return render_host(replace(host, sparklines={}), without_gpus, rules, now)
    return build_fallback_host(failed_status, now)


def render_host(host: HostSources, decided: DecidedHost, rules: StateRules, now: Now) -> BuiltHost:
    """Render all parts of a host, and collect what history, health and alerts need of it."""
    host_status, gpus_taken_at = decided.status, decided.gpus_taken_at
    host_card = card.build_card(host_status, now, lines=host.sparklines)
    card_html = card.render_card(host_card).encode()
    status_json = status.render_status_host(host_status)
    term_part = term.render_term_host(host_status)
    status_digest = compute_digest(*status_json)
    interfaces = host_status.facts and host_status.facts.interfaces
    digests = HostDigests(
        card=compute_digest(card_html),
        status=status_digest,
        card_structure=compute_digest(card.serialize_card_structure(host_card)),
        term=compute_digest(term_part.coloured_rows, repr(term_part.gpus_by_state).encode()),
        # detail.txt shows these two, and otherwise what is in status.json
        detail=compute_digest(status_digest, repr((gpus_taken_at, interfaces)).encode()),
    )
    # may shorten how long all of this holds, so it comes before holds_until is read
    conditions = find_host_conditions(host, decided, rules, now)
    return BuiltHost(
        fingerprint=b"",
        valid_until=now.valid_until,
        card_html=card_html,
        status_json=status_json,
        live_json=live.render_live_host(host_status, host_card),
        term_part=term_part,
        detail_text=detail.render_detail_host(host_status, gpus_taken_at, now),
        metric_lines=metrics.render_host_metrics(host_status),
        last_seen=host_status.last_seen,
        digests=digests,
        summary=fleet_summary.summarize_host(host_status, gpus_taken_at),
        packed_sample=pack_host_sample(host_status),
        packed_health=pack_host_health(host_status, gpus_taken_at),
        waste_marks=waste_rules.find_waste_candidates(host_status),
        conditions=conditions,
        people=list_host_users(host_status),
        truncated_logins=tuple((login, rules.people.find_full_login(login)) for login in host_status.truncated_logins),
    )


def find_host_conditions(
    host: HostSources, decided: DecidedHost, rules: StateRules, now: Now
) -> tuple[Condition, ...] | None:
    """Find the conditions of a host; a booking at which that fails does not count.

    Return None after a fault of ours: what of them is over is unknown then.
    """
    if decided.has_parse_failed:
        return None

    def use(bookings: Sequence[Booking]) -> tuple[Condition, ...]:
        return find_conditions(decided.status, ConditionInput(bookings, decided.snapshot), rules, now)

    with suppress(Exception):  # what its files are like is reported with its status
        return use(host.bookings)
    with suppress(Exception):
        use(())  # or it is not for the bookings
        return use(split_by_success(host.bookings, use)[0])
    return None


def build_fallback_host(board: HostStatus, now: Now) -> BuiltHost:
    """A card without any of the renderers: that there is such a host, and why no more is shown of it."""
    name, reason = (escape_html(text) for text in (board.name, board.reason))
    html = f'<section class="host failed" id="{name}"><header><h2>{name}</h2> <span class="state failed">failed</span>'
    html += f"</header><p class=note>{reason}</p></section>"
    shown: dict[str, Any] = {"name": board.name, "title": None, "tags": [], "state": "failed", "reason": board.reason}
    rest: dict[str, Any] = {
        "load": None,
        "cpus": None,
        "memory": {"total": None, "available": None},
        "disks": [],
        "gpus": [],
    }
    line = f"|{board.name[: term.HOST_WIDTH]:{term.HOST_WIDTH}}| {'! failed':{term.GPU_WIDTH - 1}}{term.EMPTY_READINGS}|\n".encode()
    told = compute_digest(repr((board.name, board.reason)).encode())
    return BuiltHost(
        fingerprint=b"",
        valid_until=now.epoch + RETRY_AFTER_S,
        card_html=html.encode(),
        status_json=(orjson.dumps({**shown, "seen": None})[:-1] + b',"age":', b"," + orjson.dumps(rest)[1:]),
        live_json=(orjson.dumps([board.name])[:-1] + b",", b"," + orjson.dumps(["failed", None, "", "", "", []])[1:]),
        term_part=TermPart(line, line, ()),
        detail_text=f"{board.name}\n! failed: {board.reason}\n\n".encode(),
        metric_lines=metrics.render_failed_host_metrics(board.name),
        last_seen=None,
        digests=HostDigests(told, told, told, told, told),
        summary=fleet_summary.summarize_unknown_host("failed", board.problems),
        packed_sample=None,
        packed_health=None,
        conditions=None,
    )


def pack_host_sample(board: HostStatus) -> PackedSample | None:
    """What history keeps of a host at this moment; nothing of one that is not fresh."""
    found = sample_host(board)
    return pack_sample(found) if found else None
