"""Checks of Consul, where it is asked for hosts, or data/ is a copy of its KV store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from site_builder.core.model import ConsulAccess
from site_builder.doctor.check_result import Case, Found, apart, failed, passed, warned

if TYPE_CHECKING:
    from site_builder.consul.client import Question


def consul(case: Case) -> Found:
    """Whether it answers, has a leader, takes the token, and lists hosts."""
    access = case.settings.consul
    if access is None:
        return apart("GPUBOARD_CONSUL_SERVICE is not set: Consul is not asked for hosts")
    from site_builder.consul import catalog  # noqa: PLC0415 # slow to import

    where = f"Consul at {catalog.shown(access.address)}"
    answer, failure = ask(access)
    dump = catalog.read(answer)
    if not failure and not dump.whole:
        failure = f"answers, but {'; '.join(dump.problems)}"
    if failure:
        return failed(
            f"{where} {failure}", "the last good list serves meanwhile; see CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN"
        )
    if not dump.rows:
        what = f"{where} lists no host with the service {access.service}"
        rights = catalog.RIGHTS if access.token else f"CONSUL_HTTP_TOKEN must be set, and {catalog.RIGHTS}"
        return warned(what, f"correct GPUBOARD_CONSUL_SERVICE, or if Consul has ACLs, {rights}")
    if dump.problems:
        return warned(f"{where}: {dump.problems[0]}", "correct that registration; the others count")
    ill = sum(one.status == "critical" for one in dump.rows)
    told = f"{where} lists {len(dump.rows)} with the service {access.service}"
    return passed(f"{told}, of which {ill} fail their check" if ill else told)


def ask(access: ConsulAccess) -> tuple[object, str]:
    """What Consul knows of the service, or why there is no answer."""
    from site_builder.discovery.discover import ask_service  # noqa: PLC0415 # slow to import

    question = ask_service(access)
    why = waited_for(question)
    return question.answer, why


def waited_for(question: Question) -> str:
    """Why there is no answer to a question; empty where there is one."""
    from site_builder.consul.client import LATE  # noqa: PLC0415 # slow to import

    if not question.wait():
        question.give_up()
        return LATE
    return question.failure or ""


def kv(case: Case) -> Found:
    """Whether the store of which data/ is a copy answers, holds something, and has a builder that leads."""
    access = case.settings.kv
    if access is None:
        return apart("GPUBOARD_KV is not set: data/ is no copy of Consul's KV store")
    from site_builder.consul import kv_reply, leader  # noqa: PLC0415 # slow to import
    from site_builder.consul.client import Unusable  # noqa: PLC0415
    from site_builder.consul.kv import KvStore  # noqa: PLC0415

    store = KvStore(access)
    question = store.everything()
    failure = waited_for(question)
    dump = kv_reply.read(question.body or b"[]", store.data)
    held = None
    try:
        held = None if failure else store.get(leader.KEY)
    except Unusable as why:
        failure = str(why)
    if not failure and not dump.whole:
        failure = "; ".join(dump.problems)
    if failure:
        return failed(
            f"{access.where} {failure}", "data/ serves as it is, and grows old; see GPUBOARD_KV and CONSUL_HTTP_TOKEN"
        )
    told = f"{access.where} has {len(dump.rows)} entries below {store.data}"
    if not dump.rows:
        return warned(
            f"{access.where} has nothing below {store.data}", "no host pushes there, or the token may not read it"
        )
    if held is None or not held.session:
        return warned(f"{told}, and no builder leads", "start one: the check crontab tells what should")
    return passed(f"{told}; {leader.holder(held.content)} leads")
