"""Identify who sends a request, and limit how often they may."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from site_builder.bookings.policy import InvalidNameError, validate_user_name
from site_builder.bookings.tokens import TokenStore
from site_builder.bookings.transaction import BookingUser
from site_builder.core import locks
from site_builder.core.model import BookingPolicy
from site_builder.core.names import fold_login

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

REQUESTS_FILE, LISTS_FILE = "attempts.json", "looks.json"
BUCKET_CAPACITY = 60.0
MAX_ADDRESSES = 1000
MAX_FILE_BYTES = 1024 * 1024
BucketLevels = dict[str, tuple[float, float]]
# Between names of several proxies; nobody is called so.
NAME_SEPARATOR = ","


class RateLimiter:
    """Counts requests, and says how long an address has to wait."""

    def __init__(self, state: Path, clock: Callable[[], float], file: str = REQUESTS_FILE) -> None:
        self.path = state / file
        self.clock = clock

    def find_wait_s(self, address: str, cost: float) -> int:
        """Return the seconds until a request of this cost is allowed; count nothing."""
        levels = self.read_levels()
        if self.is_clock_set_back(levels, address):
            self.add_cost(address, 0.0, True)
        return compute_wait_s(self.find_level(levels, address) + cost)

    def count_request(self, address: str, cost: float) -> int:
        """Count a request, or return in how many seconds it will be allowed; a refused one is not counted."""
        return self.add_cost(address, cost, False)

    def penalize(self, address: str, cost: float) -> None:
        """Count a request that should not have been made, as far as the bucket has room."""
        self.add_cost(address, cost, True)

    def add_cost(self, address: str, cost: float, always: bool) -> int:
        """Fill the bucket under a lock, so that concurrent requests gain nothing."""
        with locks.hold_file_lock(self.path):
            levels = self.read_levels()
            is_set_back = self.is_clock_set_back(levels, address)
            wait_s = self.fill_bucket(levels, address, cost, always)
            if always or not wait_s or is_set_back:
                locks.write_locked_file(self.path, orjson.dumps(self.drop_empty_buckets(levels)))
        return wait_s

    def fill_bucket(self, levels: BucketLevels, address: str, cost: float, always: bool) -> int:
        """Fill the bucket of an address unless it would overflow; return the seconds to wait."""
        level = self.find_level(levels, address) + cost
        wait_s = compute_wait_s(level)
        if always or not wait_s:
            levels[build_address_key(address)] = min(level, BUCKET_CAPACITY), self.clock()
        return wait_s

    def find_level(self, levels: BucketLevels, address: str) -> float:
        """Return how full the bucket of an address is now."""
        level, at = levels.get(build_address_key(address), (0.0, 0.0))
        return max(0.0, level - max(0.0, self.clock() - at))

    def is_clock_set_back(self, levels: BucketLevels, address: str) -> bool:
        """Return True if the clock was set back since: the bucket would not leak before it is that late again."""
        return levels.get(build_address_key(address), (0.0, 0.0))[1] > self.clock()

    def drop_empty_buckets(self, levels: BucketLevels) -> BucketLevels:
        """Return the buckets that are not empty, at most MAX_ADDRESSES, the fullest; times in the future become now."""
        now = self.clock()
        full = {key: (level, min(at, now)) for key, (level, at) in levels.items() if level > now - at}
        if len(full) <= MAX_ADDRESSES:
            return full
        fullest = sorted(full, key=lambda key: full[key][0] + full[key][1], reverse=True)
        return {key: full[key] for key in fullest[:MAX_ADDRESSES]}

    def read_levels(self) -> BucketLevels:
        """Read all buckets; a damaged file starts anew."""
        try:
            levels = orjson.loads(locks.read_locked_file(self.path, MAX_FILE_BYTES) or b"{}")
            return {str(key): (min(BUCKET_CAPACITY, float(level)), float(at)) for key, (level, at) in levels.items()}
        except (ValueError, TypeError, AttributeError):
            return {}


class InMemoryRateLimiter(RateLimiter):
    """Counts in the memory of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(Path(), clock)
        self.levels: BucketLevels = {}
        self.lock = Lock()

    def read_levels(self) -> BucketLevels:
        return self.levels

    def add_cost(self, address: str, cost: float, always: bool) -> int:
        with self.lock:
            wait_s = self.fill_bucket(self.levels, address, cost, always)
            self.levels = self.drop_empty_buckets(self.levels)
        return wait_s


def compute_wait_s(level: float) -> int:
    """Return the seconds until a bucket filled to this level does not overflow any more."""
    return max(0, math.ceil(level - BUCKET_CAPACITY))


def build_address_key(address: str) -> str:
    """Return the key of an address; all IPv6 addresses of a /64 network have the same one."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))


class UnknownTokenError(Exception):
    """A token that is nobody's."""


class WebCaller(NamedTuple):
    """Who makes a request, and how we know: server, proxy, token, open, or None for somebody who may only look."""

    user: BookingUser
    auth_method: str | None


ANONYMOUS_CALLER = WebCaller(BookingUser("", via="web"), None)


def identify_caller(environ: WSGIEnvironment, policy: BookingPolicy, tokens: TokenStore) -> WebCaller:
    """Identify a caller by web server, proxy or token; ANONYMOUS_CALLER if nothing tells."""
    name = read_server_login(environ)
    if name:
        return build_caller(name, "server", policy)
    name = read_proxy_login(environ, policy)
    if name:
        return build_caller(name, "proxy", policy)
    token = parse_bearer_token(environ)
    if token is None:
        return ANONYMOUS_CALLER._replace(auth_method="open") if policy.is_open else ANONYMOUS_CALLER
    owner = tokens.find_token_owner(token)
    if owner is None:
        raise UnknownTokenError
    return build_caller(owner, "token", policy)


def build_caller(name: str, auth_method: str, policy: BookingPolicy) -> WebCaller:
    name = validate_user_name(name)
    return WebCaller(BookingUser(name, fold_login(name) in policy.admins, f"web, {auth_method}"), auth_method)


def read_server_login(environ: WSGIEnvironment) -> str:
    """Return the login at the web server; without AUTH_TYPE, nginx passes on a name that nobody checked."""
    return decode_environ_text(environ, "REMOTE_USER") if environ.get("AUTH_TYPE") else ""


def read_proxy_login(environ: WSGIEnvironment, policy: BookingPolicy) -> str:
    """Return the login at the proxy, if the proxy sent the request."""
    if not is_from_proxy(environ, policy):
        return ""
    name = decode_environ_text(environ, f"HTTP_{policy.proxy_header.upper().replace('-', '_')}")
    if NAME_SEPARATOR in name:
        message = f"the proxy gives several names in {policy.proxy_header}: it must set this header, not add to it"
        raise InvalidNameError(message)
    return name


def is_from_proxy(environ: WSGIEnvironment, policy: BookingPolicy) -> bool:
    client, proxy = parse_ip_address(environ.get("REMOTE_ADDR", "")), parse_ip_address(policy.proxy or "")
    return proxy is not None and client == proxy


def parse_ip_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address into its one form."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def find_client_address(environ: WSGIEnvironment, policy: BookingPolicy) -> str:
    """Return the address of the client: behind the proxy, the last that it saw."""
    if is_from_proxy(environ, policy):
        last_address = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(NAME_SEPARATOR)[2].strip()
        if parse_ip_address(last_address):
            return last_address
    return str(environ.get("REMOTE_ADDR", ""))


def parse_bearer_token(environ: WSGIEnvironment) -> str | None:
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def identify_open_user(request: Mapping[str, Any]) -> BookingUser:
    """On an open board, return the user that `as` names, else the one to book for; never an admin."""
    name = request.get("as") or (request.get("name") if request.get("do") == "book" else None)
    return BookingUser(
        validate_user_name(name) if isinstance(name, str) and name.strip() else "", via="web, open", is_open=True
    )


def decode_environ_text(environ: WSGIEnvironment, key: str) -> str:
    """Decode a value of the WSGI environment, which has a letter for each byte."""
    text = str(environ.get(key, "")).strip(" \t")  # other blanks may be the last byte of a letter, as in à
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text
