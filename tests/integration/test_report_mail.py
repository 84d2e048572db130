"""The report of a week by mail: when it is due, what mail programs show of it, and that it arrives."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, tzinfo
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zoneinfo import TZPATH

import html5lib
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from playwright.sync_api import Browser, Page

from site_builder.alerts import weekly_report
from site_builder.alerts.model import AlertMessage, AlertRule, Condition
from site_builder.alerts.store import open_alert_store
from site_builder.board.builder import Builder
from site_builder.config.settings import Settings
from site_builder.core.clock import Now, read_localtime_zone
from site_builder.core.formatting import DAY_NAMES
from site_builder.core.model import AlertSettings, PrivacySettings, Problem
from site_builder.health.model import HealthEvent
from site_builder.history.reader import HistoryReader
from site_builder.history.usage_sums import DailyUsageSums
from site_builder.history.writer import HistoryWriter
from site_builder.reports import collect
from site_builder.reports.collect import CollectedReport, CollectedWaste, CollectedWastedGpu
from site_builder.reports.render import render_report_mail
from site_builder.waste.rules import WasteItem
from tests.support.board_fixture import Lab
from tests.support.browser import node_module
from tests.support.history_fixtures import epoch, gpu, host, keep, roll
from tests.support.ports import free_port
from tests.support.week_fixtures import DAY, FIRST, HOUR, MONDAY, MORNING, PARIS, Report, lab_of, reporter, week_of

PHONE, LAPTOP = 360, 1000
# Gmail shows no more of a mail.
GMAIL = 102 * 1024
RULE = AlertRule("weekly-report", at=(0, 8 * 60))
# Of a plug-in of apprise, with Pythons before 3.13.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
RIGHTS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """With a past; no test changes it."""
    return lab_of(tmp_path_factory.mktemp("mail"))


@pytest.fixture(scope="module")
def settings(lab: Lab) -> Settings:
    return lab.settings(zone=PARIS, url="https://gpus.lab.org/board/")


@pytest.fixture(scope="module")
def week(settings: Settings) -> CollectedReport:
    return week_of(settings)


@pytest.fixture(scope="module")
def html(week: CollectedReport) -> str:
    return render_report_mail(week, Now(MORNING, PARIS), "https://gpus.lab.org/board/", "")


def message_of(settings: Settings) -> AlertMessage:
    report_message = weekly_report.build_report_message(settings, FIRST, MORNING)
    assert report_message
    return report_message


def cells(html: str, name: str) -> list[str]:
    """The cells of the first row of that name, as text."""
    row_match = re.search(rf'<th scope="row"[^>]*>{re.escape(name)}</th>(.*?)</tr>', html)
    assert row_match, name
    return re.findall("<td[^>]*>(?:<b>)?([^<]*)", row_match[1])


# When it is due


@pytest.mark.parametrize(
    ("moment", "rule", "about"),
    [
        ("2026-11-16T07:59", RULE, None),
        ("2026-11-16T08:00", RULE, "2026-W46"),
        ("2026-11-18T07:59", RULE, "2026-W46"),  # the builder did not run on Monday
        ("2026-11-18T08:00", RULE, None),
        ("2026-11-15T23:59", RULE, None),  # the week is not over
        ("2026-11-15T12:00", RULE._replace(at=(6, 720)), "2026-W45"),
        ("2026-11-16T12:00", RULE._replace(at=(6, 720)), "2026-W45"),  # a day late, and of the same week
        ("2026-11-16T00:00", RULE._replace(at=(0, 0)), "2026-W46"),
        ("2026-11-16T08:00", RULE._replace(on=False), None),
        ("2026-11-16T08:00", RULE._replace(at=None), None),
        ("2026-11-02T08:00", RULE, None),  # history begins with this week
        ("2026-11-09T08:00", RULE, "2026-W45"),
    ],
)
def test_a_report_is_due_from_its_hour_on_and_for_two_days(
    settings: Settings, moment: str, rule: AlertRule, about: str | None
) -> None:
    due_report = weekly_report.find_due_report(settings, epoch(moment, PARIS), rule)
    assert (due_report.about if due_report else None) == about


def test_a_due_report_is_the_same_condition_at_every_check(settings: Settings) -> None:
    at = epoch("2026-11-16T08:00", PARIS)
    due_reports = {
        weekly_report.find_due_report(settings, at + later, RULE) for later in (0, 1.5, 7 * HOUR, 2 * DAY - 1)
    }
    what = "week 46 of 2026 is over"
    assert due_reports == {Condition("weekly-report", about="2026-W46", what=what, since=at, is_lasting=False)}


def test_without_history_none_is_due_and_one_that_cannot_be_read_is_tried_when_it_is_sent(tmp_path: Path) -> None:
    settings = Lab(tmp_path).settings(zone=PARIS)
    at = epoch("2026-11-16T08:00", PARIS)
    assert weekly_report.find_due_report(settings, at, RULE) is None
    assert weekly_report.build_report_message(settings, FIRST, MORNING) is None
    (settings.state / "history.db").write_bytes(b"nonsense" * 1000)
    assert weekly_report.find_due_report(settings, at, RULE)
    with pytest.raises(collect.ReportCollectionError):
        weekly_report.build_report_message(settings, FIRST, MORNING)


def test_a_week_that_cannot_be_read_is_an_error_though_the_week_before_can(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_daily_usage = HistoryReader.read_daily_usage

    def read_all_but_the_first_week(history: HistoryReader, first: date, last: date, now: float) -> DailyUsageSums:
        usage = read_daily_usage(history, first, last, now)
        if first == FIRST:
            history.problem = Problem("state/history.db", "database disk image is malformed")
            return usage._replace(seen=[])
        return usage

    monkeypatch.setattr(HistoryReader, "read_daily_usage", read_all_but_the_first_week)
    with pytest.raises(collect.ReportCollectionError, match="malformed"):
        weekly_report.build_report_message(settings, FIRST, MORNING)


@pytest.mark.parametrize(
    ("to", "receivers"),
    [(("all",), ["channel:lab", "channel:ops"]), (("ops",), ["channel:ops"]), (("person", "hooks"), []), ((), [])],
)
def test_a_report_by_hand_goes_to_the_channels_of_the_rule(to: tuple[str, ...], receivers: list[str]) -> None:
    assert weekly_report.list_report_receivers(RULE._replace(to=to), ["lab", "ops"]) == receivers


# What it says


def test_the_mail_has_the_numbers_of_the_page(html: str) -> None:
    use, people = html.partition(">By model<")[2], html.partition(">People<")[2]
    assert "2 people (1 before) used 120.0 GPU-hours, up 186 % from the previous week." in html
    assert cells(html, "Mon 9 Nov") == ["48.0", "50 %", "0 %", "25 %"]
    assert cells(use, "A100 80 GB") == ["1", "96.0", "57 %", "7 %", "+129 %"]
    assert cells(people, "alice") == ["90.0", "+114 %", "6.0", "0.0", "0.0"]
    assert cells(people, "owner unknown")[0] == "24.0"
    assert cells(people, "All people") == ["120.0", "+186 %", "12.0", "168.0", "168.0"]
    assert "Booked, idle: 168.0 GPU-hours" in html
    assert cells(html.partition("gaps in monitoring<")[2], "hydra") == ["14 %", "144.0"]


def test_a_bar_has_the_parts_that_its_numbers_tell(html: str) -> None:
    use = html.partition(">By model<")[2].partition("A100 80 GB")[2]
    parts = re.findall(r'<td class="([a-z]+)" bgcolor="#[0-9a-f]{6}" width="([0-9]+)%"', use)
    assert parts[:3] == [("working", "50"), ("held", "7"), ("track", "43")]
    of = re.findall(r'aria-hidden="true".*?</table>', html)
    assert {sum(map(int, re.findall(r'width="([0-9]+)%" height', number))) for number in of} == {100}


def test_the_heat_map_has_a_column_for_each_day_and_a_row_for_each_hour(html: str) -> None:
    hours = html.partition('aria-label="Hour by hour"')[2].partition("</table>")[0]
    rows = re.findall(r'<th scope="row"[^>]*>([0-9]{2})</th>(.*?)</tr>', hours)
    assert [name for name, _ in rows] == [f"{hour:02}" for hour in range(24)]
    assert {row.count("<td") for _, row in rows} == {7}
    assert re.findall('class="(t[0-9]+)"[^>]*>([^<]*)', rows[0][1])[:1] == [("t5", "50")]


def test_subject_text_and_what_a_chat_gets(settings: Settings) -> None:
    report_message = message_of(settings)
    assert report_message.title == "gpuboard: week 46 of 2026, 120.0 GPU-hours used"
    assert report_message.text.startswith("gpuboard: week 46 of 2026\nMon 9 Nov to Sun 15 Nov 2026, Europe/Paris\n")
    assert report_message.short_text.splitlines() == [
        "Mon 9 Nov to Sun 15 Nov 2026, Europe/Paris",
        "23 % of GPU time was in use, up from 8 % in the previous week.",
        "V100 GPUs were full in 50 of 50 working hours (Mon to Fri, 8 to 18 h), L40S in 10 of 10, A100 80 GB in 40.",
        "2 people (1 before) used 120.0 GPU-hours, up 186 % from the previous week.",
        "180.0 GPU-hours were held or booked but idle, up 329 % from the previous week.",
    ]


def test_the_mail_links_the_page_if_there_is_one(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/2026-W46.html").write_text("")
    there = Settings(**{**vars(settings), "www": tmp_path})
    address = "https://gpus.lab.org/board/reports/2026-W46.html"
    report_message = message_of(there)
    assert address in report_message.text and f"\nFull report: {address}" in report_message.short_text
    assert re.findall('href="([^"]*)"', report_message.html) == [address, "https://gpus.lab.org/board/"]
    assert address not in message_of(settings).html


def test_where_users_are_not_shown_nobody_is_named(settings: Settings) -> None:
    report_message = message_of(Settings(**{**vars(settings), "privacy": PrivacySettings(users=False)}))
    assert "This site does not show people" in report_message.html
    assert not re.search("alice|bob|carol", "".join(map(str, report_message)))


def test_a_week_that_is_not_over_says_so(settings: Settings) -> None:
    report_message = weekly_report.build_report_message(settings, FIRST, MONDAY + 2 * DAY + 90 * 60)
    assert report_message
    assert "This week is not over: figures are up to Wed 11 Nov 01:30" in report_message.html


# What mail programs make of it


def test_the_mail_is_valid_html_and_loads_nothing(html: str) -> None:
    parser = html5lib.HTMLParser()
    parser.parse(html)
    assert parser.errors == []
    assert not re.search(r"<script|<img|<svg|<link|src=|url\(|@import", html)
    assert re.findall('href="([^"]*)"', html) == ["https://gpus.lab.org/board/"]


def test_untrusted_text_is_escaped_and_short(html: str) -> None:
    assert "&lt;script&gt;alert(1)" in html
    assert "\u202e" not in html
    assert "x" * 161 not in html


def test_gmail_shows_all_of_the_longest_report(week: CollectedReport) -> None:
    """With as many rows as there are, and letters that take the most room."""
    odd = "<&\"'" * 50
    wide = [CollectedWastedGpu(odd, 7, odd, odd, 999_999)] * 500
    model = next(iter(week.usage.models.values()))
    models = {f"{number}{odd}": model for number in range(40)}
    row = next(person_row for person_row in week.usage.people.rows if person_row.sums.used)
    people = week.usage.people._replace(rows=tuple(row._replace(name=odd, key=str(number)) for number in range(500)))
    hosts = week.usage.hosts
    gaps = hosts._replace(rows=tuple(hosts.rows[-1]._replace(name=odd, key=str(number)) for number in range(500)))
    longest = week._replace(
        usage=week.usage._replace(models=models, people=people, hosts=gaps),
        previous_usage=None,
        waste=CollectedWaste(wide, wide, wide),
        current_waste=[WasteItem("held", odd, odd, 7, odd, people=(odd, odd, odd), hours=31.5, what=odd, advice=odd)]
        * 500,
        events=[HealthEvent(odd, 1, "GPU-h", 0, "lost", (odd,), MONDAY, None, None)] * 500,
    )
    body = render_report_mail(longest, Now(MORNING, PARIS), "https://gpus.lab.org/board/", "")
    assert len(body.encode()) < GMAIL
    for omission_note in (
        "and 20 more models",
        "and 475 more with",
        "and 492 more with",
        "and 492 more; gpuboard waste",
        "and 480 more",
    ):
        assert omission_note in body


@contextmanager
def opened(browser: Browser, path: Path, size: int, **options: Any) -> Iterator[Page]:  # noqa: ANN401 of playwright
    context = browser.new_context(viewport={"width": size, "height": 900}, **options)
    try:
        page = context.new_page()
        page.goto(f"file://{path}")
        yield page
    finally:
        context.close()


@pytest.mark.parametrize(("scheme", "size"), [("light", PHONE), ("dark", LAPTOP), ("dark", PHONE)])
def test_the_mail_is_readable_on_a_phone_and_in_dark_mode(
    browser: Browser, html: str, tmp_path: Path, scheme: Literal["light", "dark"], size: int
) -> None:
    (tmp_path / "mail.html").write_text(html)
    with opened(browser, tmp_path / "mail.html", size, color_scheme=scheme) as page:
        page.add_script_tag(path=node_module("axe-core/axe.min.js"))
        axe_report = page.evaluate("(rules) => axe.run({ runOnly: rules })", RIGHTS)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in axe_report["violations"]] == []


def test_without_any_style_each_bar_has_its_numbers_beside_it(browser: Browser, html: str, tmp_path: Path) -> None:
    (tmp_path / "mail.html").write_text(
        re.sub(r' (?:style|class|bgcolor|width|align)="[^"]*"|<style>.*?</style>', "", html, flags=re.S)
    )
    with opened(browser, tmp_path / "mail.html", LAPTOP) as page:
        page_text = page.inner_text("body")
    assert re.search(r"Mon 9 Nov\s+48\.0\s+50 %\s+0 %\s+25 %", page_text)
    assert re.search(r"\n00\s+50\s", page_text)


# By hand, to real receivers


class Inbox(NamedTuple):
    """A mail server and a chat, with what each has got."""

    mails: list[EmailMessage]
    posts: list[dict[str, Any]]
    notify: str


@pytest.fixture(scope="module")
def inbox() -> Iterator[Inbox]:
    """Both on loopback."""
    mails: list[EmailMessage] = []
    posts: list[dict[str, Any]] = []

    class Post:
        async def handle_DATA(self, _server: object, _session: object, envelope: Envelope) -> str:
            assert envelope.content
            mails.append(message_from_bytes(bytes(envelope.content), policy=policy.default))  # type: ignore[arg-type]
            return "250 taken"

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            """In silence."""

    chat = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=chat.serve_forever, daemon=True).start()
    port = free_port()
    smtp = Controller(Post(), hostname="127.0.0.1", port=port)
    smtp.start()
    yield Inbox(
        mails,
        posts,
        f"lab=mailto://127.0.0.1:{port}?from=gpus@lab.org&to=all@lab.org chat=json://127.0.0.1:{chat.server_port}/",
    )
    smtp.stop()
    chat.shutdown()
    chat.server_close()


@pytest.fixture
def run(lab: Lab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Report:
    """The command on Monday morning."""
    return partial(reporter(monkeypatch, capfd), lab)


def test_a_mail_has_the_text_and_the_charts_and_a_chat_the_sums(run: Report, inbox: Inbox, settings: Settings) -> None:
    assert run("--week", "--mail", GPUBOARD_NOTIFY=inbox.notify) == (0, "lab: sent\nchat: sent\n", "")
    (mail,), (post,) = inbox.mails, inbox.posts
    assert mail["Subject"] == "gpuboard: week 46 of 2026, 120.0 GPU-hours used"
    assert (mail["From"].addresses[0].addr_spec, mail["To"]) == ("gpus@lab.org", "all@lab.org")
    assert mail.get_content_type() == "multipart/alternative"
    parts = list(mail.iter_parts())
    assert [(mail_part.get_content_type(), mail_part.get_content_charset()) for mail_part in parts] == [
        ("text/plain", "utf-8"),
        ("text/html", "utf-8"),
    ]
    plain, body = (mail_part.get_content().replace("\r\n", "\n") for mail_part in parts)
    report_message = message_of(Settings(**{**vars(settings), "url": None}))
    assert (plain.strip(), body.strip()) == (report_message.text.strip(), report_message.html.strip())
    assert all(len(line) <= 998 for line in mail.as_bytes().splitlines())
    assert "used 120.0 GPU-hours, up 186 % from the previous week" in post["message"]
    assert "alice" not in post["message"]


def test_a_person_gets_it_by_their_mail_address(run: Report, inbox: Inbox) -> None:
    before = len(inbox.mails)
    server = inbox.notify.split()[0].partition("=")[2].partition("&")[0]
    finished = run("--mail", "--to", "person:alice", GPUBOARD_MAIL=server, GPUBOARD_MAIL_DOMAIN="lab.org")
    assert finished == (0, "alice: sent\n", "")
    assert [mail["To"] for mail in inbox.mails[before:]] == ["alice@lab.org"]


@pytest.mark.parametrize(
    ("words", "notify", "code", "said"),
    [
        (["--to", "lab"], "lab=mailto://127.0.0.1:1?from=a@b.org&to=c@d.org", 1, "lab: not sent: the mail server"),
        (["--to", "ops"], "lab=json://127.0.0.1:1/", 2, "--to: unknown receiver 'ops'; there is lab, person:LOGIN"),
        (["--to", "person:"], "lab=json://127.0.0.1:1/", 2, "--to: unknown receiver 'person:'"),
        ([], "", 2, "no channel to send it to: set GPUBOARD_NOTIFY"),
        (["--text"], "", 2, "--mail sends both the charts and the text"),
        (["--week", "2026-W30"], "lab=json://127.0.0.1:1/", 1, "there is no history of 2026-W30"),
    ],
)
def test_a_report_that_cannot_be_sent_is_explained_in_one_sentence(
    run: Report, words: list[str], notify: str, code: int, said: str
) -> None:
    ended, out, err = run("--mail", *words, GPUBOARD_NOTIFY=notify)
    assert (ended, said in out + err) == (code, True), out + err
    assert "d.org" not in out + err


def test_to_is_refused_without_mail(run: Report) -> None:
    code, _, err = run("--to", "lab")
    assert (code, "--to needs --mail" in err) == (2, True)


# By the builder


def machine_zone() -> tzinfo:
    """Paris as a machine's own zone is read, from a file: another process cannot be given it as it is."""
    (path, *_) = (path for folder in TZPATH if (path := Path(folder, "Europe/Paris")).exists())
    local_zone = read_localtime_zone(path)
    assert local_zone
    return local_zone


def test_the_builder_sends_it_once_when_it_is_due(tmp_path: Path, inbox: Inbox) -> None:
    lab, zone, now = Lab(tmp_path), machine_zone(), time.time()
    at = datetime.fromtimestamp(now - HOUR, zone)
    first = collect.find_last_whole_week(at.date())
    noon = int(datetime.combine(first + timedelta(days=3), datetime.min.time(), zone).timestamp()) + 12 * HOUR
    history = HistoryWriter(lab.state, zone)
    keep(history, noon, noon + 2 * HOUR, [host(gpu("busy", ["alice"]))])
    roll(history, now)
    history.close()
    lab.host()
    rules = tmp_path / "alerts.conf"
    address = inbox.notify.split()[0].partition("=")[2]
    settings = lab.settings(zone=zone, alerts=AlertSettings(channels=(("lab", address),), rules_file=str(rules)))
    before = len(inbox.mails)
    for text in ("", f"[weekly-report]\non = yes\nat = {DAY_NAMES[at.weekday()]} {at:%H:%M}\n", None):
        if text is not None:
            rules.write_text(text)
        builder = Builder(settings)
        builder.build(time.time())
        assert builder.alert_engine
        if builder.alert_engine.sender_process:
            assert builder.alert_engine.sender_process.wait(60) == 0
        builder.close()
    (mail,) = inbox.mails[before:]
    year, number, _ = first.isocalendar()
    assert mail["Subject"] == f"gpuboard: week {number} of {year}, 2.0 GPU-hours used"
    book = open_alert_store(lab.state, None).read()
    assert ([history_entry.status for history_entry in book.history], book.notifications) == (["sent"], ())
