"""Who asks the desk over the web, by the word of the web server, of a proxy, of a token, or by their own."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from site_builder.bookings.api import LONGEST_NAME
from site_builder.bookings.tokens import Tokens
from site_builder.bookings.transaction import Who
from site_builder.core.model import BookingRules
from site_builder.core.names import folded
from site_builder.snapshots.envelope import clean

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Between names of several proxies; nobody is called so.
SEPARATOR = ","
# Unicode's categories of what steers a text, and has no shape of its own.
UNSEEN = {"Cc", "Cf"}


class WrongToken(Exception):
    """A token that is nobody's."""


class OddName(Exception):
    """A name under which nobody can book."""


class Caller(NamedTuple):
    """Who it is, and how we know: server, proxy, token, open, or None for somebody who may only look."""

    who: Who
    how: str | None


NOBODY = Caller(Who("", via="web"), None)


def known(environ: WSGIEnvironment, rules: BookingRules, tokens: Tokens) -> Caller:
    """Who somebody is without a word of their own; `NOBODY` where nothing tells."""
    name = by_server(environ)
    if name:
        return caller(name, "server", rules)
    name = by_proxy(environ, rules)
    if name:
        return caller(name, "proxy", rules)
    token = token_of(environ)
    if token is None:
        return NOBODY._replace(how="open") if rules.open else NOBODY
    found = tokens.name_of(token)
    if found is None:
        raise WrongToken
    return caller(found, "token", rules)


def caller(name: str, how: str, rules: BookingRules) -> Caller:
    """Somebody whom we know by name."""
    name = right_name(name)
    return Caller(Who(name, folded(name) in rules.admins, f"web, {how}"), how)


def by_server(environ: WSGIEnvironment) -> str:
    """The login at the web server; without a kind of login beside it, nginx passes on a name that nobody checked."""
    return text(environ, "REMOTE_USER") if environ.get("AUTH_TYPE") else ""


def by_proxy(environ: WSGIEnvironment, rules: BookingRules) -> str:
    """The login at the proxy, if it is the proxy that says so."""
    if not from_proxy(environ, rules):
        return ""
    name = text(environ, f"HTTP_{rules.proxy_header.upper().replace('-', '_')}")
    if SEPARATOR in name:
        message = f"the proxy gives several names in {rules.proxy_header}: it must set this header, not add to it"
        raise OddName(message)
    return name


def from_proxy(environ: WSGIEnvironment, rules: BookingRules) -> bool:
    """Whether the other end of the line is the proxy that is believed."""
    there, proxy = address(environ.get("REMOTE_ADDR", "")), address(rules.proxy or "")
    return proxy is not None and there == proxy


def address(told: str) -> IPv4Address | IPv6Address | None:
    """An address in its one form."""
    try:
        found = ip_address(told.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def address_of(environ: WSGIEnvironment, rules: BookingRules) -> str:
    """Where somebody asks from: behind the proxy, the last that it saw."""
    if from_proxy(environ, rules):
        last = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(SEPARATOR)[2].strip()
        if address(last):
            return last
    return str(environ.get("REMOTE_ADDR", ""))


def token_of(environ: WSGIEnvironment) -> str | None:
    """What stands behind `Authorization: Bearer`."""
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def by_own_word(request: Mapping[str, Any]) -> Who:
    """At an open desk: whom `as` names, else for whom it is booked; such a one is never an admin."""
    name = request.get("as") or (request.get("name") if request.get("do") == "book" else None)
    return Who(right_name(name) if isinstance(name, str) and name.strip() else "", via="web, open", open=True)


def right_name(name: str) -> str:
    """The name as it is; one that would have to be changed first could become somebody else's."""
    name = name.strip()
    if not name or clean(name) != name or " ".join(name.split()) != name or len(name) > LONGEST_NAME:
        message = f"nobody can book under this name: it must be one line of at most {LONGEST_NAME} letters"
        raise OddName(message)
    if unicodedata.normalize("NFKC", name) != name or any(unicodedata.category(one) in UNSEEN for one in name):
        message = (
            "nobody can book under this name: it has letters that cannot be seen, or that are another way to write "
            "usual ones"
        )
        raise OddName(message)
    return name


def text(environ: WSGIEnvironment, key: str) -> str:
    """A value in the letters that were meant: WSGI has a letter for each byte."""
    found = str(environ.get(key, "")).strip(" \t")  # other blanks may be the last byte of a letter, as in à
    try:
        return found.encode("latin-1").decode()
    except UnicodeError:
        return found
