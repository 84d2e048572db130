"""Checks of the web server: the page and live.json as a browser gets them, and nothing else of this machine."""

from __future__ import annotations

import email.utils
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from site_builder.client import loader
from site_builder.core import board_client
from site_builder.core.formatting import format_names
from site_builder.core.model import FleetUnavailableError
from site_builder.doctor.model import CheckResult, DoctorContext, fail, not_checked, passed, skip, warn

# Seconds for which an answer may be cached: an open page asks for live.json this often.
MAX_CACHE_S = 10
# Bytes that are compared to recognise a file.
COMPARED_BYTES = 64
SCRIPT_PATH = "assets/live.js"
# Of frame-ancestors, what lets any page frame the board.
ANY_FRAME_ANCESTORS = {"*", "http:", "https:"}
CONTENT_TYPES = {
    "": ("text/html",),
    "live.json": ("application/json",),
    SCRIPT_PATH: ("text/javascript", "application/javascript"),
}
# Below this size, our own server does not compress.
MIN_COMPRESSED_BYTES = 1024
HEADERS_ADVICE = "docs/webservers.md lists what a web server must send"


def check_board_url(context: DoctorContext) -> CheckResult:
    url = context.url
    if not url:
        return skip("the address of the board is unknown: set GPUBOARD_URL, or use --url")
    page = context.fetch("")
    if isinstance(page, str):
        return fail(page, "start the web server, or correct GPUBOARD_URL or --url")
    if page.status == 401:
        return skip(f"{url} asks for a login: set GPUBOARD_LOGIN to check it")
    if page.status != 200:
        if not (context.settings.www / "status.json").is_file():
            return not_checked("builder" if context.settings.www.is_dir() else "www")
        advice = "check that the web server serves www/ and can read all of it (o+rx)"
        if page.status == 421:
            advice = "add this name to GPUBOARD_SERVER_NAMES on the web host, and restart gpuboard serve"
        return fail(f"{url} answers {page.status}", advice)
    if b"gpuboard" not in page.content:
        return fail(f"{url} is not a board of gpuboard", "correct GPUBOARD_URL or --url, or serve www/ there")
    return passed(url)


def check_content_types(context: DoctorContext) -> CheckResult:
    problems = []
    for name, allowed_types in CONTENT_TYPES.items():
        response = context.fetch_served(name)
        content_type = response.headers.get_content_type() if "Content-Type" in response.headers else "nothing"
        if content_type not in allowed_types:
            problems.append(f"{name or 'index.html'} is served as {content_type}, not {allowed_types[0]}")
    if problems:
        advice = "configure the web server's MIME types (nginx: include mime.types); browsers refuse wrong types"
        return fail("; ".join(problems), advice)
    return passed("the page, live.json and the scripts have the right types")


def check_caching(context: DoctorContext) -> CheckResult:
    response = context.fetch_served("live.json")
    cache_control = (response.headers.get("Cache-Control") or "").lower()
    expires = response.headers.get("Expires")
    # a server that says both means max-age; and whoever may keep it only to ask again, keeps nothing
    asks_again = any(word in cache_control for word in ("no-cache", "no-store"))
    ages = [int(age) for age in re.findall(r"(?:s-maxage|max-age)=(\d{1,10})", cache_control)]
    if expires and not ages:
        try:
            expires_at = email.utils.parsedate_to_datetime(expires).timestamp()
            ages = [int(expires_at - context.read_clock() - response.clock_ahead_s)]
        except (TypeError, ValueError, IndexError, OverflowError):
            ages = [0]  # an invalid date means not at all
    if not asks_again and (max(ages, default=0) > MAX_CACHE_S or "immutable" in cache_control):
        header = f"Cache-Control: {cache_control[:60]}" if cache_control else f"Expires: {expires}"
        message = f"browsers and proxies may cache live.json ({header}): open pages show old data"
        return fail(message, "send Cache-Control: no-cache for everything outside assets/")
    if not asks_again and not ages:
        message = "live.json has no Cache-Control header, so proxies guess how long to cache it"
        return warn(message, "send Cache-Control: no-cache for everything outside assets/")
    return passed(f"live.json has Cache-Control: {cache_control[:60]}" if cache_control else "live.json is not cached")


def check_security_headers(context: DoctorContext) -> CheckResult:
    response = context.fetch_served("")
    policy = (response.headers.get("Content-Security-Policy") or "").lower()
    # where both are there, browsers go by the policy
    frame_ancestors = re.search(r"(?:^|;)\s*frame-ancestors\s([^;]*)", policy)
    has_frame_options = (response.headers.get("X-Frame-Options") or "").strip().lower() in {"deny", "sameorigin"}
    is_framed_by_nobody = has_frame_options
    if frame_ancestors:
        is_framed_by_nobody = ANY_FRAME_ANCESTORS.isdisjoint(frame_ancestors[1].split())
    missing_headers = [] if is_framed_by_nobody else ["Content-Security-Policy with frame-ancestors"]
    if (response.headers.get("X-Content-Type-Options") or "").lower() != "nosniff":
        missing_headers.append("X-Content-Type-Options: nosniff")
    if "unsafe-inline" in policy or "unsafe-eval" in policy:
        return warn("the Content-Security-Policy of the page allows inline scripts or styles", HEADERS_ADVICE)
    if missing_headers:
        return warn(f"the page has no {format_names(missing_headers)}", HEADERS_ADVICE)
    return passed(f"{'Content-Security-Policy' if policy else 'X-Frame-Options'} and nosniff are set")


def check_compression(context: DoctorContext) -> CheckResult:
    for name in ("", "live.json"):
        response = context.fetch_served(name)
        if "Content-Encoding" not in response.headers and len(response.content) >= MIN_COMPRESSED_BYTES:
            message = f"{name or 'the page'} is not compressed: {len(response.content) // 1024} KB per request"
            return warn(message, "enable gzip for HTML, JSON, CSS, JavaScript and text")
    return passed("large files are compressed")


def check_served_age(context: DoctorContext) -> CheckResult:
    response = context.fetch_served("live.json")
    try:
        live = json.loads(response.content)
        built_at, interval_s = live["built"] / 1000, int(live["every"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return fail("live.json is not from gpuboard", "check that the web server serves www/")
    now = context.read_clock() + response.clock_ahead_s
    try:
        loader.check_loaded_board_age(int(built_at), max(0, interval_s), context.url, now)
    except FleetUnavailableError as error:
        if not context.format_board_age():
            return not_checked("builder")
        return fail(str(error).partition(": ")[0], "check that the web server serves GPUBOARD_WWW")
    return passed(f"the served board was built {max(0, now - built_at):.0f} s ago")


def list_private_web_files(context: DoctorContext) -> Iterator[tuple[str, Path]]:
    """Yield files that must not be served, with the addresses they would have if a wrong folder were served."""
    settings = context.settings
    for folder in (settings.data, settings.state):
        files = [path for path in sorted(folder.glob("*")) if path.is_file()]
        files += [path for path in sorted(folder.glob("*/host.txt"))[:1] if path.is_file()]
        for file in files[:5]:
            inner = file.relative_to(folder)
            address = quote(os.fsencode(Path(folder.name) / inner))  # a name may hold anything
            yield from ((address, file), (f"../{address}", file))
    for file in [path for path in sorted(settings.www.glob(".*")) if path.is_file()][:3]:
        yield quote(os.fsencode(file.name)), file


def check_private_files(context: DoctorContext) -> CheckResult:
    context.fetch_served("")
    probed_urls = set()
    for address, file in list_private_web_files(context):
        url = urljoin(context.url, address)
        if url in probed_urls or urlsplit(url).path.startswith("/.."):
            continue
        probed_urls.add(url)
        with file.open("rb") as opened:
            beginning = opened.read(COMPARED_BYTES)
        try:
            response = board_client.probe_board_url(url, COMPARED_BYTES, context.settings.login)
        except FleetUnavailableError as error:
            return fail(str(error), "see the check url")
        if response.status == 200 and beginning and response.content == beginning:
            message = f"anybody can read {url}: names of people, what they run, perhaps tokens"
            www = context.settings.www.absolute()
            return fail(message, f"serve only {www}, and no names that start with a dot")
    if not probed_urls:
        return skip("there are no private files yet")
    return passed("data/, state/ and hidden files are not served")
