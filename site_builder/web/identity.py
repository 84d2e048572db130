"""Identify who sends a booking request: by the web server's login, a proxy's header, a token, or their own word."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder.bookings.policy import InvalidNameError, validate_user_name
from site_builder.bookings.tokens import TokenStore
from site_builder.bookings.transaction import BookingUser
from site_builder.core.model import BookingPolicy
from site_builder.core.names import fold_login

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Between names of several proxies; nobody is called so.
NAME_SEPARATOR = ","


class UnknownTokenError(Exception):
    """A token that is nobody's."""


class WebCaller(NamedTuple):
    """Who it is, and how we know: server, proxy, token, open, or None for somebody who may only look."""

    user: BookingUser
    auth_method: str | None


ANONYMOUS_CALLER = WebCaller(BookingUser("", via="web"), None)


def identify_caller(environ: WSGIEnvironment, rules: BookingPolicy, tokens: TokenStore) -> WebCaller:
    """Who somebody is without a word of their own; `ANONYMOUS_CALLER` where nothing tells."""
    name = read_server_login(environ)
    if name:
        return build_caller(name, "server", rules)
    name = read_proxy_login(environ, rules)
    if name:
        return build_caller(name, "proxy", rules)
    token = parse_bearer_token(environ)
    if token is None:
        return ANONYMOUS_CALLER._replace(auth_method="open") if rules.is_open else ANONYMOUS_CALLER
    found = tokens.find_token_owner(token)
    if found is None:
        raise UnknownTokenError
    return build_caller(found, "token", rules)


def build_caller(name: str, how: str, rules: BookingPolicy) -> WebCaller:
    """Build a caller who is known by name."""
    name = validate_user_name(name)
    return WebCaller(BookingUser(name, fold_login(name) in rules.admins, f"web, {how}"), how)


def read_server_login(environ: WSGIEnvironment) -> str:
    """Return the login at the web server; without AUTH_TYPE, nginx passes on a name that nobody checked."""
    return decode_environ_text(environ, "REMOTE_USER") if environ.get("AUTH_TYPE") else ""


def read_proxy_login(environ: WSGIEnvironment, rules: BookingPolicy) -> str:
    """Return the login in the proxy's header, if the request comes from the proxy."""
    if not is_from_proxy(environ, rules):
        return ""
    name = decode_environ_text(environ, f"HTTP_{rules.proxy_header.upper().replace('-', '_')}")
    if NAME_SEPARATOR in name:
        message = f"the proxy gives several names in {rules.proxy_header}: it must set this header, not add to it"
        raise InvalidNameError(message)
    return name


def is_from_proxy(environ: WSGIEnvironment, rules: BookingPolicy) -> bool:
    """Return True if the request comes from the trusted proxy."""
    there, proxy = parse_ip_address(environ.get("REMOTE_ADDR", "")), parse_ip_address(rules.proxy or "")
    return proxy is not None and there == proxy


def parse_ip_address(told: str) -> IPv4Address | IPv6Address | None:
    """Parse an address; one of IPv4 within IPv6 becomes IPv4."""
    try:
        found = ip_address(told.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def find_client_address(environ: WSGIEnvironment, rules: BookingPolicy) -> str:
    """Return the address of the client; behind the proxy, the last one that it saw."""
    if is_from_proxy(environ, rules):
        last = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(NAME_SEPARATOR)[2].strip()
        if parse_ip_address(last):
            return last
    return str(environ.get("REMOTE_ADDR", ""))


def parse_bearer_token(environ: WSGIEnvironment) -> str | None:
    """Return the token in `Authorization: Bearer`."""
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def identify_open_user(request: Mapping[str, Any]) -> BookingUser:
    """Take the name from `as`, else for whom it is booked; such a user is never an admin."""
    name = request.get("as") or (request.get("name") if request.get("do") == "book" else None)
    return BookingUser(
        validate_user_name(name) if isinstance(name, str) and name.strip() else "", via="web, open", is_open=True
    )


def decode_environ_text(environ: WSGIEnvironment, key: str) -> str:
    """Decode a value as UTF-8: WSGI has a character for each byte."""
    found = str(environ.get(key, "")).strip(" \t")  # other blanks may be the last byte of a character, as in à
    try:
        return found.encode("latin-1").decode()
    except UnicodeError:
        return found
