"""What the bot knows: the board as it was built last, and who a member of the workspace is here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Lock

from site_builder.alerts.config_files import contacts_of
from site_builder.alerts.contacts import MAIL, SLACK
from site_builder.alerts.slack_client import Member, NotDone
from site_builder.bookings.data_files import Names
from site_builder.client import loader, status_parser
from site_builder.client.model import Failed, Fleet
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.people import People
from site_builder.slack.answers import Scene

FILE = "status.json"
MOST_BYTES = 256 << 20
REMEMBERED, MOST_REMEMBERED = 600.0, 10_000
NO_BOARD = "the board has not been built yet, so I know nothing"
UNREAD = "the contacts or aliases.csv cannot be read just now, so I do not know who anybody is"
WHO_ARE_YOU = "I do not know who you are"


class Board:
    """Reads the board anew for each question: it is what the page shows, and names whom the page names."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Whose board."""
        self.settings = settings
        self.clock = clock
        self.lock = Lock()
        self.kept: tuple[files.Signature, Fleet] | None = None

    def scene(self) -> Scene:
        """The fleet at this moment; `Failed` where the builder stands, for then nobody knows."""
        fleet = self.fleet()
        loader.check_age(fleet, self.settings.url or "www/", self.clock())
        built = Now(fleet.built, self.settings.zone)
        return Scene(fleet, built, self.people(), self.settings.shown.users, self.settings.url)

    def fleet(self) -> Fleet:
        """As the file tells it; read again only if it changed, since a large one takes a while."""
        with self.lock:
            try:
                folder = os.open(self.settings.www, files.TOP)
                try:
                    if self.kept and files.look(FILE, folder) == self.kept[0]:
                        return self.kept[1]
                    signature, content = files.read(FILE, folder, MOST_BYTES)
                finally:
                    os.close(folder)
            except (OSError, files.Refused):
                raise Failed(NO_BOARD) from None
            fleet, wrong = status_parser.read(content)
            if fleet is None:
                message = f"what the builder wrote {wrong}"
                raise Failed(message)
            self.kept = signature, fleet
            return fleet

    def people(self) -> People:
        """Whom names mean."""
        return People(Names(self.settings.data, None).read()[0])


class Members:
    """Who a member of the workspace is here: by the contacts, or by the address that their workspace confirmed."""

    def __init__(
        self, settings: Settings, ask: Callable[[str], Member], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` looks a member up in Slack, which is remembered for some minutes."""
        self.settings = settings
        self.ask = ask
        self.clock = clock
        self.known: dict[str, tuple[float, Member]] = {}

    def person(self, member: str) -> str | None:
        """The login of a member; None where nobody knows it. `NotDone` if Slack does not answer."""
        contacts = contacts_of(self.settings)
        if not contacts.whole:
            raise Failed(UNREAD)
        found = contacts.person_of(SLACK, member)
        if not found and (mail := self.member(member).mail):
            found = contacts.person_of(MAIL, mail)
        return contacts.login(found) if found else None

    def member(self, member: str) -> Member:
        """As Slack told lately."""
        now = self.clock()
        at, found = self.known.get(member, (0.0, None))
        if found is None or now - at > REMEMBERED:
            found = self.ask(member)
            if len(self.known) >= MOST_REMEMBERED:
                self.known.clear()
            self.known[member] = (now, found)
        return found

    def how_to_be_known(self, member: str) -> tuple[str, ...]:
        """What helps somebody whom we do not know."""
        try:
            mail = self.member(member).mail
        except NotDone:
            mail = None
        domain = self.settings.alerts.mail_domain
        if mail and domain:
            return (f"the address of your profile is not one at {domain}, nor in the contacts", line_of(member))
        return (line_of(member),)


def line_of(member: str) -> str:
    """What makes a member known."""
    return f"the admin can add a line to the contacts (GPUBOARD_CONTACTS): `LOGIN,slack:{member}`"
