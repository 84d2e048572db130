"""Checks of the web server: the page and live.json as a browser gets them, and nothing else of this machine."""

from __future__ import annotations

import email.utils
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from site_builder.client.model import Failed, Fleet
from site_builder.core import board_client
from site_builder.core.formatting import names
from site_builder.doctor.check_result import Case, Found, apart, failed, passed, skipped, warned

# Seconds for which an answer may be kept: an open page asks for live.json this often.
LONGEST_CACHE = 10
# Bytes of a file by which it is known again.
FIRST = 64
SCRIPT = "assets/live.js"
# Of frame-ancestors, what lets any page frame the board.
OPEN_TO_ALL = {"*", "http:", "https:"}
TYPES = {"": ("text/html",), "live.json": ("application/json",), SCRIPT: ("text/javascript", "application/javascript")}
# Below this, compression is not worth it, and our own server does none.
SMALL = 1024
SNIPPETS = "docs/webservers.md has what a web server must send"


def address(case: Case) -> Found:
    """Whether the board is there."""
    place = case.url
    if not place:
        return skipped("nobody said where the board is served: set GPUBOARD_URL, or call this with --url")
    page = case.served("")
    if isinstance(page, str):
        return failed(page, "start the web server, or correct GPUBOARD_URL or --url")
    if page.status == 401:
        return skipped(f"{place} asks for a login: to have it looked at, set GPUBOARD_LOGIN")
    if page.status != 200:
        advice = "see whether it serves www/, and may read all of it (o+rx)"
        if page.status == 421:
            advice = "add this name to GPUBOARD_SERVER_NAMES on the web host, and start gpuboard serve anew"
        return failed(f"{place} answers {page.status}", advice)
    if b"gpuboard" not in page.content:
        return failed(f"{place} is another page than the board", "correct GPUBOARD_URL or --url, or serve www/ there")
    return passed(place)


def answer_of(case: Case, name: str) -> board_client.Seen | Found:
    """A file of the board as it is served, or the reason to skip what is asked of it."""
    page = case.served("") if case.url else ""
    if isinstance(page, str) or page.status != 200:
        return apart("the board was not reached")
    found = case.served(name)
    if isinstance(found, str):
        return failed(found, "see the check url")
    if found.status != 200:
        where = urljoin(case.url, name)
        return failed(f"{where} answers {found.status}", "see whether www/ is what is served, and whether it is built")
    return found


def types(case: Case) -> Found:
    """Whether browsers are told what the files are."""
    wrong = []
    for name, right in TYPES.items():
        found = answer_of(case, name)
        if isinstance(found, Found):
            return found
        told = found.headers.get_content_type() if "Content-Type" in found.headers else "nothing"
        if told not in right:
            wrong.append(f"{name or 'index.html'} is served as {told}, not {right[0]}")
    if wrong:
        advice = "let the web server take types by suffix (nginx: include mime.types); with nosniff browsers refuse it"
        return failed("; ".join(wrong), advice)
    return passed("page, live.json and script have their types")


def caching(case: Case) -> Found:
    """Whether an open page gets what is new."""
    found = answer_of(case, "live.json")
    if isinstance(found, Found):
        return found
    told = (found.headers.get("Cache-Control") or "").lower()
    until = found.headers.get("Expires")
    # a server that says both means max-age; and whoever may keep it only to ask again, keeps nothing
    asks_again = any(word in told for word in ("no-cache", "no-store"))
    ages = [int(age) for age in re.findall(r"(?:s-maxage|max-age)=(\d{1,10})", told)]
    if until and not ages:
        ages = [expires_in(until, case.now() + found.ahead)]
    if not asks_again and (max(ages, default=0) > LONGEST_CACHE or "immutable" in told):
        how = f"Cache-Control: {told[:60]}" if told else f"Expires: {until}"
        what = f"live.json may be kept by browsers and proxies ({how}): open pages show old numbers"
        return failed(what, "send Cache-Control: no-cache with all but assets/")
    if not asks_again and not ages:
        what = "live.json comes without Cache-Control, and proxies guess how long it may be kept"
        return warned(what, "send Cache-Control: no-cache with all but assets/")
    return passed(f"live.json comes with Cache-Control: {told[:60]}" if told else "live.json is not kept")


def expires_in(date: str, now: float) -> int:
    """For how many seconds an answer may be kept; a date that is none means that it may not."""
    try:
        return int(email.utils.parsedate_to_datetime(date).timestamp() - now)
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0


def headers(case: Case) -> Found:
    """Whether the page has the headers that keep others from acting on it."""
    found = answer_of(case, "")
    if isinstance(found, Found):
        return found
    policy = (found.headers.get("Content-Security-Policy") or "").lower()
    # where both are there, browsers go by the policy
    framed = re.search(r"(?:^|;)\s*frame-ancestors\s([^;]*)", policy)
    alone = (found.headers.get("X-Frame-Options") or "").strip().lower() in {"deny", "sameorigin"}
    lacks = []
    if not (alone if framed is None else OPEN_TO_ALL.isdisjoint(framed[1].split())):
        lacks.append("Content-Security-Policy with frame-ancestors")
    if (found.headers.get("X-Content-Type-Options") or "").lower() != "nosniff":
        lacks.append("X-Content-Type-Options: nosniff")
    if "unsafe-inline" in policy or "unsafe-eval" in policy:
        return warned("the Content-Security-Policy of the page allows scripts or styles inside it", SNIPPETS)
    if lacks:
        return warned(f"the page comes without {names(lacks)}", SNIPPETS)
    return passed(f"{'Content-Security-Policy' if policy else 'X-Frame-Options'} and nosniff are there")


def packed(case: Case) -> Found:
    """Whether what is large comes compressed."""
    for name in ("", "live.json"):
        found = answer_of(case, name)
        if isinstance(found, Found):
            return found
        if "Content-Encoding" not in found.headers and len(found.content) >= SMALL:
            what = f"{name or 'the page'} comes uncompressed, {len(found.content) // 1024} KB at each look"
            return warned(what, "switch gzip on for HTML, JSON, CSS, JavaScript and text")
    return passed("what is large comes compressed")


def built(case: Case) -> Found:
    """Whether what is served is of now, by the clock of the server."""
    from site_builder.client import loader  # noqa: PLC0415 # slow to import

    found = answer_of(case, "live.json")
    if isinstance(found, Found):
        return found
    try:
        told = json.loads(found.content)
        moment, every = told["built"] / 1000, int(told["every"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return failed("live.json is not that of a gpuboard", "see whether www/ is what is served")
    now = case.now() + found.ahead
    try:
        loader.check_age(Fleet(int(moment), (), (), every=every if every > 0 else None), case.url, now)
    except Failed as why:
        return failed(str(why).partition(": ")[0], "see the check builder; is the folder that is served GPUBOARD_WWW?")
    return passed(f"what is served was built {max(0, now - moment):.0f} s ago")


def secrets(case: Case) -> Iterator[tuple[str, Path]]:
    """Files that must not be served, under the addresses at which they would be if a wrong folder were."""
    settings = case.settings
    for folder in (settings.data, settings.state):
        files = [one for one in sorted(folder.glob("*")) if one.is_file()]
        files += [one for one in sorted(folder.glob("*/host.txt"))[:1] if one.is_file()]
        for file in files[:5]:
            inner = file.relative_to(folder)
            place = quote(os.fsencode(Path(folder.name) / inner))  # a name may hold anything
            yield from ((place, file), (f"../{place}", file))
    for file in [one for one in sorted(settings.www.glob(".*")) if one.is_file()][:3]:
        yield quote(os.fsencode(file.name)), file


def closed(case: Case) -> Found:
    """Whether the server gives away what stands beside the site."""
    page = answer_of(case, "")
    if isinstance(page, Found):
        return page
    asked = set()
    for place, file in secrets(case):
        where = urljoin(case.url, place)
        if where in asked or urlsplit(where).path.startswith("/.."):
            continue
        asked.add(where)
        with file.open("rb") as opened:
            first = opened.read(FIRST)
        try:
            found = board_client.look(where, FIRST, case.settings.login)
        except Failed as why:
            return failed(str(why), "see the check url")
        if found.status == 200 and first and found.content == first:
            what = f"{where} is served to everybody: names of people, what they run, perhaps tokens"
            return failed(
                what, f"let the web server serve {case.settings.www.absolute()} alone, and no name with a dot first"
            )
    if not asked:
        return skipped("there is nothing yet that must not be served")
    return passed("nothing of data/ and state/ is served, and no name with a dot first")
