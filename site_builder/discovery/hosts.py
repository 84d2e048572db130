"""Find the hosts of the board: Consul, hosts.txt, hosts.json and data/."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from site_builder.consul import client
from site_builder.consul.client import MAX_RESPONSE_BYTES, TIMEOUT_MESSAGE, ConsulRequest, clean_json_value
from site_builder.core import files
from site_builder.core.files import CachedFile, read_file_from_folder
from site_builder.core.formatting import format_local_time
from site_builder.core.model import ConsulAccess, DiscoveredHost, ListedHost, ParsedFile, Problem
from site_builder.core.names import is_host_name
from site_builder.core.terminal_text import decode_text, describe_json_error, limit_problems

MAINTENANCE_PATTERN = re.compile(r"(?:^|,)\s*maintenance\s*(?::\s*(.*))?$", re.IGNORECASE)
MAX_CELL_CHARACTERS = 200


def parse_hosts_txt(data: bytes) -> ParsedFile[ListedHost]:
    """A host a line, in their order; `#` begins a comment."""
    found: dict[str, ListedHost] = {}
    problems: list[str] = []
    for number, line in enumerate(decode_text(data).split("\n"), 1):
        host = parse_host_line(line.partition("#")[0].strip())
        if host is None:
            continue
        if not is_host_name(host.name):
            hint = "; put commas between name, title and tags" if " " in host.name else ""
            problems.append(f"line {number}: '{host.name[:80]}' is not a host name{hint}")
        elif host.name in found:
            problems.append(f"line {number}: {host.name} stands there twice; the first line counts")
        else:
            found[host.name] = host
    return ParsedFile(tuple(found.values()), problems=limit_problems(problems))


def parse_host_line(line: str) -> ListedHost | None:
    """One line without its comment. The reason of a maintenance goes on to the end of the line, and may hold commas."""
    if not line:
        return None
    why = MAINTENANCE_PATTERN.search(line)
    if why:
        line = line[: why.start()]
    name, *cells = (cell.strip() for cell in line.split(","))
    words = [cell[:MAX_CELL_CHARACTERS] for cell in cells if cell.lower() != "hidden"]
    return ListedHost(
        name,
        title=words[0] or None if words else None,
        tags=tuple(words[1].split()) if len(words) > 1 else (),
        maintenance=((why[1] or "").strip() or "no reason given")[:MAX_CELL_CHARACTERS] if why else None,
        is_hidden=len(words) < len(cells),
    )


MAX_TITLE_CHARACTERS = 200
MAX_HOSTS = 20_000


def parse_hosts_json(data: bytes) -> ParsedFile[ListedHost]:
    """The hosts with their full names as titles; not `whole` if the file cannot be read at all."""
    try:
        content = json.loads(decode_text(data).lstrip("\ufeff"), strict=False)
    except json.JSONDecodeError as error:
        return ParsedFile(is_complete=False, problems=(describe_json_error(error),))
    except (ValueError, RecursionError):
        return ParsedFile(is_complete=False, problems=("it is nested too deeply to be read",))
    if not isinstance(content, dict):
        return ParsedFile(
            is_complete=False, problems=('it must be an object of names: {"atlas": "atlas.example.org"}',)
        )
    found: list[ListedHost] = []
    problems: list[str] = []
    for name, full in content.items():
        shown = clean_json_text(name)[:80]
        if not is_host_name(name):
            problems.append(f"'{shown}' is not a host name")
        elif full is not None and not isinstance(full, str):
            problems.append(f"the full name of {shown} is not a text")
        else:
            found.append(ListedHost(name, title=clean_json_text(full or "")[:MAX_TITLE_CHARACTERS] or None))
    if len(found) > MAX_HOSTS:
        problems.append(f"it has {len(found)} hosts; only the first {MAX_HOSTS} count")
    return ParsedFile(tuple(found[:MAX_HOSTS]), problems=limit_problems(problems))


def clean_json_text(text: str) -> str:
    """In one line, without the control characters and halves of characters that JSON can write as escapes."""
    return " ".join(decode_text(text.encode("utf-8", "replace")).split())


STATUSES_WORST_FIRST = ("critical", "warning", "passing")
MAX_ENTRIES = 20_000
MAX_TAGS = 50
MAX_PROBLEMS = 10
MAX_NAME_CHARACTERS = 255
MAX_TITLE_CHARACTERS = 200
MAX_TAG_CHARACTERS = 60
MAX_MESSAGE_CHARACTERS = 200
# Consul's own words where nobody gave a reason.
DEFAULT_MAINTENANCE_NOTE = re.compile(
    r"Maintenance mode is enabled for this (?:node|service), but no reason was provided"
)
NUMERIC_NAME = re.compile(r"[0-9.]+")


@dataclass(frozen=True)
class ConsulNode:
    """A node that has the service. `host` is the service's meta of that name; `status` the worst of its checks."""

    node: str
    host: str | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    status: str = "passing"
    message: str | None = None
    maintenance: str | None = None

    @property
    def short_name(self) -> str:
        """The name before the first dot; an address has none."""
        return self.node if NUMERIC_NAME.fullmatch(self.node) else self.node.partition(".")[0]


class MalformedEntryError(Exception):
    """What an entry lacks, in words."""


def parse_service_nodes(answer: object) -> ParsedFile[ConsulNode]:
    """Every node of the answer, once; not `whole` if it is not such an answer at all."""
    if not isinstance(answer, list):
        return ParsedFile(is_complete=False, problems=("it is not a list of services",))
    found: dict[tuple[str, str | None], ConsulNode] = {}
    problems: list[str] = []
    for number, entry in enumerate(answer[:MAX_ENTRIES], 1):
        try:
            one = parse_service_node(entry)
        except MalformedEntryError as why:
            problems.append(f"entry {number} of its answer does not count: {why}")
            continue
        key = one.node, one.host
        found[key] = merge_nodes(found[key], one) if key in found else one
    if problems and not found:
        return ParsedFile(is_complete=False, problems=("none of its entries is that of a service",))
    more = len(problems) - MAX_PROBLEMS
    if more > 0:
        problems[MAX_PROBLEMS:] = [f"{more} more entries of its answer do not count either"]
    if len(answer) > MAX_ENTRIES:
        problems.append(f"its answer has {len(answer)} entries; only the first {MAX_ENTRIES} count")
    return ParsedFile(tuple(found.values()), problems=tuple(problems))


def parse_service_node(entry: object) -> ConsulNode:
    """One entry: a node, its service, and the checks of both."""
    whole = require_json_object(entry, "it")
    node, service = require_json_object(whole.get("Node"), "Node"), require_json_object(whole.get("Service"), "Service")
    meta = require_json_object(service.get("Meta") or {}, "Service.Meta")
    tags = [clean_json_value(tag, MAX_TAG_CHARACTERS) for tag in require_json_list(service.get("Tags"), "Service.Tags")]
    checks = [require_json_object(check, "a check") for check in require_json_list(whole.get("Checks"), "Checks")]
    name = clean_json_value(node.get("Node"), MAX_NAME_CHARACTERS + 1)
    if not name or len(name) > MAX_NAME_CHARACTERS:
        message = "its node has no name" if not name else "the name of its node is too long"
        raise MalformedEntryError(message)
    status, said = find_worst_status(check for check in checks if not is_maintenance_check(check))
    reasons = (describe_maintenance(check) for check in checks if is_maintenance_check(check))
    return ConsulNode(
        name,
        host=clean_json_value(meta.get("host"), MAX_NAME_CHARACTERS) or None,
        title=clean_json_value(meta.get("title"), MAX_TITLE_CHARACTERS) or None,
        tags=tuple(dict.fromkeys(tag for tag in tags if tag))[:MAX_TAGS],
        status=status,
        message=said,
        maintenance=next(reasons, None),
    )


def require_json_object(value: object, what: str) -> dict[object, object]:
    """The value, if it is an object."""
    if not isinstance(value, dict):
        message = f"{what} is not an object"
        raise MalformedEntryError(message)
    return value


def require_json_list(value: object, what: str) -> list[object]:
    """The value, if it is a list; Consul writes null for an empty one."""
    if value is not None and not isinstance(value, list):
        message = f"{what} is not a list"
        raise MalformedEntryError(message)
    return value or []


def is_maintenance_check(check: dict[object, object]) -> bool:
    """Whether it is the check by which Consul marks its own maintenance mode."""
    name = check.get("CheckID")
    is_mark = isinstance(name, str) and (name == "_node_maintenance" or name.startswith("_service_maintenance:"))
    return is_mark and check.get("Status") == "critical"


def describe_maintenance(check: dict[object, object]) -> str:
    """Why it is in maintenance."""
    notes = clean_json_value(check.get("Notes"), MAX_MESSAGE_CHARACTERS)
    return "no reason given" if not notes or DEFAULT_MAINTENANCE_NOTE.match(notes) else notes


def find_worst_status(checks: Iterable[dict[object, object]]) -> tuple[str, str | None]:
    """The worst status, with the words of the first check that has it; one that we do not know is critical."""
    status, said = "passing", None
    for check in checks:
        told = check.get("Status")
        own = told if isinstance(told, str) and told in STATUSES_WORST_FIRST else "critical"
        if STATUSES_WORST_FIRST.index(own) < STATUSES_WORST_FIRST.index(status):
            words = (clean_json_value(check.get(key), MAX_MESSAGE_CHARACTERS) for key in ("Output", "Notes", "Name"))
            status, said = own, next(filter(None, words), None)
    return status, said


def merge_nodes(one: ConsulNode, other: ConsulNode) -> ConsulNode:
    """Two instances of the service on one node: the worse of their states counts."""
    bad = min(one, other, key=lambda instance: STATUSES_WORST_FIRST.index(instance.status))
    return replace(
        one,
        title=one.title or other.title,
        tags=tuple(dict.fromkeys(one.tags + other.tags))[:MAX_TAGS],
        status=bad.status,
        message=bad.message,
        maintenance=one.maintenance or other.maintenance,
    )


def nodes_to_json(nodes: Iterable[ConsulNode]) -> list[object]:
    """The nodes in the form of an answer, as far as it is understood: `read` gives them back."""
    return [
        {
            "Node": {"Node": one.node},
            "Service": {"Tags": one.tags, "Meta": {"host": one.host, "title": one.title}},
            "Checks": [
                {"Status": one.status, "Output": one.message},
                *(
                    [{"CheckID": "_node_maintenance", "Status": "critical", "Notes": one.maintenance}]
                    if one.maintenance
                    else []
                ),
            ],
        }
        for one in nodes
    ]


def match_nodes_to_hosts(nodes: Iterable[ConsulNode], known: Iterable[str]) -> tuple[dict[str, ConsulNode], list[str]]:
    """Which host each node is: one of those that are known, or else a new one; and what cannot be told."""
    names = dict.fromkeys(known)
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.lower(), name)
    nodes = list(nodes)
    shorts = Counter(short.lower() for short in {one.node: one.short_name for one in nodes}.values())
    claims = sorted(((*find_known_host(one, names, folded), one) for one in nodes), key=lambda found: found[0])
    found: dict[str, ConsulNode] = {}
    problems: list[str] = []
    for _, matched, one in claims:
        candidates = dict.fromkeys([*([matched] if matched else []), *list_new_host_names(one, shorts, problems)])
        for name in candidates:
            holder = found.setdefault(name, one)
            if holder.node == one.node:
                found[name] = one if holder is one else merge_nodes(holder, one)
                break
            problems.append(f"the nodes {holder.node} and {one.node} are both the host {name}: {holder.node} counts")
        else:
            if not candidates:
                problems.append(f"the node '{one.node[:80]}' is not shown: that cannot be the name of a host")
    return found, problems


def find_known_host(one: ConsulNode, names: dict[str, None], folded: dict[str, str]) -> tuple[int, str | None]:
    """The known host that a node is, and how sure that is: the lower, the surer."""
    for rank, name in enumerate((one.host, one.node, one.short_name)):
        if name is not None and name in names:
            return 2 * rank, name
        if name is not None and name.lower() in folded:
            return 2 * rank + 1, folded[name.lower()]
    return 6, None


def list_new_host_names(one: ConsulNode, shorts: Counter[str], problems: list[str]) -> Iterator[str]:
    """The names that a node can have where nobody else knows it, the best first."""
    if one.host and is_host_name(one.host):
        yield one.host
    elif one.host:
        problems.append(f"the node {one.node[:80]} has '{one.host[:80]}' as its meta host, which is not a host name")
    if shorts[one.short_name.lower()] == 1 and is_host_name(one.short_name):
        yield one.short_name
    if is_host_name(one.node):
        yield one.node


def request_service_nodes(access: ConsulAccess) -> ConsulRequest:
    """Which nodes have the service; without `passing`: a host that fails is the one that the board must show."""
    service, datacenter = access.service, access.datacenter
    return ConsulRequest(access, lambda client: client.health.service(service, dc=datacenter)[1], client.NODES_RESPONSE)


class ConsulHostList:
    """The nodes that Consul lists: as it says now, or as it last said."""

    def __init__(self, state: Path, access: ConsulAccess) -> None:
        """Take up the last good list, if it is one of this service."""
        self.access = access
        self.where = f"Consul at {client.format_agent_address(access.address)}"
        self.store_path = state / "consul.json"
        self.nodes: tuple[ConsulNode, ...] | None = None
        self.stored_nodes: tuple[ConsulNode, ...] | None = None
        self.nodes_time = 0.0
        self.request: ConsulRequest | None = None
        with suppress(OSError, files.FileRefusedError, ValueError, RecursionError):
            signature, content = read_file_from_folder(state, "consul.json", MAX_RESPONSE_BYTES)
            kept = json.loads(content)
            if isinstance(kept, dict) and [kept.get("service"), kept.get("datacenter")] == self.query:
                dump = parse_service_nodes(kept.get("nodes"))
                if dump.is_complete:
                    self.nodes = self.stored_nodes = dump.rows
                    self.nodes_time = signature.modified_ns / 1e9

    @property
    def query(self) -> list[str | None]:
        """What a list is an answer to."""
        return [self.access.service, self.access.datacenter]

    def start_request(self) -> None:
        """Ask, unless an earlier question still hangs."""
        if self.request is None or not self.request.thread.is_alive():
            self.request = request_service_nodes(self.access)

    def read(self) -> tuple[tuple[ConsulNode, ...] | None, list[Problem]]:
        """The nodes, or None if there was never a list; and what is wrong."""
        if self.request is None or self.request.is_cancelled:
            self.start_request()
        question = self.request
        if question is None or question.is_cancelled:
            failure = "does not answer, and still hangs on an earlier question, so that it was not asked again"
            return self.nodes, [self.build_problem(failure)]
        if not question.wait():
            question.cancel()
            return self.nodes, [self.build_problem(TIMEOUT_MESSAGE)]
        self.request = None
        if question.failure:
            return self.nodes, [self.build_problem(question.failure)]
        dump = parse_service_nodes(question.response)
        if not dump.is_complete:
            return self.nodes, [self.build_problem(f"answers, but {'; '.join(dump.problems)}")]
        problems = [Problem(self.where, what) for what in dump.problems] + self.store_nodes(
            dump.rows, question.received_at
        )
        if not dump.rows:
            problems.append(Problem(self.where, self.describe_empty_list()))
        return self.nodes, problems

    def build_problem(self, what: str) -> Problem:
        """The one sentence on a list that cannot be had."""
        if self.nodes is None:
            return Problem(self.where, f"{what}; there is no earlier list that could serve")
        return Problem(self.where, f"{what}; the list of {format_local_time(self.nodes_time)} serves")

    def describe_empty_list(self) -> str:
        """The sentence on a list that is empty: without rights, Consul shows nothing rather than to refuse."""
        rights = client.SERVICE_RIGHTS
        may_be = rights if self.access.token else f"CONSUL_HTTP_TOKEN must be set, and {rights}"
        what = f"no host has the service {self.access.service}; correct GPUBOARD_CONSUL_SERVICE"
        return f"{what}, or if Consul has ACLs, {may_be}"

    def store_nodes(self, nodes: tuple[ConsulNode, ...], now: float) -> list[Problem]:
        """Remember a good list; its file's time is when Consul last said so."""
        self.nodes, self.nodes_time = nodes, now
        try:
            if nodes == self.stored_nodes:
                with suppress(FileNotFoundError):
                    os.utime(self.store_path, (now, now))
                    return []
            service, datacenter = self.query
            content = {"service": service, "datacenter": datacenter, "nodes": nodes_to_json(nodes)}
            self.stored_nodes = None
            files.write_atomically(self.store_path, json.dumps(content).encode(), 0o600)
            self.stored_nodes = nodes
        except OSError as error:
            return [Problem("state/consul.json", f"the list of Consul could not be kept: {error.strerror}")]
        return []


class HostDiscovery:
    """Joins all lists of hosts, again and again; asks Consul while others read."""

    def __init__(self, data: Path, state: Path | None, consul: ConsulAccess | None) -> None:
        """Take up the last good lists from state/; who has none may not ask Consul either."""
        self.consul_list = ConsulHostList(state, consul) if consul and state else None
        self.hosts_txt_file = CachedFile(data, state, "hosts.txt", parse_hosts_txt)
        self.hosts_json_file = CachedFile(data, state, "hosts.json", parse_hosts_json)

    def start_consul_request(self) -> None:
        """Begin to ask Consul, so that its answer comes while data/ is being read."""
        if self.consul_list:
            self.consul_list.start_request()

    def list_hosts(self, in_data: Iterable[str]) -> tuple[dict[str, DiscoveredHost], list[Problem]]:
        """Every host that data/ has or a list names, in the order of their names; and what is wrong with the lists."""
        rows, problems = self.hosts_txt_file.read()
        text = {host.name: host for host in rows}
        rows, more = self.hosts_json_file.read()
        full = {host.name: host for host in rows}
        problems += more
        names = dict.fromkeys([*in_data, *text, *full])
        nodes: dict[str, ConsulNode] = {}
        listed = None
        if self.consul_list:
            listed, more = self.consul_list.read()
            nodes, unclear = match_nodes_to_hosts(listed or (), names)
            problems += more + [Problem(self.consul_list.where, what) for what in unclear]
        return {
            name: merge_host_sources(name, nodes.get(name), text.get(name), full.get(name), listed is not None)
            for name in sorted({*names, *nodes})
        }, problems


def merge_host_sources(
    name: str, node: ConsulNode | None, text: ListedHost | None, full: ListedHost | None, has_list: bool
) -> DiscoveredHost:
    """One host: what a person wrote in hosts.txt counts before what Consul says, and that before hosts.json."""
    told = text or ListedHost(name)
    full_name = full.title if full and full.title != name else None
    return DiscoveredHost(
        name,
        title=told.title or (node.title if node else None) or full_name,
        tags=tuple(dict.fromkeys(told.tags + (node.tags if node else ()))),
        maintenance=told.maintenance or (node.maintenance if node else None),
        is_hidden=told.is_hidden,
        listed_by=tuple(who for who, one in (("Consul", node), ("hosts.txt", text), ("hosts.json", full)) if one),
        consul_status=node.status if node else None,
        consul_message=node.message if node else None,
        is_missing_in_consul=has_list and node is None,
    )
