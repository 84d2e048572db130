"""Consul's answer to health/service: which nodes have the service, and how they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from site_builder.core.model import ConsulAccess, Dump
from site_builder.core.names import is_host
from site_builder.snapshots.envelope import clean

WORST_FIRST = ("critical", "warning", "passing")
MOST_ENTRIES = 20_000
MOST_TAGS = 50
MOST_TOLD = 10
LONGEST_NAME = 255
LONGEST_TITLE = 200
LONGEST_TAG = 60
LONGEST_SAID = 200
# Consul's own words where nobody gave a reason.
NO_REASON = re.compile(r"Maintenance mode is enabled for this (?:node|service), but no reason was provided")
# What agents and servers say while another leader is elected; one sentence for all, since it is soon over.
NO_LEADER = re.compile(r"No cluster leader|failed to get conn|not the leader|leadership lost|No known Consul servers")
NUMBERS = re.compile(r"[0-9.]+")
DEFAULT_PORT = 8500
RIGHTS = "the token needs `service:read` and `node:read`"
KV_RIGHTS = "the token needs `key_prefix` with `write` for what stands below the prefix"
SESSION_RIGHTS = "the token needs `session_prefix` with `write`"
# As CONSUL_HTTP_ADDR has it.
ADDRESS = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?")


@dataclass(frozen=True)
class ConsulNode:
    """A node that has the service. `host` is the service's meta of that name; `status` the worst of its checks."""

    node: str
    host: str | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    status: str = "passing"
    said: str | None = None
    maintenance: str | None = None

    @property
    def short(self) -> str:
        """The name before the first dot; an address has none."""
        return self.node if NUMBERS.fullmatch(self.node) else self.node.partition(".")[0]


class Expected(NamedTuple):
    """What an answer begins with, whether it tells an index, what rights it takes, and whether there may be none."""

    begins: str
    indexed: bool
    rights: str
    may_lack: bool = False


NODES = Expected("[", True, RIGHTS)
ENTRIES = Expected("[", True, KV_RIGHTS, may_lack=True)
WRITTEN = Expected("tf", False, KV_RIGHTS)
SESSION = Expected("{[t", False, SESSION_RIGHTS)


class Malformed(Exception):
    """What an entry lacks, in words."""


def read(answer: object) -> Dump[ConsulNode]:
    """Every node of the answer, once; not `whole` if it is not such an answer at all."""
    if not isinstance(answer, list):
        return Dump(whole=False, problems=("it is not a list of services",))
    found: dict[tuple[str, str | None], ConsulNode] = {}
    problems: list[str] = []
    for number, entry in enumerate(answer[:MOST_ENTRIES], 1):
        try:
            one = node_of(entry)
        except Malformed as why:
            problems.append(f"entry {number} of its answer does not count: {why}")
            continue
        key = one.node, one.host
        found[key] = merged(found[key], one) if key in found else one
    if problems and not found:
        return Dump(whole=False, problems=("none of its entries is that of a service",))
    more = len(problems) - MOST_TOLD
    if more > 0:
        problems[MOST_TOLD:] = [f"{more} more entries of its answer do not count either"]
    if len(answer) > MOST_ENTRIES:
        problems.append(f"its answer has {len(answer)} entries; only the first {MOST_ENTRIES} count")
    return Dump(tuple(found.values()), problems=tuple(problems))


def node_of(entry: object) -> ConsulNode:
    """One entry: a node, its service, and the checks of both."""
    whole = an_object(entry, "it")
    node, service = an_object(whole.get("Node"), "Node"), an_object(whole.get("Service"), "Service")
    meta = an_object(service.get("Meta") or {}, "Service.Meta")
    tags = [tidy(tag, LONGEST_TAG) for tag in a_list(service.get("Tags"), "Service.Tags")]
    checks = [an_object(check, "a check") for check in a_list(whole.get("Checks"), "Checks")]
    name = tidy(node.get("Node"), LONGEST_NAME + 1)
    if not name or len(name) > LONGEST_NAME:
        message = "its node has no name" if not name else "the name of its node is too long"
        raise Malformed(message)
    status, said = worst(check for check in checks if not is_maintenance(check))
    reasons = (reason(check) for check in checks if is_maintenance(check))
    return ConsulNode(
        name,
        host=tidy(meta.get("host"), LONGEST_NAME) or None,
        title=tidy(meta.get("title"), LONGEST_TITLE) or None,
        tags=tuple(dict.fromkeys(tag for tag in tags if tag))[:MOST_TAGS],
        status=status,
        said=said,
        maintenance=next(reasons, None),
    )


def an_object(value: object, what: str) -> dict[object, object]:
    """The value, if it is an object."""
    if not isinstance(value, dict):
        message = f"{what} is not an object"
        raise Malformed(message)
    return value


def a_list(value: object, what: str) -> list[object]:
    """The value, if it is a list; Consul writes null for an empty one."""
    if value is not None and not isinstance(value, list):
        message = f"{what} is not a list"
        raise Malformed(message)
    return value or []


def tidy(value: object, longest: int) -> str:
    """A text in one line, that can be written anywhere; nothing for what is no text."""
    if not isinstance(value, str):
        return ""
    # JSON can hold halves of characters, which no file can
    text = value[: 20 * longest].encode("utf-8", "replace").decode()
    return " ".join(clean(text).split())[:longest].rstrip()


def is_maintenance(check: dict[object, object]) -> bool:
    """Whether it is the check by which Consul marks its own maintenance mode."""
    name = check.get("CheckID")
    is_mark = isinstance(name, str) and (name == "_node_maintenance" or name.startswith("_service_maintenance:"))
    return is_mark and check.get("Status") == "critical"


def reason(check: dict[object, object]) -> str:
    """Why it is in maintenance."""
    notes = tidy(check.get("Notes"), LONGEST_SAID)
    return "no reason given" if not notes or NO_REASON.match(notes) else notes


def worst(checks: Iterable[dict[object, object]]) -> tuple[str, str | None]:
    """The worst status, with the words of the first check that has it; one that we do not know is critical."""
    status, said = "passing", None
    for check in checks:
        told = check.get("Status")
        own = told if isinstance(told, str) and told in WORST_FIRST else "critical"
        if WORST_FIRST.index(own) < WORST_FIRST.index(status):
            words = (tidy(check.get(key), LONGEST_SAID) for key in ("Output", "Notes", "Name"))
            status, said = own, next(filter(None, words), None)
    return status, said


def merged(one: ConsulNode, other: ConsulNode) -> ConsulNode:
    """Two instances of the service on one node: the worse of their states counts."""
    bad = min(one, other, key=lambda instance: WORST_FIRST.index(instance.status))
    return replace(
        one,
        title=one.title or other.title,
        tags=tuple(dict.fromkeys(one.tags + other.tags))[:MOST_TAGS],
        status=bad.status,
        said=bad.said,
        maintenance=one.maintenance or other.maintenance,
    )


def written(nodes: Iterable[ConsulNode]) -> list[object]:
    """The nodes in the form of an answer, as far as it is understood: `read` gives them back."""
    return [
        {
            "Node": {"Node": one.node},
            "Service": {"Tags": one.tags, "Meta": {"host": one.host, "title": one.title}},
            "Checks": [
                {"Status": one.status, "Output": one.said},
                *(
                    [{"CheckID": "_node_maintenance", "Status": "critical", "Notes": one.maintenance}]
                    if one.maintenance
                    else []
                ),
            ],
        }
        for one in nodes
    ]


def hosts(nodes: Iterable[ConsulNode], known: Iterable[str]) -> tuple[dict[str, ConsulNode], list[str]]:
    """Which host each node is: one of those that are known, or else a new one; and what cannot be told."""
    names = dict.fromkeys(known)
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.lower(), name)
    nodes = list(nodes)
    shorts = Counter(short.lower() for short in {one.node: one.short for one in nodes}.values())
    claims = sorted(((*claim(one, names, folded), one) for one in nodes), key=lambda found: found[0])
    found: dict[str, ConsulNode] = {}
    problems: list[str] = []
    for _, matched, one in claims:
        candidates = dict.fromkeys([*([matched] if matched else []), *new_names(one, shorts, problems)])
        for name in candidates:
            holder = found.setdefault(name, one)
            if holder.node == one.node:
                found[name] = one if holder is one else merged(holder, one)
                break
            problems.append(f"the nodes {holder.node} and {one.node} are both the host {name}: {holder.node} counts")
        else:
            if not candidates:
                problems.append(f"the node '{one.node[:80]}' is not shown: that cannot be the name of a host")
    return found, problems


def claim(one: ConsulNode, names: dict[str, None], folded: dict[str, str]) -> tuple[int, str | None]:
    """The known host that a node is, and how sure that is: the lower, the surer."""
    for rank, name in enumerate((one.host, one.node, one.short)):
        if name is not None and name in names:
            return 2 * rank, name
        if name is not None and name.lower() in folded:
            return 2 * rank + 1, folded[name.lower()]
    return 6, None


def new_names(one: ConsulNode, shorts: Counter[str], problems: list[str]) -> Iterator[str]:
    """The names that a node can have where nobody else knows it, the best first."""
    if one.host and is_host(one.host):
        yield one.host
    elif one.host:
        problems.append(f"the node {one.node[:80]} has '{one.host[:80]}' as its meta host, which is not a host name")
    if shorts[one.short.lower()] == 1 and is_host(one.short):
        yield one.short
    if is_host(one.node):
        yield one.node


def address(text: str) -> tuple[str, str, int, str]:
    """Scheme, host and port of an address, or why it is none."""
    if text.startswith("unix:"):
        return "", "", 0, "cannot be asked: a unix:// address is not supported; set CONSUL_HTTP_ADDR to host:port"
    found = ADDRESS.fullmatch(text)
    port = int(found[3] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        return "", "", 0, "cannot be asked: its address is not host:port, http://host:port or https://host:port"
    return found[1] or "http", found[2], port, ""


def shown(text: str) -> str:
    """An address without the name and password that somebody may have written into it."""
    return tidy(text.rpartition("@")[2], 200)


def refusal(  # noqa: PLR0911 one sentence for each
    status: int, headers: Mapping[str, str], body: bytes | bytearray, access: ConsulAccess, expected: Expected = NODES
) -> str:
    """Why an answer is not one to the question; empty if it may be. The token never stands in it."""
    text = body[:10_000].decode("utf-8", "replace").lstrip()
    if access.token:
        text = text.replace(access.token, "(token)")
    said = "" if text.startswith("<") else tidy(text, 100)
    has_index = "X-Consul-Index" in headers or not expected.indexed
    if 300 <= status < 400:
        return f"answers with a redirect ({status}), which is not followed; set CONSUL_HTTP_ADDR to where it leads"
    if status == 403:
        return f"refuses the question ({said or status}); {expected.rights}"
    if status == 500 and access.datacenter and "datacenter" in said:
        return f"does not know the datacenter {access.datacenter} ({said}); correct GPUBOARD_CONSUL_DATACENTER"
    if status == 500 and NO_LEADER.search(text):
        return "has no leader just now, or does not reach it"
    lacks = status == 404 and expected.may_lack and not text
    if status != 200 and not lacks:
        return f"answers with an error ({status}{': ' if said else ''}{said})"
    if has_index and (lacks or (text and text[0] in expected.begins)):
        return ""
    kind = "a page in HTML" if text.startswith("<") else "what is not a list of Consul"
    return f"answers with {kind}; correct CONSUL_HTTP_ADDR if that is not Consul"
