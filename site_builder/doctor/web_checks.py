"""Checks of the web server: the page and live.json as a browser gets them, and nothing else of this machine."""

from __future__ import annotations

import email.utils
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from site_builder.client.model import Fleet
from site_builder.core import board_client
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.formatting import join_names
from site_builder.doctor.model import (
    CheckResult,
    DoctorContext,
    report_failure,
    report_not_applicable,
    report_pass,
    report_skip,
    report_warning,
)

# Seconds for which an answer may be kept: an open page asks for live.json this often.
MAX_CACHE_S = 10
# Bytes of a file by which it is known again.
COMPARED_BYTES = 64
SCRIPT_PATH = "assets/live.js"
# Of frame-ancestors, what lets any page frame the board.
ANY_FRAME_ANCESTORS = {"*", "http:", "https:"}
CONTENT_TYPES = {
    "": ("text/html",),
    "live.json": ("application/json",),
    SCRIPT_PATH: ("text/javascript", "application/javascript"),
}
# Below this, compression is not worth it, and our own server does none.
MIN_COMPRESSED_BYTES = 1024
HEADERS_ADVICE = "docs/webservers.md has what a web server must send"


def check_board_url(case: DoctorContext) -> CheckResult:
    """Whether the board is there."""
    place = case.url
    if not place:
        return report_skip("nobody said where the board is served: set GPUBOARD_URL, or call this with --url")
    page = case.fetch("")
    if isinstance(page, str):
        return report_failure(page, "start the web server, or correct GPUBOARD_URL or --url")
    if page.status == 401:
        return report_skip(f"{place} asks for a login: to have it looked at, set GPUBOARD_LOGIN")
    if page.status != 200:
        advice = "see whether it serves www/, and may read all of it (o+rx)"
        if page.status == 421:
            advice = "add this name to GPUBOARD_SERVER_NAMES on the web host, and start gpuboard serve anew"
        return report_failure(f"{place} answers {page.status}", advice)
    if b"gpuboard" not in page.content:
        return report_failure(
            f"{place} is another page than the board", "correct GPUBOARD_URL or --url, or serve www/ there"
        )
    return report_pass(place)


def fetch_served_file(case: DoctorContext, name: str) -> board_client.RawResponse | CheckResult:
    """A file of the board as it is served, or the reason to skip what is asked of it."""
    page = case.fetch("") if case.url else ""
    if isinstance(page, str) or page.status != 200:
        return report_not_applicable("the board was not reached")
    found = case.fetch(name)
    if isinstance(found, str):
        return report_failure(found, "see the check url")
    if found.status != 200:
        where = urljoin(case.url, name)
        return report_failure(
            f"{where} answers {found.status}", "see whether www/ is what is served, and whether it is built"
        )
    return found


def check_content_types(case: DoctorContext) -> CheckResult:
    """Whether browsers are told what the files are."""
    wrong = []
    for name, right in CONTENT_TYPES.items():
        found = fetch_served_file(case, name)
        if isinstance(found, CheckResult):
            return found
        told = found.headers.get_content_type() if "Content-Type" in found.headers else "nothing"
        if told not in right:
            wrong.append(f"{name or 'index.html'} is served as {told}, not {right[0]}")
    if wrong:
        advice = "let the web server take types by suffix (nginx: include mime.types); with nosniff browsers refuse it"
        return report_failure("; ".join(wrong), advice)
    return report_pass("page, live.json and script have their types")


def check_caching(case: DoctorContext) -> CheckResult:
    """Whether an open page gets what is new."""
    found = fetch_served_file(case, "live.json")
    if isinstance(found, CheckResult):
        return found
    told = (found.headers.get("Cache-Control") or "").lower()
    until = found.headers.get("Expires")
    # a server that says both means max-age; and whoever may keep it only to ask again, keeps nothing
    asks_again = any(word in told for word in ("no-cache", "no-store"))
    ages = [int(age) for age in re.findall(r"(?:s-maxage|max-age)=(\d{1,10})", told)]
    if until and not ages:
        ages = [parse_expires_header(until, case.read_clock() + found.clock_ahead_s)]
    if not asks_again and (max(ages, default=0) > MAX_CACHE_S or "immutable" in told):
        how = f"Cache-Control: {told[:60]}" if told else f"Expires: {until}"
        what = f"live.json may be kept by browsers and proxies ({how}): open pages show old numbers"
        return report_failure(what, "send Cache-Control: no-cache with all but assets/")
    if not asks_again and not ages:
        what = "live.json comes without Cache-Control, and proxies guess how long it may be kept"
        return report_warning(what, "send Cache-Control: no-cache with all but assets/")
    return report_pass(f"live.json comes with Cache-Control: {told[:60]}" if told else "live.json is not kept")


def parse_expires_header(date: str, now: float) -> int:
    """For how many seconds an answer may be kept; a date that is none means that it may not."""
    try:
        return int(email.utils.parsedate_to_datetime(date).timestamp() - now)
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0


def check_security_headers(case: DoctorContext) -> CheckResult:
    """Whether the page has the headers that keep others from acting on it."""
    found = fetch_served_file(case, "")
    if isinstance(found, CheckResult):
        return found
    policy = (found.headers.get("Content-Security-Policy") or "").lower()
    # where both are there, browsers go by the policy
    framed = re.search(r"(?:^|;)\s*frame-ancestors\s([^;]*)", policy)
    alone = (found.headers.get("X-Frame-Options") or "").strip().lower() in {"deny", "sameorigin"}
    lacks = []
    if not (alone if framed is None else ANY_FRAME_ANCESTORS.isdisjoint(framed[1].split())):
        lacks.append("Content-Security-Policy with frame-ancestors")
    if (found.headers.get("X-Content-Type-Options") or "").lower() != "nosniff":
        lacks.append("X-Content-Type-Options: nosniff")
    if "unsafe-inline" in policy or "unsafe-eval" in policy:
        return report_warning(
            "the Content-Security-Policy of the page allows scripts or styles inside it", HEADERS_ADVICE
        )
    if lacks:
        return report_warning(f"the page comes without {join_names(lacks)}", HEADERS_ADVICE)
    return report_pass(f"{'Content-Security-Policy' if policy else 'X-Frame-Options'} and nosniff are there")


def check_compression(case: DoctorContext) -> CheckResult:
    """Whether what is large comes compressed."""
    for name in ("", "live.json"):
        found = fetch_served_file(case, name)
        if isinstance(found, CheckResult):
            return found
        if "Content-Encoding" not in found.headers and len(found.content) >= MIN_COMPRESSED_BYTES:
            what = f"{name or 'the page'} comes uncompressed, {len(found.content) // 1024} KB at each look"
            return report_warning(what, "switch gzip on for HTML, JSON, CSS, JavaScript and text")
    return report_pass("what is large comes compressed")


def check_served_age(case: DoctorContext) -> CheckResult:
    """Whether what is served is of now, by the clock of the server."""
    from site_builder.client import loader  # noqa: PLC0415 # slow to import

    found = fetch_served_file(case, "live.json")
    if isinstance(found, CheckResult):
        return found
    try:
        told = json.loads(found.content)
        moment, every = told["built"] / 1000, int(told["every"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return report_failure("live.json is not that of a gpuboard", "see whether www/ is what is served")
    now = case.read_clock() + found.clock_ahead_s
    try:
        loader.check_board_age(Fleet(int(moment), (), (), every=every if every > 0 else None), case.url, now)
    except FleetUnavailableError as why:
        return report_failure(
            str(why).partition(": ")[0], "see the check builder; is the folder that is served GPUBOARD_WWW?"
        )
    return report_pass(f"what is served was built {max(0, now - moment):.0f} s ago")


def list_private_files(case: DoctorContext) -> Iterator[tuple[str, Path]]:
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


def check_private_files(case: DoctorContext) -> CheckResult:
    """Whether the server gives away what stands beside the site."""
    page = fetch_served_file(case, "")
    if isinstance(page, CheckResult):
        return page
    asked = set()
    for place, file in list_private_files(case):
        where = urljoin(case.url, place)
        if where in asked or urlsplit(where).path.startswith("/.."):
            continue
        asked.add(where)
        with file.open("rb") as opened:
            first = opened.read(COMPARED_BYTES)
        try:
            found = board_client.probe_url(where, COMPARED_BYTES, case.settings.login)
        except FleetUnavailableError as why:
            return report_failure(str(why), "see the check url")
        if found.status == 200 and first and found.content == first:
            what = f"{where} is served to everybody: names of people, what they run, perhaps tokens"
            return report_failure(
                what, f"let the web server serve {case.settings.www.absolute()} alone, and no name with a dot first"
            )
    if not asked:
        return report_skip("there is nothing yet that must not be served")
    return report_pass("nothing of data/ and state/ is served, and no name with a dot first")
