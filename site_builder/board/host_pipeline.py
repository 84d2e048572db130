"""The heart of the builder: from the files that a host sent to everything that the site shows of it.

HostPipeline.build_hosts goes through all hosts of the board. run_host_pipeline makes one: parse, decide, render.
A built host serves again as long as its sources are the same and time makes no difference to it; state/ keeps built
hosts from one builder to the next.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from site_builder.alerts.conditions import find_conditions, list_condition_host_users
from site_builder.alerts.model import Condition
from site_builder.board import card
from site_builder.board.outputs import detail, metrics, term
from site_builder.core import records
from site_builder.core.clock import Now
from site_builder.core.faults import locate_exception, split_by_fault
from site_builder.core.files import compute_digest
from site_builder.core.html import escape_html
from site_builder.core.model import Booking, HostStatus
from site_builder.core.parallel import map_parallel
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT
from site_builder.fleet import status_json
from site_builder.fleet import summary as fleet_summary
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import (
    RETRY_AFTER_S,
    BuiltHostStatus,
    HostStatusSources,
    build_host_status,
    build_unrendered_host_status,
)
from site_builder.health.gpu_health import pack_gpu_health
from site_builder.health.model import PackedHealthMetrics
from site_builder.history.block_format import PackedSample, pack_sample
from site_builder.history.writer import sample_host
from site_builder.waste import rules as waste_rules

STORE_NAME, STORE_TITLE = "cards.kept", "gpuboard cards 1"
# Left by an older gpuboard: a pickle, which could execute code, and is never read.
OLD_STORE_NAME = "cards.pickle"
# Seconds of CPU time that one host may cost a build; the files of a host that costs more are not read for PAUSE_S.
# The first host of a process may take longer: templates are compiled, and modules imported.
MAX_HOST_CPU_S, MAX_FIRST_HOST_CPU_S, PAUSE_S = 2.0, 10.0, 600
PAUSED_REASON = (
    f"its files take more than {MAX_HOST_CPU_S:.0f} s to parse and are parsed only every {PAUSE_S // 60} minutes"
)
# Means no time limit: JSON has no infinity.
FOREVER = 1e12


class HostDigests(NamedTuple):
    """Digests by which the files of the fleet know whether this host's part of them has changed."""

    card: bytes
    status: bytes
    card_structure: bytes
    term: bytes
    detail: bytes


class RenderedHost(NamedTuple):
    """The parts of a host that are published as they are."""

    card_html: bytes
    status_before_age: bytes
    status_after_age: bytes
    live_before_revision: bytes
    live_after_revision: bytes
    term_rows: bytes
    term_coloured_rows: bytes
    detail_text: bytes


NOT_RENDERED = RenderedHost._make([b""] * len(RenderedHost._fields))


class BuiltHost(NamedTuple):
    """Everything that one host contributes to the site, to history and to alerts."""

    fingerprint: bytes  # of its sources
    valid_until: float
    rendered: RenderedHost
    metric_lines: tuple[bytes, ...]  # for each of metrics.PER_HOST_FAMILIES
    gpus_by_state: tuple[tuple[str, str], ...]
    last_seen: float | None
    digests: HostDigests
    summary: fleet_summary.HostSummary
    packed_sample: PackedSample | None  # for history, if the host is fresh
    packed_health: PackedHealthMetrics | None
    waste_candidates: tuple[waste_rules.WasteCandidate, ...] = ()
    conditions: tuple[Condition, ...] | None = ()  # None after a fault: it is unknown which of them are over
    people: tuple[str, ...] = ()  # who is on it, even if the page does not show people
    truncated_logins: tuple[tuple[str, str | None], ...] = ()  # logins that `ps` cut, and whose they were taken for

    def load_status(self) -> dict[str, Any]:
        """Return the host as it is in status.json, without its age."""
        content = b"".join((self.rendered.status_before_age, b"null", self.rendered.status_after_age))
        host_status: dict[str, Any] = orjson.loads(content)
        return host_status


BuiltHosts = Mapping[str, BuiltHost]


class HostPipeline:
    """Builds all hosts of the board, and reuses those that are still valid."""

    def __init__(self, state: Path) -> None:
        self.store_path = state / STORE_NAME
        self.common_fingerprint = b""
        self.built_hosts: dict[str, BuiltHost] = {}
        self.has_changes = False
        self.decided_hosts: dict[str, BuiltHostStatus] = {}  # what pages of hosts take over, until the next build
        self.paused_until: dict[str, int] = {}  # hosts that cost too much, and until when their files are not read
        with suppress(records.DamagedFileError, ValueError):  # after damage all hosts are rebuilt
            self.common_fingerprint, self.built_hosts = load_pipeline_store(self.store_path)

    def build_hosts(
        self,
        hosts: Sequence[HostStatusSources],
        rules: StateRules,
        now: Now,
        hosts_with_due_pages: Container[str] = (),
    ) -> dict[str, BuiltHost]:
        """Return all built hosts, in the order of their sources; build those that are new or no longer valid."""
        common_facts = (str(now.zone), now.local.utcoffset(), rules.limits, rules.privacy, dict(rules.gpu_names))
        common_fingerprint = fingerprint_pipeline_facts((CODE_FINGERPRINT, *common_facts, rules.people.aliases))
        previous = self.built_hosts if common_fingerprint == self.common_fingerprint else {}
        self.common_fingerprint, self.built_hosts = common_fingerprint, {}
        previous_names = set(previous)
        hosts = [self.drop_files_while_paused(host, now) for host in hosts]
        fingerprints = [fingerprint_host(host, rules) for host in hosts]
        outdated = []
        for host, fingerprint in zip(hosts, fingerprints):
            built_host = previous.get(host.discovered.name)
            is_valid = (
                built_host is not None
                and built_host.fingerprint == fingerprint
                and now.epoch < built_host.valid_until
                and all(rules.people.find_full_login(login) == full for login, full in built_host.truncated_logins)
            )
            if not is_valid:
                outdated.append((host, fingerprint))
                previous.pop(host.discovered.name, None)  # frees its memory before the new one needs it

        def build_with_cpu_time(
            item: tuple[HostStatusSources, bytes],
        ) -> tuple[BuiltHost, BuiltHostStatus | None, float]:
            began = time.thread_time()
            built_host, decided = run_host_pipeline(item[0], rules, now.copy_with_own_expiry(), item[1])
            is_page_due = item[0].discovered.name in hosts_with_due_pages
            return built_host, decided if is_page_due else None, time.thread_time() - began

        rebuilt = {}
        max_cpu_s = MAX_FIRST_HOST_CPU_S
        for (host, _), result in zip(outdated, map_parallel(build_with_cpu_time, outdated)):
            name, (built_host, decided, cpu_s) = host.discovered.name, result
            if cpu_s > max_cpu_s and not host.unread_reason:
                self.paused_until[name] = int(now.epoch) + PAUSE_S
                paused_host = self.drop_files_while_paused(host, now)
                fingerprint = fingerprint_host(paused_host, rules)
                built_host, decided, _ = build_with_cpu_time((paused_host, fingerprint))
            rebuilt[name] = built_host
            if decided:
                self.decided_hosts[name] = decided
            max_cpu_s = MAX_HOST_CPU_S
        names = [host.discovered.name for host in hosts]
        self.built_hosts = {name: rebuilt.get(name) or previous[name] for name in names}
        self.has_changes = self.has_changes or bool(outdated) or previous_names != self.built_hosts.keys()
        return self.built_hosts

    def drop_files_while_paused(self, host: HostStatusSources, now: Now) -> HostStatusSources:
        """Return the host, without its files while they cost too much."""
        seconds_left = self.paused_until.get(host.discovered.name, 0) - now.epoch
        if 0 < seconds_left <= PAUSE_S:
            return replace(host, files=None, unread_reason=PAUSED_REASON)
        self.paused_until.pop(host.discovered.name, None)
        return host

    def save(self) -> None:
        if self.has_changes:
            dump = dump_pipeline_store(self.common_fingerprint, self.built_hosts)
            records.write_record_file(self.store_path, STORE_TITLE, dump)
            self.has_changes = False


# One host


def run_host_pipeline(
    host: HostStatusSources, rules: StateRules, now: Now, fingerprint: bytes = b""
) -> tuple[BuiltHost, BuiltHostStatus]:
    """Build everything that one host contributes: parse its files, decide its state, render its parts of the site.

    Return also what its page is made of. A fault of ours costs this host alone: it is shown as failed, and tried again
    soon.
    """
    decided = build_host_status(host, rules, now)
    try:
        built_host = render_built_host(host, decided, rules, now, fingerprint)
        return built_host, decided._replace(snapshot=None)  # the largest part, and its page shows nothing of it
    except Exception as error:  # a fault of ours must not cost the other hosts
        place = locate_exception(error)
    now.has_passed(now.epoch + RETRY_AFTER_S)
    bare_status = HostStatus(decided.status.name, None, (), "failed", "")
    for failed_status in (
        build_unrendered_host_status(decided.status, place),
        build_unrendered_host_status(bare_status, place),
    ):
        with suppress(Exception):
            failed = decided._replace(status=failed_status, gpus_taken_at=None)
            built_host = render_built_host(replace(host, sparklines={}), failed, rules, now, fingerprint)
            return built_host, failed._replace(snapshot=None)
    return build_fallback_host(failed_status, now, fingerprint), BuiltHostStatus(failed_status)


def render_built_host(
    host: HostStatusSources, decided: BuiltHostStatus, rules: StateRules, now: Now, fingerprint: bytes
) -> BuiltHost:
    """Render all parts of a host, and collect what history, health and alerts need of it."""
    host_status, gpus_taken_at = decided.status, decided.gpus_taken_at
    host_card = card.build_card(host_status, now, sparklines=host.sparklines)
    card_html = card.render_card(host_card).encode()
    status_before_age, status_after_age = status_json.render_status_host(host_status, gpus_taken_at)
    live_before_revision, live_after_revision = card.render_live_card_numbers(host_status, host_card)
    term_part = term.render_term_host(host_status)
    status_digest = compute_digest(status_before_age, status_after_age)
    interfaces = host_status.facts and host_status.facts.interfaces
    digests = HostDigests(
        card=compute_digest(card_html),
        status=status_digest,
        card_structure=compute_digest(card.serialize_card_structure(host_card)),
        term=compute_digest(term_part.coloured_rows, repr(term_part.gpus_by_state).encode()),
        # detail.txt shows these two, and otherwise what is in status.json
        detail=compute_digest(status_digest, repr((gpus_taken_at, interfaces)).encode()),
    )
    rendered = RenderedHost(
        card_html=card_html,
        status_before_age=status_before_age,
        status_after_age=status_after_age,
        live_before_revision=live_before_revision,
        live_after_revision=live_after_revision,
        term_rows=term_part.plain_rows,
        term_coloured_rows=term_part.coloured_rows,
        detail_text=detail.render_detail_host(host_status, gpus_taken_at, now),
    )
    sample = sample_host(host_status)
    # may shorten how long all of this is valid, so it comes before valid_until is read
    conditions = find_pipeline_conditions(host, decided, rules, now)
    return BuiltHost(
        fingerprint=fingerprint,
        valid_until=min(now.valid_until, FOREVER),
        rendered=rendered,
        metric_lines=metrics.render_host_metrics(host_status),
        gpus_by_state=term_part.gpus_by_state,
        last_seen=host_status.last_seen,
        digests=digests,
        summary=fleet_summary.summarize_host(host_status, gpus_taken_at),
        packed_sample=pack_sample(sample) if sample else None,
        packed_health=pack_gpu_health(host_status, gpus_taken_at),
        waste_candidates=waste_rules.find_waste_candidates(host_status),
        conditions=conditions,
        people=list_condition_host_users(host_status),
        truncated_logins=tuple((login, rules.people.find_full_login(login)) for login in host_status.truncated_logins),
    )


def find_pipeline_conditions(
    host: HostStatusSources, decided: BuiltHostStatus, rules: StateRules, now: Now
) -> tuple[Condition, ...] | None:
    """Find the conditions of a host; leave out a booking at which that fails.

    Return None after a fault of ours: it is unknown which conditions are over.
    """
    if decided.has_parse_failed:
        return None

    def find_with_bookings(bookings: Sequence[Booking]) -> tuple[Condition, ...]:
        return find_conditions(decided.status, bookings, decided.snapshot, rules, now)

    with suppress(Exception):  # problems of its files are reported with its status
        return find_with_bookings(host.bookings)
    with suppress(Exception):
        find_with_bookings(())  # fails where bookings are not the reason
        return find_with_bookings(split_by_fault(host.bookings, find_with_bookings)[0])
    return None


def build_fallback_host(host_status: HostStatus, now: Now, fingerprint: bytes) -> BuiltHost:
    """Build a failed host by hand, without the renderers: its name, and why no more is shown of it."""
    name, reason = host_status.name, host_status.reason
    name_html, reason_html = escape_html(name), escape_html(reason)
    card_html = (
        f'<section class="host failed" id="{name_html}"><header><h2>{name_html}</h2> '
        f'<span class="state failed">failed</span></header><p class=note>{reason_html}</p></section>'
    )
    before_age = orjson.dumps(
        {"name": name, "title": None, "tags": [], "state": "failed", "reason": reason, "seen": None}
    )
    memory = {"total": None, "available": None}
    after_age = orjson.dumps({"load": None, "cpus": None, "memory": memory, "disks": [], "gpus": []})
    term_row = (
        f"|{name[: term.HOST_WIDTH]:{term.HOST_WIDTH}}| {'! failed':{term.GPU_WIDTH - 1}}{term.EMPTY_READINGS}|\n"
    ).encode()
    digest = compute_digest(repr((name, reason)).encode())
    return BuiltHost(
        fingerprint=fingerprint,
        valid_until=now.epoch + RETRY_AFTER_S,
        rendered=RenderedHost(
            card_html=card_html.encode(),
            status_before_age=before_age[:-1] + b',"age":',
            status_after_age=b"," + after_age[1:],
            live_before_revision=orjson.dumps([name])[:-1] + b",",
            live_after_revision=b"," + orjson.dumps(["failed", None, "", "", "", []])[1:],
            term_rows=term_row,
            term_coloured_rows=term_row,
            detail_text=f"{name}\n! failed: {reason}\n\n".encode(),
        ),
        metric_lines=metrics.render_failed_host_metrics(name),
        gpus_by_state=(),
        last_seen=None,
        digests=HostDigests._make([digest] * len(HostDigests._fields)),
        summary=fleet_summary.HostSummary("failed", host_status.problems, {}, {}, {}),
        packed_sample=None,
        packed_health=None,
        conditions=None,
    )


# When a built host serves again


def fingerprint_host(host: HostStatusSources, rules: StateRules) -> bytes:
    """Return a digest of all sources of a host: a built host with the same digest may serve again."""
    files = host.files.fingerprint if host.files else None
    try:
        bookings: object = list_pipeline_booking_facts(host.bookings, rules.people)
    except Exception:  # a fault of ours, such as at an odd date, must not cost the other hosts
        bookings = repr(host.bookings)
    # a login that ps cut may become clear when others are known
    login_count = len(rules.people.known_names) if bookings else 0
    return fingerprint_pipeline_facts(
        (files, host.discovered, bookings, login_count, dict(host.sparklines), host.unread_reason)
    )


def list_pipeline_booking_facts(bookings: Iterable[Booking], people: PeopleDirectory) -> list[object]:
    """List what the built host depends on; not the zone of a time, which is only how it was written."""
    facts: list[object] = []
    for booking in bookings:
        facts += (booking.gpu, booking.name, booking.comment, booking.id, booking.rrule)
        facts += (booking.until.timestamp(), booking.since and booking.since.timestamp(), people.is_known(booking.name))
    return facts


def fingerprint_pipeline_facts(facts: object) -> bytes:
    """Return a digest that is the same in every process."""
    return compute_digest(repr(facts).encode("utf-8", "surrogatepass"))


# Built hosts in state/


def dump_pipeline_store(common_fingerprint: bytes, built_hosts: BuiltHosts) -> Iterator[records.Record]:
    """Yield the common fingerprint, and for each host its facts as JSON with its texts behind it."""
    yield common_fingerprint.hex().encode(), []
    for name, built_host in built_hosts.items():
        with suppress(TypeError):  # a text that JSON cannot hold: this host is rebuilt by the next builder
            facts = records.encode_record((name, built_host._replace(rendered=NOT_RENDERED, metric_lines=())))
            yield facts, [*built_host.rendered, *built_host.metric_lines]


def load_pipeline_store(store: Path) -> tuple[bytes, dict[str, BuiltHost]]:
    """Load the common fingerprint that the last builder stored, and its built hosts whose types are right."""
    decode = records.make_record_decoder(tuple[str, BuiltHost])
    stored = records.read_record_file(store, STORE_TITLE)
    common_fingerprint = bytes.fromhex(next(stored, (b"", []))[0].decode("ascii"))
    text_count = len(RenderedHost._fields)
    built_hosts = {}
    for facts, texts in stored:
        try:
            name, built_host = decode(orjson.loads(facts))
        except ValueError:  # a number that JSON cannot hold: this host is rebuilt
            continue
        if len(texts) != text_count + len(metrics.PER_HOST_FAMILIES):
            raise records.DamagedFileError(name)
        rendered = RenderedHost._make(texts[:text_count])
        built_hosts[name] = built_host._replace(rendered=rendered, metric_lines=tuple(texts[text_count:]))
    return common_fingerprint, built_hosts
