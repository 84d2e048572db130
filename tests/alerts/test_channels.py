"""Channels with real receivers on this machine, and the outcome of each kind of failure."""

from __future__ import annotations

import inspect
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType

import pytest
import requests

from site_builder.alerts import channels, contacts, http_client, mail, slack_client
from site_builder.alerts.channels import NotificationChannels
from site_builder.alerts.model import Alert, AlertMessage, AlertReceiver, DeliveryOutcome, Notification
from site_builder.config.settings import Settings
from site_builder.core.model import AlertSettings, SlackAccess
from tests.support.board_fixture import Lab
from tests.support.receivers import Post, Web, certificate, mail_server, mute_server

SECRET = "s3cret-word"  # noqa: S105
HOSTILE = "<!channel> <@U123> @everyone @here <https://evil.example|your board>"
MESSAGE = AlertMessage("atlas is down", "No snapshot since 14:02.", "<p>No <b>snapshot</b> since 14:02.</p>")
DOWN = Alert("1-1", "host-down", "begun", "atlas is down", "no snapshot since 14:02", 1000, "atlas")


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.close()


@pytest.fixture(scope="module")
def post() -> Post:
    return Post()


@pytest.fixture(scope="module")
def smtp(post: Post) -> Iterator[int]:
    with mail_server(post) as port:
        yield port


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Lab(tmp_path).settings()


def open_channels(
    settings: Settings, known: str = "", seconds: float = 30, **alert_options: object
) -> NotificationChannels:
    """With one channel `lab`, or as given; and contacts."""
    alerts = AlertSettings(**alert_options)  # type: ignore[arg-type]
    parsed_contacts = contacts.parse_contacts(known.encode(), alerts.mail_domain)
    return NotificationChannels(Settings(**{**vars(settings), "alerts": alerts}), parsed_contacts, timeout_s=seconds)


def to_lab(settings: Settings, url: str, message: AlertMessage = MESSAGE, seconds: float = 30) -> DeliveryOutcome:
    return open_channels(settings, channels=(("lab", url),), seconds=seconds).send(
        build_notification("channel:lab"), message
    )


def build_notification(to: str, via: str = "", alert: Alert = DOWN) -> Notification:
    return Notification("1-2", to, (alert,), 1000, 1000, via)


@pytest.mark.parametrize(
    ("alerts", "notify_type"),
    [
        ([DOWN._replace(severity="warning"), DOWN._replace(severity="critical")], "failure"),
        ([DOWN._replace(severity="warning"), DOWN._replace(severity="critical", step="over")], "warning"),
        ([DOWN._replace(severity="critical", step="over")], "success"),
        ([DOWN._replace(severity="odd")], "info"),
    ],
)
def test_services_colour_a_notification_by_its_worst_severity(
    settings: Settings, web: Web, alerts: list[Alert], notify_type: str
) -> None:
    channels = open_channels(settings, channels=(("lab", web.url(f"colour-{len(alerts)}-{notify_type}")),))
    channels.send(build_notification("channel:lab")._replace(alerts=tuple(alerts)), MESSAGE)
    (came,) = web.at(f"colour-{len(alerts)}-{notify_type}")
    assert came["type"] == notify_type


def test_a_notification_arrives_at_a_webhook_once(settings: Settings, web: Web) -> None:
    assert to_lab(settings, web.url("here")) == DeliveryOutcome("sent")
    (came,) = web.at("here")
    assert (came["title"], came["message"], came["type"]) == (MESSAGE.title, MESSAGE.text, "info")


@pytest.mark.parametrize(
    ("path", "how", "wait", "words"),
    [
        ("500", "failed", None, "has an internal error (HTTP 500)"),
        ("503", "failed", 120, "HTTP 503"),
        ("429", "failed", 120, "has reached its rate limit (HTTP 429)"),
        ("401", "failed", None, "rejects its token or password (HTTP 401)"),
        ("404", "failed", None, "does not know this address (HTTP 404)"),
        ("302", "failed", None, "the address redirects"),
        ("504", "unsure", None, "it may have arrived"),
        ("cut", "unsure", None, "closed the connection without an answer"),
    ],
)
def test_outcomes_of_http_answers(
    settings: Settings, web: Web, path: str, how: str, wait: int | None, words: str
) -> None:
    before = len(web.came)
    outcome = to_lab(settings, web.url(f"{path}/{SECRET}"))
    assert (outcome.status, outcome.retry_after_s) == (how, wait)
    assert words in outcome.reason
    assert SECRET not in outcome.reason
    assert len(web.came) == before + 1, "apprise must neither ask again nor go elsewhere"


def test_a_receiver_that_is_not_there_did_not_take_it(settings: Settings) -> None:
    assert to_lab(settings, "json://127.0.0.1:9/x").status == "failed"
    outcome = to_lab(settings, "json://no-such-host.invalid/x")
    assert (outcome.status, outcome.reason.startswith("the webhook ")) == ("failed", True)


@pytest.mark.slow
def test_a_receiver_that_falls_silent_is_unsure(settings: Settings, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "READ_TIMEOUT_S", 0.3)
    assert to_lab(settings, web.url("slow")) == DeliveryOutcome("unsure", "the webhook did not answer in time")
    monkeypatch.setattr(http_client, "READ_TIMEOUT_S", 20.0)
    assert to_lab(settings, web.url("drip"), seconds=0.5) == DeliveryOutcome(
        "unsure", "the webhook did not finish within 0 s"
    )


def test_an_abandoned_delivery_sends_no_more_requests(web: Web) -> None:
    client = http_client.AlertHttpClient()
    client.is_abandoned = True
    before = len(web.came)
    with pytest.raises(requests.RequestException):
        client.post(f"http://127.0.0.1:{web.port}/abandoned", data="{}")
    assert client.outcomes == []
    assert len(web.came) == before


def test_nothing_but_the_one_service_uses_our_http_client(settings: Settings, web: Web) -> None:
    from apprise.plugins.custom_json import NotifyJSON  # noqa: PLC0415, TID251

    send, plugin_requests = NotifyJSON.send, NotifyJSON.send.__globals__["requests"]
    assert to_lab(settings, web.url("302")).status == "failed"
    assert NotifyJSON.send is send
    assert send.__globals__["requests"] is plugin_requests is requests
    assert requests.post(f"http://127.0.0.1:{web.port}/302", data="{}", timeout=30).status_code == 200, (
        "others follow redirects as before"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries that plugins import
def test_every_plugin_of_apprise_that_is_used_sends_through_our_http_client() -> None:
    from apprise.manager_plugins import NotificationManager  # noqa: PLC0415, TID251

    client = http_client.AlertHttpClient()
    for plugin in NotificationManager().plugins():  # type: ignore[no-untyped-call]
        if not channels.is_http_channel(plugin):
            continue
        derived = http_client.derive_http_apprise_class(plugin, client)
        for base in plugin.__mro__:
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                if not isinstance(function, FunctionType) or not calls_requests(function):
                    continue
                used = inspect.getattr_static(derived, name)
                assert used.__globals__["requests"] is client, f"{plugin.__name__}.{name}"


def calls_requests(function: FunctionType) -> bool:
    """Return True if a function may send a request."""
    names = function.__code__.co_names
    return "requests" in names and bool({"get", "post", "put", "delete", "request"} & set(names))


def test_a_slack_message_mentions_nobody(settings: Settings, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from apprise.plugins.slack import NotifySlack  # noqa: PLC0415, TID251

    monkeypatch.setattr(NotifySlack, "webhook_url", f"http://127.0.0.1:{web.port}/services")
    url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#lab"
    outcome = to_lab(settings, url, AlertMessage(f"t {HOSTILE}", f"b {HOSTILE} alice@lab.org", ""))
    assert outcome == DeliveryOutcome("sent")
    sent = json.dumps(web.came[-1][1], ensure_ascii=False)
    assert "alice@lab.org" in sent
    for call in ("<!", "<@", "@everyone", "@here", "<http"):
        assert call not in sent
        assert call.replace("<", "&lt;") not in sent or call.startswith("@")


def test_a_markdown_service_gets_escaped_text_and_one_link() -> None:
    page = "https://gpus.lab.org/hosts/gpu_01_a.html"
    teams = channels.build_apprise_channel(
        "workflows://prod.logic.azure.com/643e69f83c8944438d68119179a10a64/signature"
    )
    chat_message = channels.format_for_channel(
        teams, AlertMessage("gpu_01_a is down", f"*No* [x](https://evil.example) <y>\n{page}\n\nSent.", "")
    )
    assert chat_message["body_format"] == "markdown"
    assert chat_message["body"].count("](") == 1
    assert f"]({page})\n\nSent" in chat_message["body"]
    assert chat_message["body"].startswith("\\*No\\* \\[x\\]")
    brief = channels.format_for_channel(teams, AlertMessage("", "all of it", "", short_text="the sums"))
    assert brief["body"] == "the sums"


@pytest.mark.parametrize(
    ("url", "most"),
    [
        ("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", 2000),
        ("tgram://123456789:abcdefg_hijklmnop/12345", 4096),
        ("ntfys://ntfy.lab.org/topic", 4096),
        ("workflows://prod.logic.azure.com/643e69f83c8944438d68119179a10a64/signature", 1000),
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", 4000),
    ],
)
def test_a_long_notification_fits_into_each_chat(url: str, most: int) -> None:
    page = "https://gpus.lab.org/hosts/gpu-00.html"
    text = "\n".join(f"- gpu-{number:02} is döwn.\n{page}" for number in range(100))
    message = AlertMessage("100 hosts are down: gpu-00 and 99 more", text, "")
    chat_message = channels.format_for_channel(channels.build_apprise_channel(url), message)
    assert len(chat_message["title"].encode()) + len(chat_message["body"].encode()) <= most
    *_, last, closing_line = chat_message["body"].splitlines()
    assert closing_line == "… and more"
    assert not last or page in last or "is d" in last, "what is there is whole"
    assert channels.format_for_channel(channels.build_apprise_channel("json://127.0.0.1/x"), message)["body"] == text, (
        "a program has room"
    )


def test_an_answer_with_ok_false_has_failed(settings: Settings, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from apprise.plugins.slack import NotifySlack  # noqa: PLC0415, TID251

    monkeypatch.setattr(NotifySlack, "api_url", f"http://127.0.0.1:{web.port}/no/{{}}")
    outcome = to_lab(settings, "slack://xoxb-1234-1234-4ddbc191d40ee098cbaae6f3523ada2d/#lab")
    assert outcome == DeliveryOutcome("failed", "Slack refused it")


def test_an_address_with_several_receivers_is_unsure_if_some_took_it() -> None:
    client = http_client.AlertHttpClient()
    client.outcomes = [DeliveryOutcome("sent"), DeliveryOutcome("failed", "HTTP 500")]
    assert client.summarize_outcomes(has_many_receivers=False).status == "failed", "logged in, and then refused"
    assert client.summarize_outcomes(has_many_receivers=True).status == "unsure"


def test_retry_after_is_read_in_each_format() -> None:
    for headers, body, seconds in (
        ({"Retry-After": "30"}, b"", 30),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"", 1),
        ({"Retry-After": "9" * 40}, b"", 86400),
        ({"Retry-After": "soon"}, b'{"retry_after": 2.5}', 2),
        ({}, b'{"ok":false,"parameters":{"retry_after":7}}', 7),
        ({}, b'{"errcode":"M_LIMIT_EXCEEDED","retry_after_ms":2000}', 2),
        ({}, b'{"retry_after": "x"}', None),
        ({}, b'{"retry_after": NaN}', None),
        ({}, b'{"parameters": 3}', None),
        ({}, b"[" * 100_000, None),
        ({"Retry-After": "-5"}, b"{" * 100_000, None),
    ):
        assert http_client.parse_http_retry_after(headers, body) == seconds, (headers, body[:50])


def test_mail_to_a_channel_is_one_message_to_all(settings: Settings, post: Post, smtp: int) -> None:
    url = f"mailto://127.0.0.1:{smtp}?from=GPU%20Board<gpus@lab.org>&to=ops@lab.org,boss@lab.org&cc=c@lab.org&bcc=b@lab.org"
    title = "atlas ist zurück \N{FIRE}\r\nBcc: victim@lab.org"
    assert to_lab(settings, url, MESSAGE._replace(title=title)) == DeliveryOutcome("sent")
    assert to_lab(settings, url, MESSAGE._replace(title=title)) == DeliveryOutcome("sent")
    (receivers, came), (_, again) = post.came[-2:]
    assert sorted(receivers) == ["b@lab.org", "boss@lab.org", "c@lab.org", "ops@lab.org"]
    assert came["Subject"] == "atlas ist zurück \N{FIRE} Bcc: victim@lab.org"
    assert came["To"] == "ops@lab.org, boss@lab.org, c@lab.org"
    assert came["From"] == "GPU Board <gpus@lab.org>"
    assert "Bcc" not in came
    assert came["Auto-Submitted"] == "auto-generated"
    assert came["Message-ID"] == again["Message-ID"]
    assert came.get_content_type() == "multipart/alternative"
    plain, html = came.get_body(("plain",)), came.get_body(("html",))
    assert plain
    assert html
    assert (plain.get_content().strip(), html.get_content().strip()) == (MESSAGE.text, MESSAGE.html)


def test_a_person_is_notified_by_mail(settings: Settings, post: Post, smtp: int) -> None:
    server = f"mailto://127.0.0.1:{smtp}?from=gpus@lab.org"
    mail_channels = open_channels(settings, mail_url=server, mail_domain="lab.org", known="bob,robert@elsewhere.org")
    assert mail_channels.send(build_notification("person:alice"), MESSAGE) == DeliveryOutcome("sent")
    assert post.came[-1][0] == ("alice@lab.org",)
    assert mail_channels.send(build_notification("person:bob"), MESSAGE) == DeliveryOutcome("sent")
    assert post.came[-1][0] == ("robert@elsewhere.org",)
    assert open_channels(settings, mail_url=server).send(
        build_notification("person:alice"), MESSAGE
    ) == DeliveryOutcome("refused", "no contact for alice: add a line to the contacts, or set GPUBOARD_MAIL_DOMAIN")
    assert (
        "GPUBOARD_MAIL is not set"
        in open_channels(settings, mail_domain="lab.org").send(build_notification("person:a"), MESSAGE).reason
    )


def test_a_person_with_several_contacts_is_notified_once(settings: Settings, web: Web, post: Post, smtp: int) -> None:
    server = f"mailto://127.0.0.1:{smtp}?from=gpus@lab.org"
    contacts_text = (
        f"eve,{web.url('500')}\neve,{web.url('eve')}\neve,eve@lab.org\neve,slack:U0123ABCD\ndan,slack:U0DAN\n"
    )
    there = open_channels(settings, contacts_text, mail_url=server)
    mails = len(post.came)
    assert there.send(build_notification("person:eve"), MESSAGE) == DeliveryOutcome("sent")
    assert (len(web.at("eve")), len(post.came)) == (1, mails), "the second took it, after the first did not"
    assert there.send(build_notification("person:eve", "mail"), MESSAGE) == DeliveryOutcome("sent")
    assert (len(web.at("eve")), len(post.came)) == (1, mails + 1)
    assert there.send(build_notification("person:dan"), MESSAGE) == DeliveryOutcome(
        "failed", "the Slack bot is not set up"
    )
    slack = SlackAccess("xoxb-1", url=f"http://127.0.0.1:{web.port}/slack/")
    there = open_channels(settings, contacts_text, mail_url=server, slack=slack)
    assert there.send(build_notification("person:dan"), MESSAGE) == DeliveryOutcome("sent")
    (came,) = web.at("slack/chat.postMessage")
    assert came["channel"] == "U0DAN"


@pytest.mark.slow
def test_slack_has_the_same_time_limit(settings: Settings, web: Web) -> None:
    access = SlackAccess("xoxb-1", url=f"http://127.0.0.1:{web.port}/drip/")
    there = open_channels(settings, "dan,slack:U0DAN", seconds=0.3, slack=access)
    assert there.send(build_notification("person:dan"), MESSAGE) == DeliveryOutcome(
        "unsure", "Slack did not finish within 0 s"
    )
    for token in (f"{SECRET}\nX", f"{SECRET}\N{HORIZONTAL ELLIPSIS}"):
        assert (
            SECRET not in slack_client.send_direct_message(SlackAccess(token, url=access.url), "U0DAN", MESSAGE).reason
        )


@pytest.mark.slow
def test_outcomes_of_smtp_answers(settings: Settings, smtp: int, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    def to(address: str, message: AlertMessage = MESSAGE, port: int = smtp) -> DeliveryOutcome:
        return to_lab(settings, f"mailto://127.0.0.1:{port}?from=gpus@lab.org&to={address}", message)

    assert to("nobody@lab.org") == DeliveryOutcome("refused", "the mail server does not know this recipient (SMTP 550)")
    assert to("later@lab.org").status == "failed"
    assert to("ops@lab.org", MESSAGE._replace(title="refuse me")).status == "failed"
    assert to("ops@lab.org,nobody@lab.org") == DeliveryOutcome("sent", "the mail server refused 1 of its recipients")
    assert to("ops@lab.org", port=9).status == "failed"
    monkeypatch.setattr(mail, "SMTP_TIMEOUT_S", 5.0)
    with mute_server() as port:
        outcome = to("ops@lab.org", port=port)
        assert outcome == DeliveryOutcome("unsure", "the mail server stopped answering after it received the message")
    before = len(post.came)
    late = mail.MailDelivery(
        "127.0.0.1", smtp, "insecure", None, SECRET, ("gpuboard", "gpus@lab.org"), ("ops@lab.org",), MESSAGE, "1"
    )
    late.is_abandoned = True
    late.send()
    assert len(post.came) == before, "who was given up sends no more"
    assert SECRET not in repr(late)
    assert "ops@lab.org" not in repr(late)


def test_a_mail_server_that_talks_for_ever_is_not_listened_to(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=chatter, args=(listener,), daemon=True).start()
        url = f"mailto://127.0.0.1:{listener.getsockname()[1]}?from=gpus@lab.org&to=ops@lab.org"
        outcome = to_lab(settings, url)
    assert outcome == DeliveryOutcome("failed", "the mail server closed the connection, or does not speak SMTP")


def chatter(listener: socket.socket) -> None:
    """A greeting without an end."""
    line, _ = listener.accept()
    with line, suppress(OSError):
        for _ in range(100_000):
            line.sendall(b"220-welcome\r\n" * 1000)


@pytest.mark.slow
def test_mail_goes_by_tls_with_a_login(settings: Settings, tmp_path: Path) -> None:
    post = Post()
    with mail_server(post, certificate(tmp_path)) as port:
        for word, verify, how, words in (
            (SECRET, "no", "sent", ""),
            ("wrong", "no", "failed", "the mail server does not accept its user and password"),
            (SECRET, "yes", "failed", "the mail server has an untrusted certificate"),
        ):
            url = f"mailtos://board:{word}@127.0.0.1:{port}?from=gpus@lab.org&to=ops@lab.org&verify={verify}"
            outcome = to_lab(settings, url)
            assert (outcome.status, words in outcome.reason, SECRET in outcome.reason) == (how, True, False)
        plain = to_lab(settings, f"mailto://127.0.0.1:{port}?from=gpus@lab.org&to=ops@lab.org")
        assert plain.status == "failed"
    assert len(post.came) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("syslog://", "is not supported: it uses neither HTTP nor mail"),
        ("dbus://", "not"),
        ("rsyslog://127.0.0.1", "it uses neither HTTP nor mail"),
        ("exec:///bin/sh", "is not supported by apprise"),
        ("file:///etc/passwd", "is not supported by apprise"),
        (f"slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ?template=/etc/{SECRET}", "notifications read no files"),
        (f"discord://4174216298/{SECRET}?template=card.json", "notifications read no files"),
        ("tgram://123456789:abcdefg_hijklmnop/12345?template=/etc/passwd", "notifications read no files"),
        (f"workflows://host/643e69f83c8944438d68119179a10a64/{SECRET}?template=a.json", "notifications read no files"),
        (f"mailto://a:{SECRET}@127.0.0.1?to=a@b.org&pgppub=/etc/passwd", "notifications read no files"),
        (f"slack://{SECRET}", "is not supported by apprise"),
    ],
)
def test_an_address_that_cannot_be_used_is_named_without_its_secret(
    settings: Settings, url: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    there = open_channels(settings, channels=(("lab", url),))
    outcome = there.send(build_notification("channel:lab"), MESSAGE)
    (way,) = there.check_receivers()
    assert outcome.status == "failed"
    assert words in outcome.reason
    assert way == AlertReceiver("channel:lab", f"{url.partition(':')[0]}://…", outcome.reason)
    assert SECRET not in f"{outcome} {way} {there.alert_settings!r} {capfd.readouterr()}"


def test_a_secret_without_a_scheme_is_not_taken_for_one() -> None:
    assert SECRET not in str(channels.describe_channel_url(SECRET))


def test_nothing_is_logged(
    settings: Settings, web: Web, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    to_lab(settings, f"jsons://user:{SECRET}@127.0.0.1:{web.port}/{SECRET}")
    to_lab(settings, f"json://user:{SECRET}@127.0.0.1:{web.port}/500/{SECRET}")
    to_lab(settings, f"slack://{SECRET}")
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


def test_receivers_are_listed_with_masked_addresses(settings: Settings, tmp_path: Path) -> None:
    there = open_channels(
        settings,
        "eve,eve@lab.org\ndan,slack:U0DAN\nfay,tgram://123456789:abcdefg_hijklmnop/12345\n",
        channels=(("lab", f"json://127.0.0.1/{SECRET}"), ("ops", "mailto://127.0.0.1?from=a@lab.org")),
        mail_url="mailtos://u:p@smtp.lab.org?from=a@lab.org",
        hooks_folder=tmp_path / "none",
    )
    assert list(there.channel_urls) == ["lab", "ops"]
    assert [tuple(way) for way in there.check_receivers()] == [
        ("channel:lab", "JSON (json://…)", None),
        ("channel:ops", "mail (mailto://…)", None),
        ("mail", "mail (mailtos://…)", None),
        ("hook:", str(tmp_path / "none"), "cannot be read: No such file or directory"),
    ]
    assert there.check_person("eve") == [("person:eve", "mail", None)]
    assert there.check_person("dan") == [("person:dan", "slack", "the Slack bot is not set up")]
    assert there.check_person("fay") == [("person:fay", "Telegram (tgram://…)", None)]
    assert "no contact for" in str(there.check_person("gus")[0].problem)


def test_without_apprise_a_notification_waits(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert to_lab(settings, "json://127.0.0.1/x") == DeliveryOutcome("failed", channels.APPRISE_MISSING)
    there = open_channels(settings, channels=(("lab", "json://127.0.0.1/x"),))
    assert there.check_receivers() == [AlertReceiver("channel:lab", "json://…", channels.APPRISE_MISSING)]
    assert there.send(build_notification("channel:gone"), MESSAGE).status == "refused"
    assert there.send(build_notification("nonsense"), MESSAGE).status == "refused"


@pytest.mark.slow
def test_apprise_is_imported_only_to_send() -> None:
    code = "import site_builder.alerts.channels, sys; print('apprise' in sys.modules, 'requests' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
