"""Find the hosts of the board: Consul, hosts.txt, hosts.json and data/."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from site_builder.consul import client
from site_builder.consul.client import MAX_RESPONSE_BYTES, ConsulRequest, clean_consul_json_value
from site_builder.core import files
from site_builder.core.data_folder import CachedDataFile
from site_builder.core.formatting import format_local_time
from site_builder.core.model import ConsulAccess, DiscoveredHost, ParsedFile, Problem
from site_builder.core.names import is_host_name
from site_builder.core.records import describe_json_error
from site_builder.core.terminal_text import decode_text, limit_problems

MAINTENANCE_PATTERN = re.compile(r"(?:^|,)\s*maintenance\s*(?::\s*(.*))?$", re.IGNORECASE)
MAX_CELL_CHARACTERS = 200
MAX_HOSTS = 20_000
STATUSES_WORST_FIRST = ("critical", "warning", "passing")
MAX_ENTRIES = 20_000
MAX_TAGS = 50
MAX_PROBLEMS = 10
MAX_NAME_CHARACTERS = 255
MAX_TITLE_CHARACTERS = 200
MAX_TAG_CHARACTERS = 60
MAX_MESSAGE_CHARACTERS = 200
# Consul's own note if nobody gave a reason.
NO_REASON_NOTE = re.compile(r"Maintenance mode is enabled for this (?:node|service), but no reason was provided")
NUMERIC_NAME = re.compile(r"[0-9.]+")
MAINTENANCE_CHECK = re.compile(r"_node_maintenance|_service_maintenance:.*", re.DOTALL)


@dataclass(frozen=True)
class DiscoveredNode:
    """A node that has the service; `host` is in the service's meta, `status` the worst of its checks."""

    node: str
    host: str | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    status: str = "passing"
    message: str | None = None
    maintenance: str | None = None

    @property
    def short_name(self) -> str:
        """Return the name before the first dot; an IP address as it is."""
        return self.node if NUMERIC_NAME.fullmatch(self.node) else self.node.partition(".")[0]


class HostDiscovery:
    """Merges all lists of hosts at each build."""

    def __init__(self, data: Path, state: Path | None, consul: ConsulAccess | None) -> None:
        """Load the last good lists from state/; without a state folder Consul is not used."""
        self.consul_list = ConsulHostList(state, consul) if consul and state else None
        self.hosts_txt_file = CachedDataFile(data, state, "hosts.txt", parse_hosts_txt)
        self.hosts_json_file = CachedDataFile(data, state, "hosts.json", parse_hosts_json)

    def start_consul_request(self) -> None:
        """Send the request to Consul, so that its response comes while data/ is read."""
        if self.consul_list:
            self.consul_list.start_request()

    def list_hosts(self, in_data: Iterable[str]) -> tuple[dict[str, DiscoveredHost], list[Problem]]:
        """Return every host in data/ or in a list, sorted by name; and what is wrong with the lists."""
        txt_rows, problems = self.hosts_txt_file.read()
        json_rows, json_problems = self.hosts_json_file.read()
        problems += json_problems
        hosts_txt = {host.name: host for host in txt_rows}
        hosts_json = {host.name: host.title if host.title != host.name else None for host in json_rows}
        names = dict.fromkeys([*in_data, *hosts_txt, *hosts_json])
        nodes: dict[str, DiscoveredNode] = {}
        consul_nodes = None
        if self.consul_list:
            consul_nodes, consul_problems = self.consul_list.read()
            nodes, match_problems = match_discovered_nodes_to_hosts(consul_nodes or (), names)
            problems += consul_problems + [Problem(self.consul_list.where, what) for what in match_problems]
        sources: dict[str, Container[str]] = {"Consul": nodes, "hosts.txt": hosts_txt, "hosts.json": hosts_json}
        hosts = {}
        for name in sorted({*names, *nodes}):
            # hosts.txt, which people write, before Consul, and that before hosts.json
            listed, node = hosts_txt.get(name, DiscoveredHost(name)), nodes.get(name)
            hosts[name] = DiscoveredHost(
                name,
                title=listed.title or (node.title if node else None) or hosts_json.get(name),
                tags=tuple(dict.fromkeys(listed.tags + (node.tags if node else ()))),
                maintenance=listed.maintenance or (node.maintenance if node else None),
                is_hidden=listed.is_hidden,
                listed_by=tuple(source for source, entries in sources.items() if name in entries),
                consul_status=node.status if node else None,
                consul_message=node.message if node else None,
                is_missing_in_consul=consul_nodes is not None and node is None,
            )
        return hosts, problems


def parse_hosts_txt(data: bytes) -> ParsedFile[DiscoveredHost]:
    """Parse one host per line; `#` begins a comment."""
    hosts: dict[str, DiscoveredHost] = {}
    problems: list[str] = []
    for number, line in enumerate(decode_text(data).split("\n"), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        # the reason of a maintenance may hold commas, up to the end of the line
        maintenance = MAINTENANCE_PATTERN.search(text)
        name, *cells = (cell.strip() for cell in text[: maintenance.start() if maintenance else None].split(","))
        values = [cell[:MAX_CELL_CHARACTERS] for cell in cells if cell.lower() != "hidden"]
        if not is_host_name(name):
            hint = "; separate name, title and tags with commas" if " " in name else ""
            problems.append(f"line {number}: '{name[:80]}' is not a host name{hint}")
        elif name in hosts:
            problems.append(f"line {number}: {name} is listed twice; the first line is used")
        else:
            reason = (maintenance[1] or "").strip() or "no reason given" if maintenance else None
            title, tags, *_ = *values, "", ""
            reason, is_hidden = reason and reason[:MAX_CELL_CHARACTERS], len(values) < len(cells)
            hosts[name] = DiscoveredHost(name, title or None, tuple(tags.split()), reason, is_hidden)
    return ParsedFile(tuple(hosts.values()), problems=limit_problems(problems))


def parse_hosts_json(data: bytes) -> ParsedFile[DiscoveredHost]:
    """Parse hosts with their full names as titles; incomplete if the file is not such an object."""
    try:
        content = json.loads(decode_text(data).lstrip("\ufeff"), strict=False)
    except json.JSONDecodeError as error:
        return ParsedFile(is_complete=False, problems=(describe_json_error(error),))
    except (ValueError, RecursionError):
        return ParsedFile(is_complete=False, problems=("it is nested too deeply to be read",))
    if not isinstance(content, dict):
        reason = 'it must be an object of names: {"atlas": "atlas.example.org"}'
        return ParsedFile(is_complete=False, problems=(reason,))
    hosts: list[DiscoveredHost] = []
    problems: list[str] = []
    for name, full_name in content.items():
        shown_name = clean_host_text(name)[:80]
        if not is_host_name(name):
            problems.append(f"'{shown_name}' is not a host name")
        elif full_name is not None and not isinstance(full_name, str):
            problems.append(f"the full name of {shown_name} is not text")
        else:
            hosts.append(DiscoveredHost(name, title=clean_host_text(full_name or "")[:MAX_TITLE_CHARACTERS] or None))
    if len(hosts) > MAX_HOSTS:
        problems.append(f"it has {len(hosts)} hosts; only the first {MAX_HOSTS} count")
    return ParsedFile(tuple(hosts[:MAX_HOSTS]), problems=limit_problems(problems))


def clean_host_text(text: str) -> str:
    """Return one line without control characters and lone surrogates, which JSON can hold as escapes."""
    return " ".join(decode_text(text.encode("utf-8", "replace")).split())


class ConsulHostList:
    """The nodes of the service, as Consul lists them now or listed them last."""

    def __init__(self, state: Path, access: ConsulAccess) -> None:
        self.access = access
        self.query = {"service": access.service, "datacenter": access.datacenter}  # identifies a stored list
        self.where = f"Consul at {client.format_agent_address(access.address)}"
        self.store_path = state / "consul.json"
        self.nodes: tuple[DiscoveredNode, ...] | None = None
        self.stored_nodes: tuple[DiscoveredNode, ...] | None = None
        self.nodes_time = 0.0
        self.request: ConsulRequest | None = None
        with suppress(OSError, files.FileRefusedError, ValueError, RecursionError):
            signature, content = files.read_with_signature(self.store_path, MAX_RESPONSE_BYTES)
            stored = json.loads(content)
            nodes = stored.pop("nodes", None) if isinstance(stored, dict) else None
            parsed = parse_discovered_nodes(nodes)
            if stored == self.query and parsed.is_complete:
                self.nodes = self.stored_nodes = parsed.rows
                self.nodes_time = signature.modified_ns / 1e9

    def start_request(self) -> None:
        """Send a request, unless an earlier one still hangs."""
        if self.request is None or not self.request.thread.is_alive():
            self.request = request_discovered_nodes(self.access)

    def read(self) -> tuple[tuple[DiscoveredNode, ...] | None, list[Problem]]:
        """Return the nodes, None if there was never a list; and what is wrong."""
        if self.request is None or self.request.is_cancelled:
            self.start_request()
        request = self.request
        if request is None or request.is_cancelled:
            failure = "does not answer: an earlier request is still waiting"
            return self.nodes, [self.build_problem(failure)]
        failure = request.wait()
        self.request = request if request.is_cancelled else None
        if failure:
            return self.nodes, [self.build_problem(failure)]
        parsed = parse_discovered_nodes(request.response)
        if not parsed.is_complete:
            return self.nodes, [self.build_problem(f"answers, but {'; '.join(parsed.problems)}")]
        problems = [Problem(self.where, what) for what in parsed.problems]
        self.nodes, self.nodes_time = parsed.rows, request.received_at
        try:
            self.store_nodes(parsed.rows)
        except OSError as error:
            problems.append(Problem("state/consul.json", f"Consul's list could not be saved: {error.strerror}"))
        if not parsed.rows:
            # without rights, Consul shows nothing rather than refuse
            rights = client.SERVICE_RIGHTS
            hint = rights if self.access.token else f"CONSUL_HTTP_TOKEN must be set, and {rights}"
            what = f"no host has the service {self.access.service}; correct GPUBOARD_CONSUL_SERVICE"
            problems.append(Problem(self.where, f"{what}, or if Consul has ACLs, {hint}"))
        return self.nodes, problems

    def build_problem(self, what: str) -> Problem:
        if self.nodes is None:
            return Problem(self.where, f"{what}; there is no earlier list to use")
        return Problem(self.where, f"{what}; the list of {format_local_time(self.nodes_time)} is used")

    def store_nodes(self, nodes: tuple[DiscoveredNode, ...]) -> None:
        """Store a good list; the file's time is when Consul last sent it."""
        if nodes == self.stored_nodes and self.store_path.exists():
            os.utime(self.store_path, (self.nodes_time, self.nodes_time))
            return
        self.stored_nodes = None
        content = {**self.query, "nodes": discovered_nodes_to_json(nodes)}
        files.write_atomically(self.store_path, json.dumps(content).encode(), 0o600)
        self.stored_nodes = nodes


def request_discovered_nodes(access: ConsulAccess) -> ConsulRequest:
    """Request all nodes of the service, not only passing ones: the board must show failing hosts."""
    service, datacenter = access.service, access.datacenter
    return ConsulRequest(access, lambda client: client.health.service(service, dc=datacenter)[1], client.NODES_RESPONSE)


def parse_discovered_nodes(response: object) -> ParsedFile[DiscoveredNode]:
    """Parse every node once; incomplete if the response is not such a list."""
    if not isinstance(response, list):
        return ParsedFile(is_complete=False, problems=("it is not a list of services",))
    nodes: dict[tuple[str, str | None], DiscoveredNode] = {}
    problems: list[str] = []
    for number, entry in enumerate(response[:MAX_ENTRIES], 1):
        try:
            node = parse_discovered_node(entry)
        except ValueError as error:
            problems.append(f"entry {number} of its answer is ignored: {error}")
            continue
        key = node.node, node.host
        nodes[key] = merge_discovered_nodes(nodes[key], node) if key in nodes else node
    if problems and not nodes:
        return ParsedFile(is_complete=False, problems=("none of its entries is a service",))
    hidden_count = len(problems) - MAX_PROBLEMS
    if hidden_count > 0:
        problems[MAX_PROBLEMS:] = [f"{hidden_count} more entries of its answer are ignored"]
    if len(response) > MAX_ENTRIES:
        problems.append(f"its answer has {len(response)} entries; only the first {MAX_ENTRIES} count")
    return ParsedFile(tuple(nodes.values()), problems=tuple(problems))


def parse_discovered_node(entry: object) -> DiscoveredNode:
    record = require_discovered_object(entry, "it")
    node = require_discovered_object(record.get("Node"), "Node")
    service = require_discovered_object(record.get("Service"), "Service")
    meta = require_discovered_object(service.get("Meta") or {}, "Service.Meta")
    tags = require_discovered_list(service.get("Tags"), "Service.Tags")
    clean_tags = [clean_consul_json_value(tag, MAX_TAG_CHARACTERS) for tag in tags]
    name = clean_consul_json_value(node.get("Node"), MAX_NAME_CHARACTERS + 1)
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise ValueError("its node has no name" if not name else "its node name is too long")
    checks: list[dict[object, object]] = [{"Status": "passing"}]
    maintenance = None
    for item in require_discovered_list(record.get("Checks"), "Checks"):
        check = require_discovered_object(item, "a check")
        # by these checks Consul marks its maintenance mode
        if check.get("Status") == "critical" and MAINTENANCE_CHECK.fullmatch(str(check.get("CheckID"))):
            note = clean_consul_json_value(check.get("Notes"), MAX_MESSAGE_CHARACTERS)
            reason = "no reason given" if not note or NO_REASON_NOTE.match(note) else note
            maintenance = maintenance or reason
        else:
            checks.append(check)
    worst = min(checks, key=rank_discovered_check)
    messages = (clean_consul_json_value(worst.get(key), MAX_MESSAGE_CHARACTERS) for key in ("Output", "Notes", "Name"))
    return DiscoveredNode(
        name,
        host=clean_consul_json_value(meta.get("host"), MAX_NAME_CHARACTERS) or None,
        title=clean_consul_json_value(meta.get("title"), MAX_TITLE_CHARACTERS) or None,
        tags=tuple(dict.fromkeys(filter(None, clean_tags)))[:MAX_TAGS],
        status=STATUSES_WORST_FIRST[rank_discovered_check(worst)],
        message=next(filter(None, messages), None),
        maintenance=maintenance,
    )


def require_discovered_object(value: object, what: str) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def require_discovered_list(value: object, what: str) -> list[object]:
    """Return the list; Consul writes null for an empty one."""
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    return value or []


def rank_discovered_check(check: dict[object, object]) -> int:
    """Rank the worst status lowest; an unknown one is critical."""
    status = check.get("Status")
    return STATUSES_WORST_FIRST.index(status) if status in STATUSES_WORST_FIRST else 0


def merge_discovered_nodes(node: DiscoveredNode, second: DiscoveredNode) -> DiscoveredNode:
    """Merge two instances of the service on one node: the worse state counts."""
    worse = min(node, second, key=lambda instance: STATUSES_WORST_FIRST.index(instance.status))
    return replace(
        node,
        title=node.title or second.title,
        tags=tuple(dict.fromkeys(node.tags + second.tags))[:MAX_TAGS],
        status=worse.status,
        message=worse.message,
        maintenance=node.maintenance or second.maintenance,
    )


def discovered_nodes_to_json(nodes: Iterable[DiscoveredNode]) -> list[object]:
    """Return the nodes in the form that `parse_discovered_nodes` reads."""
    entries: list[object] = []
    for node in nodes:
        checks = [{"Status": node.status, "Output": node.message}]
        if node.maintenance:
            checks.append({"CheckID": "_node_maintenance", "Status": "critical", "Notes": node.maintenance})
        service = {"Tags": node.tags, "Meta": {"host": node.host, "title": node.title}}
        entries.append({"Node": {"Node": node.node}, "Service": service, "Checks": checks})
    return entries


def match_discovered_nodes_to_hosts(
    nodes: Iterable[DiscoveredNode], known_hosts: Iterable[str]
) -> tuple[dict[str, DiscoveredNode], list[str]]:
    """Return the node of each host, known or new, and what is ambiguous."""
    names = dict.fromkeys(known_hosts)
    folded = {name.lower(): name for name in reversed(names)}
    nodes = list(nodes)
    short_name_counts = Counter(short.lower() for short in {node.node: node.short_name for node in nodes}.values())
    claims = sorted(((*find_discovered_host(node, names, folded), node) for node in nodes), key=lambda claim: claim[0])
    hosts: dict[str, DiscoveredNode] = {}
    problems: list[str] = []
    for _, known_host, node in claims:
        candidates = [known_host] if known_host else []
        if node.host and is_host_name(node.host):
            candidates.append(node.host)
        elif node.host:
            what = f"has '{node.host[:80]}' as its meta host, which is not a host name"
            problems.append(f"the node {node.node[:80]} {what}")
        if short_name_counts[node.short_name.lower()] == 1 and is_host_name(node.short_name):
            candidates.append(node.short_name)
        if is_host_name(node.node):
            candidates.append(node.node)
        for name in dict.fromkeys(candidates):
            holder = hosts.setdefault(name, node)
            if holder.node == node.node:
                hosts[name] = node if holder is node else merge_discovered_nodes(holder, node)
                break
            problems.append(f"the nodes {holder.node} and {node.node} are both the host {name}: {holder.node} is used")
        else:
            if not candidates:
                problems.append(f"the node '{node.node[:80]}' is ignored: not a valid host name")
    return hosts, problems


def find_discovered_host(node: DiscoveredNode, names: Container[str], folded: dict[str, str]) -> tuple[int, str | None]:
    """Return the known host that a node is, and a rank: the lower, the surer."""
    for rank, name in enumerate((node.host or "", node.node, node.short_name)):
        if name in names:
            return 2 * rank, name
        if name.lower() in folded:
            return 2 * rank + 1, folded[name.lower()]
    return 6, None
