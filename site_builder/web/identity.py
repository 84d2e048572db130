"""Who asks the desk over the web, by the word of the web server, of a proxy, of a token, or by their own."""

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
    """Somebody whom we know by name."""
    name = validate_user_name(name)
    return WebCaller(BookingUser(name, fold_login(name) in rules.admins, f"web, {how}"), how)


def read_server_login(environ: WSGIEnvironment) -> str:
    """The login at the web server; without a kind of login beside it, nginx passes on a name that nobody checked."""
    return decode_environ_text(environ, "REMOTE_USER") if environ.get("AUTH_TYPE") else ""


def read_proxy_login(environ: WSGIEnvironment, rules: BookingPolicy) -> str:
    """The login at the proxy, if it is the proxy that says so."""
    if not is_from_proxy(environ, rules):
        return ""
    name = decode_environ_text(environ, f"HTTP_{rules.proxy_header.upper().replace('-', '_')}")
    if NAME_SEPARATOR in name:
        message = f"the proxy gives several names in {rules.proxy_header}: it must set this header, not add to it"
        raise InvalidNameError(message)
    return name


def is_from_proxy(environ: WSGIEnvironment, rules: BookingPolicy) -> bool:
    """Whether the other end of the line is the proxy that is believed."""
    there, proxy = parse_ip_address(environ.get("REMOTE_ADDR", "")), parse_ip_address(rules.proxy or "")
    return proxy is not None and there == proxy


def parse_ip_address(told: str) -> IPv4Address | IPv6Address | None:
    """An address in its one form."""
    try:
        found = ip_address(told.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def find_client_address(environ: WSGIEnvironment, rules: BookingPolicy) -> str:
    """Where somebody asks from: behind the proxy, the last that it saw."""
    if is_from_proxy(environ, rules):
        last = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(NAME_SEPARATOR)[2].strip()
        if parse_ip_address(last):
            return last
    return str(environ.get("REMOTE_ADDR", ""))


def parse_bearer_token(environ: WSGIEnvironment) -> str | None:
    """What stands behind `Authorization: Bearer`."""
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def identify_open_user(request: Mapping[str, Any]) -> BookingUser:
    """At an open desk: whom `as` names, else for whom it is booked; such a one is never an admin."""
    name = request.get("as") or (request.get("name") if request.get("do") == "book" else None)
    return BookingUser(
        validate_user_name(name) if isinstance(name, str) and name.strip() else "", via="web, open", is_open=True
    )


def decode_environ_text(environ: WSGIEnvironment, key: str) -> str:
    """A value in the letters that were meant: WSGI has a letter for each byte."""
    found = str(environ.get(key, "")).strip(" \t")  # other blanks may be the last byte of a letter, as in à
    try:
        return found.encode("latin-1").decode()
    except UnicodeError:
        return found
