"""What deploy does on one host, step by step; each may have been done before, by a run that did not come to its end."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from site_builder.deploy import host_facts
from site_builder.deploy.host_facts import Facts, Unclear, public_key
from site_builder.deploy.job import (
    ABSENT,
    INSTALLED,
    REMOVED,
    SAME,
    UPGRADED,
    WOULD_INSTALL,
    WOULD_UPGRADE,
    HostFailed,
    Job,
    Order,
    known_lines,
    now,
)
from site_builder.remote.ssh import connect
from site_builder.remote.ssh_config import last_line

if TYPE_CHECKING:
    from site_builder.deploy.web_side import Web
    from site_builder.remote.ssh import Connection, Result
    from site_builder.remote.target_syntax import Target

LOOK_LIMIT = 60.0
KEY_LIMIT = 90.0
INSTALL_LIMIT = 180.0
# A host that sent something within this time still sends.
SENDS = 120
SENDS_WITHIN = 22.0
POLL = 1.0
TRIES_FOR_A_TURN = 5
BUSY = "has been at work"
FIX = re.compile(r"To fix it: (.*)")
MESSAGE = re.compile(r"^[\w.-]+\.sh: ")


def visit(job: Job, order: Order) -> None:
    """All of it, for one host."""
    order.begin(job, "connect")
    with connect(job.target.address, order.connect_limit, order.config) as host:
        job.connection = host
        try:
            facts = look(job, order, host)
            {"deploy": bring, "check": check, "remove": take_away}[order.verb](job, order, host, facts)
        finally:
            job.connection = None


def look(job: Job, order: Order, host: Connection) -> Facts:
    """How it is there."""
    order.begin(job, "look")
    words = " ".join(["exec sh -s --", job.target.given or "-", *order.web.names])
    done = host.run(words, order.look.encode(), LOOK_LIMIT)
    try:
        facts = host_facts.read(done.out)
    except Unclear as why:
        reason = f" ({done.words})" if done.code else ""
        message = f"{why}{reason}"
        raise HostFailed(message) from None
    if job.target.given not in (None, facts.name):
        message = f"it answers for {facts.name}, and not for {job.target.given}: is that an sh, or somebody who lies?"
        raise HostFailed(message)
    order.claim(job, facts.name)
    if facts.lacks and order.verb != "remove":
        message = f"it lacks {', '.join(facts.lacks)}: install that first"
        raise HostFailed(message)
    return facts


def bring(job: Job, order: Order, host: Connection, facts: Facts) -> None:
    """Install it, or what is missing of it, and see that it arrives."""
    check_name(job, order, facts)
    dest = order.dest or own_dest(order, host, facts)
    address, known = known_lines(dest, order.web.keys)
    if not lacking(order, facts, dest, known):
        job.result = SAME
        return
    key = facts.key
    if not key or not set(known) <= set(facts.known):
        order.begin(job, "key")
        key = make_key(order, host, f"{facts.name} {dest} {address}", known)
    order.begin(job, "enrol")
    order.web.enrol(facts.name, key)  # what is so already is not written; its line may name the data folder of before
    order.begin(job, "install")
    install(order, host, facts, dest)
    order.begin(job, "snapshot")
    await_snapshot(order, facts.name)
    forget_last_name(order, facts)
    if not facts.has_driver:
        job.why = (
            "it has no nvidia-smi, amd-smi or rocm-smi: the board shows it as failed until its driver is installed"
        )
    job.result = UPGRADED if facts.installed else INSTALLED


def is_meant(target: Target, name: str) -> bool:
    """Whether a person called it so; what a host says of itself gives it no right to the place of another."""
    address = target.address.rpartition("@")[2].rpartition("//")[2].partition(":")[0]
    return name in (target.given, address, address.partition(".")[0])


def check_name(job: Job, order: Order, facts: Facts) -> None:
    """Another host must not be pushed off the board by one that has its name, or says so: does it send even now?"""
    name = facts.name
    last = order.side.arrived.get(name, 0)
    sends = order.side.now - last <= SENDS
    enrolled = order.side.enrolled.get(name)
    if enrolled and enrolled == facts.key:
        return
    if (enrolled or sends) and not is_meant(job.target, name):
        message = f"it says that it is {name}, a name that is taken: if it is that very host, say so too, with"
        raise HostFailed(f"{message} {name}={job.target.address}")
    if facts.installed == name or not sends:
        return
    order.begin(job, "name")
    end = now() + SENDS_WITHIN
    while now() < end:
        if order.web.arrived(name) > last:
            message = f"another host sends snapshots as {name}: give this one another name, with NAME=HOST"
            raise HostFailed(f"{message}, or if it is this very machine, stop first what sends them there")
        order.wait(POLL)


def own_dest(order: Order, host: Connection, facts: Facts) -> str:
    """Where this host reaches the web host; what it has stays, if it can be right: others may share its home."""
    web = order.web
    direct = web.here and not host.way.jumps and not host.way.command
    names = [name for name in web.names if reached(facts, name, facts.seen_from if direct else None)]
    found = [dest_of(web, name) for name in [*names, *([facts.seen_from] if direct and facts.seen_from else [])]]
    if not found:
        known = " nor ".join(web.names) or "our name"
        message = f"it does not know {known}: say where it finds the web host, with --dest ssh://USER@WEB"
        raise HostFailed(message)
    return facts.dest if facts.dest in found else found[0]


def dest_of(web: Web, address: str) -> str:
    """The web host's account at this address."""
    shown = f"[{address}]" if ":" in address else address
    return f"ssh://{web.user}@{shown}" + ("" if web.port == 22 else f":{web.port}")


def reached(facts: Facts, name: str, must_be: str | None) -> bool:
    """Whether the host knows us by this name, and where we know our address there, by this one; never as itself."""
    addresses = facts.reach.get(name, ())
    if must_be:
        return must_be in addresses
    return any(not is_loopback(address) for address in addresses)


def is_loopback(address: str) -> bool:
    """Whether that is the host itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def lacking(order: Order, facts: Facts, dest: str, known: list[str]) -> list[str]:
    """What is not as it should be, in words."""
    line = facts.crontab.endswith(("/gpu-check.sh", "/gpu-check.sh'") if facts.name == facts.own else f" {facts.name}")
    found = {
        "scripts": facts.scripts == order.digest,
        "crontab": bool(facts.crontab) and (line or facts.crontab.endswith(f" {facts.name}")),
        "destination": facts.dest == dest,
        "key": bool(facts.key) and order.side.enrolled.get(facts.name) == facts.key,
        "web host's key": set(known) <= set(facts.known),
        "loops": facts.loops == "ok" and facts.installed == facts.name,
        "snapshot": order.side.now - order.side.arrived.get(facts.name, 0) <= SENDS,
    }
    return [what for what, good in found.items() if not good]


def unpacked(order: Order, host: Connection, command: str, limit: float) -> Result:
    """Run a command of install.sh on the host, in a folder that goes with it; others that share its home have turns."""
    program = f"{order.packed}{command}\n".encode()
    for number in range(TRIES_FOR_A_TURN):
        done = host.run("exec sh -s", program, limit)
        if done.code != 2 or BUSY not in done.words or number == TRIES_FOR_A_TURN - 1:
            break
        order.wait(POLL)
    return done


def make_key(order: Order, host: Connection, words: str, known: list[str]) -> str:
    """The public half of the host's key, which was made there and stays there."""
    text = "".join(f"{line}\n" for line in known)
    done = unpacked(order, host, f"./install.sh key {words} <<'END'\n{text}END", KEY_LIMIT)
    if done.code:
        raise HostFailed(reason(done))
    lines = done.out.decode(errors="replace").strip().split("\n")
    key = public_key(lines[-1])
    if not key:
        message = "what it made is no public key"
        raise HostFailed(message)
    return key


def install(order: Order, host: Connection, facts: Facts, dest: str) -> None:
    """As a person would, in a clone there."""
    named = "" if facts.name == facts.own and facts.installed in ("", facts.own) else f" --name {facts.name}"
    done = unpacked(order, host, f"./install.sh host{named} --dest {dest} </dev/null", INSTALL_LIMIT)
    if done.code:
        raise HostFailed(reason(done))


def reason(done: Result) -> str:
    """What install.sh said, and what helps."""
    lines = [line for line in done.err.decode(errors="replace").split("\n") if line.strip()]
    told = "; ".join(MESSAGE.sub("", last_line(line)) for line in lines[-2 if done.code == 1 else -1 :]) or done.words
    fix = FIX.search(done.out.decode(errors="replace"))
    return f"{told}; {last_line(fix[1])}" if fix and done.code == 1 else told


def await_snapshot(order: Order, name: str) -> None:
    """Until the web host has one that came since we began."""
    end = now() + order.patience
    before = max(order.side.now - 1, order.side.arrived.get(name, 0))
    while order.web.arrived(name) <= before:
        if now() > end:
            message = f"all is in place there, but nothing arrived within {order.patience:.0f} s: gpu-check.sh status"
            raise HostFailed(f"{message} on the host tells why")
        order.wait(POLL)


def forget_last_name(order: Order, facts: Facts) -> None:
    """A host that has another name now needs the key of its last one no more."""
    last = facts.installed
    if last and last != facts.name and facts.key_before and order.side.enrolled.get(last) == facts.key_before:
        order.web.remove(last)


def take_away(job: Job, order: Order, host: Connection, facts: Facts) -> None:
    """All that deploy did there, and the key's line on the web host; data stays."""
    name = facts.name
    there = bool(facts.installed or facts.key or facts.crontab)
    if there:
        order.begin(job, "remove")
        done = unpacked(order, host, "./install.sh remove host </dev/null", INSTALL_LIMIT)
        if done.code:
            raise HostFailed(reason(done))
    enrolled = order.side.enrolled.get(name)
    sends = order.side.now - order.side.arrived.get(name, 0) <= SENDS
    if enrolled and (enrolled == facts.key or (not sends and is_meant(job.target, name))):
        order.begin(job, "key")
        order.web.remove(name)
        there = True
    elif enrolled and sends:
        job.why = f"another host sends snapshots as {name}: its key stays enrolled"
    elif enrolled:
        job.why = (
            f"the key of {name} stays enrolled, for it is not this host's: {name}={job.target.address} takes it too"
        )
    job.result = REMOVED if there else ABSENT


def check(job: Job, order: Order, host: Connection, facts: Facts) -> None:
    """How it is, and what deploy would do; nothing is changed."""
    side, name = order.side, facts.name
    job.facts = {
        "version": facts.version or None,
        "loops": facts.loops or None,
        "enrolled": bool(facts.key) and side.enrolled.get(name) == facts.key,
        "age": side.now - side.arrived[name] if name in side.arrived else None,
    }
    dest = order.dest or own_dest(order, host, facts)
    lacks = lacking(order, facts, dest, known_lines(dest, order.web.keys)[1])
    if lacks and facts.installed:
        said = f" ({facts.loops})" if facts.loops not in ("", "ok") else ""
        job.why = f"not as it should be: {', '.join(lacks)}{said}"
    job.result = SAME if not lacks else WOULD_UPGRADE if facts.installed else WOULD_INSTALL
