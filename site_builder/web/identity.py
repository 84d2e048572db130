"""Identify who sends a request: a login at the web server or a proxy, a token, and the address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import tzinfo
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder.bookings.policy import BookingNameError, check_booking_name
from site_builder.bookings.tokens import TokenStore, UnknownTokenError
from site_builder.bookings.transaction import BookingUser
from site_builder.core.clock import load_named_zone
from site_builder.core.model import BookingPolicy
from site_builder.core.people import fold_login

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

HOST_PATTERN = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_.-]{1,254}))(?::[0-9]{0,5})?")
# Between names of several proxies; nobody is called so.
NAME_SEPARATOR = ","


class WebCaller(NamedTuple):
    """Who makes a request, and how we know: server, proxy, token, open, or None for a caller who may only read."""

    user: BookingUser
    auth_method: str | None


ANONYMOUS_CALLER = WebCaller(BookingUser("", via="web"), None)


def identify_caller(environ: WSGIEnvironment, policy: BookingPolicy, tokens: TokenStore) -> WebCaller:
    """Identify a caller by web server, proxy or token; ANONYMOUS_CALLER if none does."""
    login = read_server_login(environ)
    if login:
        return build_web_caller(login, "server", policy)
    if is_request_from_proxy(environ, policy):
        login = decode_identity_text(environ, f"HTTP_{policy.proxy_header.upper().replace('-', '_')}")
        if NAME_SEPARATOR in login:
            problem = f"the proxy sends several names in {policy.proxy_header}"
            raise BookingNameError(f"{problem}: it must set this header, not add to it")
        if login:
            return build_web_caller(login, "proxy", policy)
    token = parse_bearer_token(environ)
    if token is None:
        return ANONYMOUS_CALLER._replace(auth_method="open") if policy.is_open else ANONYMOUS_CALLER
    owner = tokens.find_token_owner(token)
    if owner is None:
        raise UnknownTokenError
    return build_web_caller(owner, "token", policy)


def build_web_caller(name: str, auth_method: str, policy: BookingPolicy) -> WebCaller:
    name = check_booking_name(name)
    return WebCaller(BookingUser(name, fold_login(name) in policy.admins, f"web, {auth_method}"), auth_method)


def find_viewer_zone(environ: WSGIEnvironment) -> tzinfo | None:
    """Return the time zone in which the caller reads times; None if it is not given or unknown here."""
    with suppress(ValueError):
        return load_named_zone(str(environ.get("HTTP_X_GPUBOARD_ZONE", "")))
    return None


def read_server_login(environ: WSGIEnvironment) -> str:
    """Return the login at the web server; without AUTH_TYPE, nginx passes on a name that nobody checked."""
    return decode_identity_text(environ, "REMOTE_USER") if environ.get("AUTH_TYPE") else ""


def is_request_from_proxy(environ: WSGIEnvironment, policy: BookingPolicy) -> bool:
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
    if is_request_from_proxy(environ, policy):
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
    name = check_booking_name(name) if isinstance(name, str) and name.strip() else ""
    return BookingUser(name, via="web, open", is_open=True)


def decode_identity_text(environ: WSGIEnvironment, key: str) -> str:
    """Decode a value of the WSGI environment, which has a character for each byte."""
    text = str(environ.get(key, "")).strip(" \t")  # other blanks may be the last byte of a character, as in à
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def parse_host_header(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case and without port; None if it is not well formed."""
    parts = HOST_PATTERN.fullmatch(host.lower())
    if not parts:
        return None
    if parts[1]:
        return parts[1] if parse_ip_address(parts[1]) else None
    name = parts[2].rstrip(".")
    return None if not name or ".." in name or name.startswith(".") else name
