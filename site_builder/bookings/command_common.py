"""What the booking commands share: where to book, who somebody is, and that what was understood is said first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import click

from site_builder.core.command_options import Failure, tell, with_loaded

if TYPE_CHECKING:
    from site_builder.bookings.transaction import Who
    from site_builder.config.conf_file import Loaded
    from site_builder.config.settings import Settings

Answer = dict[str, Any]
STATUS_COUNTS_FOR = 600


class No(Failure):
    """The answer is no, in one sentence, and exit 1."""

    exit_code = 1


class Place(Protocol):
    """Where bookings are made."""

    settings: Settings

    @property
    def ahead(self) -> float:
        """By how many seconds its clock is ahead of ours."""

    def do(self, request: Mapping[str, Any]) -> Answer:
        """What is answered to a request."""

    def listed(self) -> Answer:
        """All bookings that are not over."""

    def status(self) -> Answer:
        """The fleet as the board tells it; {} where it does not."""

    def problems(self) -> list[str]:
        """What is wrong in comments.json."""


class Here:
    """A data folder of this machine."""

    ahead = 0.0

    def __init__(self, settings: Settings) -> None:
        """Whose bookings."""
        from site_builder.bookings.service import Desk  # noqa: PLC0415 # --help needs none of it

        self.settings = settings
        self.desk = Desk(settings)
        self.who = who_am_i(settings)

    def do(self, request: Mapping[str, Any]) -> Answer:
        """Do it, with the lock."""
        from site_builder.bookings import api  # noqa: PLC0415

        return api.do(self.desk, request, self.who)

    def listed(self) -> Answer:
        """As the file has them."""
        from site_builder.bookings import api  # noqa: PLC0415

        return api.listed(self.desk, self.who)

    def status(self) -> Answer:
        """That of the site, if it is of the last minutes."""
        import json  # noqa: PLC0415

        try:
            found = json.loads((self.settings.www / "status.json").read_bytes())
            fresh = found["built"] > self.desk.clock() - STATUS_COUNTS_FOR
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return found if fresh else {}

    def problems(self) -> list[str]:
        """Each with its line."""
        from site_builder.bookings import consul_store, parser  # noqa: PLC0415
        from site_builder.core.shared_folder import booking_file  # noqa: PLC0415

        content = consul_store.ledger_of(self.settings.data, self.settings.kv).glance()
        path = booking_file(self.settings.data)
        return [f"{path}: {one}" for one in parser.read(content, self.settings.zone).problems]


class There:
    """A board on another machine."""

    def __init__(self, settings: Settings, url: str) -> None:
        """Where it is."""
        from site_builder.bookings import remote_service  # noqa: PLC0415 # --help needs none of it
        from site_builder.core import board_client  # noqa: PLC0415

        self.settings = settings
        self.remote = remote_service.Remote(url, settings.token, settings.login)
        self.open: bool | None = None
        self.zone_told = False
        if self.remote.token and board_client.is_in_the_clear(url):
            tell(f"your token crosses the network in the clear: {url} should be https")

    @property
    def ahead(self) -> float:
        """As its last answer told."""
        return self.remote.ahead

    def do(self, request: Mapping[str, Any]) -> Answer:
        """Ask for it; a board in another zone than ours says so."""
        found = self.remote.do({**request, "as": person()} if self.is_open() else request)
        if not self.zone_told:
            self.zone_told = True
            self.tell_zone(found)
        return found

    def tell_zone(self, answer: Answer) -> None:
        """The board's times are those of its own zone."""
        for one in answer["bookings"][:1]:
            moment = datetime.fromisoformat(one["date"])
            if moment.utcoffset() != moment.astimezone(self.settings.zone).utcoffset():
                tell(f"the board's clock is at {moment:%z}, and so are the times that it says")

    def listed(self) -> Answer:
        """As the board tells them."""
        found = self.remote.listed()
        self.open = found.get("how") == "open"
        if self.open:
            found["who"] = person()
            for one in found["bookings"]:
                one["mine"] = found["who"] in (one["name"], one["by"])
        return found

    def status(self) -> Answer:
        """That of the board."""
        return self.remote.status()

    def problems(self) -> list[str]:
        """As the board tells them."""
        several = self.status().get("problems") or []
        return [f"{one['where']}: {one['what']}" for one in several if one.get("where") == "data/comments.json"]

    def odd(self) -> str:
        """What is said of an answer that no gpuboard gives."""
        from site_builder.core import board_client  # noqa: PLC0415

        return board_client.odd(self.remote.url)

    def is_open(self) -> bool:
        """Whether everybody is there whom they say; then we are whom we are here."""
        if self.open is None:
            self.open = not self.settings.token and self.remote.listed().get("how") == "open"
        return self.open


def login() -> str:
    """The login of the real user: $USER is whatever somebody sets."""
    import pwd  # noqa: PLC0415 # rarely needed

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        why = f"this machine has no login for user {os.getuid()}, and a booking needs a name"
        raise Failure(f"{why}: book through GPUBOARD_URL with a token") from None


def person() -> str:
    """The same, and behind sudo the person."""
    from site_builder.client import loader  # noqa: PLC0415 # rarely needed

    return loader.login() or login()


def who_am_i(settings: Settings) -> Who:
    """Who books on this machine: root is an admin, and behind sudo stands a person."""
    from site_builder.bookings.transaction import Who  # noqa: PLC0415
    from site_builder.core.names import folded  # noqa: PLC0415

    name, sudo = login(), os.environ.get("SUDO_USER", "")
    if os.getuid() == 0:
        return Who(sudo, admin=True, via="sudo") if sudo not in ("", "root") else Who(name, admin=True)
    return Who(name, admin=folded(name) in settings.rules.admins)


def place_of(loaded: Loaded) -> Place:
    """Where to book: --url, the data folder that somebody named, GPUBOARD_URL, or data/ here."""
    settings = loaded.settings
    data, url = loaded.given["GPUBOARD_DATA"], loaded.given["GPUBOARD_URL"]
    named = data.origin != "default" and not data.empty
    if settings.url and (url.origin == "--url" or not named):
        return There(settings, settings.url)
    if not settings.data.is_dir():
        where = settings.data.absolute()
        message = f"there is no folder {where}"
        if not named:
            message = f"there is no board here ({where}), and none is named"
        raise Failure(f"{message}: set GPUBOARD_DATA to its data folder, or GPUBOARD_URL to its address")
    return Here(settings)


@contextmanager
def in_sentences(place: object = None) -> Iterator[None]:
    """Whatever the desk has against it is told in one sentence: exit 1 if it refuses, 2 if something is wrong.

    An answer of another machine may lack anything that we look for in it.
    """
    from site_builder.bookings import api, json_edit, store  # noqa: PLC0415
    from site_builder.bookings import service as bookings_service  # noqa: PLC0415
    from site_builder.bookings.policy import Refused  # noqa: PLC0415
    from site_builder.client.model import Failed  # noqa: PLC0415

    try:
        yield
    except (Refused, json_edit.Odd) as why:
        raise No(shown(str(why))) from None
    except (api.Unclear, bookings_service.Broken, Failed, store.Unwritable) as why:
        raise Failure(shown(str(why))) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        if not isinstance(place, There):
            raise
        raise Failure(place.odd()) from None


def with_place(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command where to book, as `place`, and add the options that say it."""

    @wraps(command)
    def run(loaded: Loaded, **rest: Any) -> None:  # noqa: ANN401 # the command's own options
        place = place_of(loaded)
        with in_sentences(place):
            command(place=place, **rest)

    return click.option("--url", metavar="URL", help="The board, if it is on another machine.")(with_loaded(run))


def with_answer(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what asks before it does something."""
    command = click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")(command)
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def settle(place: Place, request: Mapping[str, Any], question: str, yes: bool) -> Answer:
    """Say what was understood, ask if somebody is there to answer, and do exactly that."""
    if not yes and is_asked():
        checked = place.do({**request, "check": True})
        tell(shown(checked["said"]))
        for warning in checked.get("warnings") or ():
            tell(f"note: {shown(str(warning))}")
        if not agreed(question):
            message = "nothing was changed"
            raise No(message)
        return place.do(exactly(request, checked))
    done = place.do(request)
    for warning in done.get("warnings") or ():
        tell(f"note: {shown(str(warning))}")
    return done


def exactly(request: Mapping[str, Any], checked: Answer) -> dict[str, Any]:
    """The same request with the GPUs that were found for it, or with what was to be taken back."""
    if request["do"] == "undo":
        return {**request, "undoes": checked["undoes"]}
    if request["do"] != "book":
        return dict(request)
    rest = {key: value for key, value in request.items() if key not in {"any", "model"}}
    return {**rest, "gpus": [one["where"] for one in checked["bookings"]]}


def is_asked() -> bool:
    """Whether somebody sits there who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agreed(question: str) -> bool:
    """What they say; to leave is to say no."""
    try:
        return click.confirm(question, default=True, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def shown(text: str) -> str:
    """Without what would steer a terminal: it may come from another machine."""
    from site_builder.snapshots.envelope import clean  # noqa: PLC0415

    return clean(text)


def ids_of(answer: Answer) -> list[str]:
    """The ids of the bookings that an answer is about."""
    return list(dict.fromkeys(shown(str(one["id"])) for one in answer["bookings"]))


def report(answer: Answer, done: str, as_json: bool) -> None:
    """What was done, in a sentence; the data go to stdout."""
    tell(done)
    if as_json:
        import json  # noqa: PLC0415

        click.echo(json.dumps(answer, indent=1))
