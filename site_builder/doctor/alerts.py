"""Checks of alerts: the rules, whom they reach and by which way, and the letters that do not arrive."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.alerts.model import CHANNEL, HOOK
from site_builder.doctor.check_result import Case, Found, apart, failed, passed, skipped, warned
from site_builder.doctor.data_folder import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from site_builder.alerts.channels import Ways
    from site_builder.alerts.contacts import Contacts
    from site_builder.alerts.model import Book
    from site_builder.core.model import Problem

NOBODY = (
    "nobody is told anything: neither GPUBOARD_NOTIFY nor GPUBOARD_MAIL, GPUBOARD_HOOKS or GPUBOARD_CONTACTS is set"
)
DAY = 86400


def rules(case: Case) -> Found:
    """What is told, and to whom."""
    settings = case.settings
    if not settings.alerts.wanted and not settings.alerts.rules:
        return apart(NOBODY)
    from site_builder.alerts.config_files import RulesFile  # noqa: PLC0415 # slow to import

    found, problems = RulesFile(settings.alerts, (settings.data, settings.www), None).read()
    if problems:
        return warned(first_of(problems), "correct it; what it does not say is as in alerts.conf.example")
    if not settings.alerts.wanted:
        what = "GPUBOARD_ALERTS is set, but no way to tell anybody"
        return warned(what, "set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS: docs/alerts.md tells how")
    on = [name for name, rule in found.items() if rule.on and rule.to]
    if not on:
        return warned("every rule is off: nobody is told anything", "see `on` and `to` in the file of GPUBOARD_ALERTS")
    where = Path(settings.alerts.rules).name if settings.alerts.rules else "the defaults"
    return passed(f"{len(on)} of {counted(len(found), 'rule')} are on, by {where}")


def contacts(case: Case) -> Found:
    """How people are told."""
    alerts = case.settings.alerts
    if not alerts.wanted:
        return apart(NOBODY)
    if not alerts.contacts and not alerts.mail_domain:
        return skipped("people are told nothing: neither GPUBOARD_CONTACTS nor GPUBOARD_MAIL_DOMAIN is set")
    if alerts.mail_domain and not alerts.mail:
        return warned("GPUBOARD_MAIL_DOMAIN is set, but no mail server", "set GPUBOARD_MAIL: docs/alerts.md tells how")
    return contacts_file(case)


def contacts_file(case: Case) -> Found:
    """Whether the contacts can be read, by the builder alone."""
    from site_builder.alerts.config_files import ContactsFile, contacts_of  # noqa: PLC0415 # slow to import

    alerts = case.settings.alerts
    read, problems = ContactsFile(alerts, (case.settings.data, case.settings.www)).read()
    if not read.whole:
        return failed(first_of(problems), "mend the file, or its owner and mode; until then people are told nothing")
    if problems:
        return warned(first_of(problems), "correct the line; the others count")
    if alerts.contacts and Path(alerts.contacts).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        what = f"others can read {alerts.contacts}, which holds addresses of people and may hold passwords"
        return warned(what, f"chmod 600 {alerts.contacts}")
    return reached(case, contacts_of(case.settings))


def reached(case: Case, known: Contacts) -> Found:
    """Whether every address in the contacts can be used."""
    if shared := known.shared():
        what = f"{' and '.join(shared[0])} have one member id of Slack, so that the bot knows neither by it"
        return warned(what, "correct one; if they are one person, let aliases.csv say so")
    ways = ways_in(case)
    ill = [(person, way.problem) for person in known.known for way in ways.check_person(person) if way.problem]
    if ill:
        more = f" (and {len(ill) - 1} more)" if len(ill) > 1 else ""
        return warned(f"a way to {ill[0][0]} cannot be used: {ill[0][1]}{more}", "correct that line of the contacts")
    if known.domain and not known.known:
        return passed(f"everybody has LOGIN@{known.domain}")
    told = f"{counted(len(known.known), 'person')} in the contacts".replace("persons", "people")
    return passed(f"{told}; all others have LOGIN@{known.domain}" if known.domain else told)


def channels(case: Case) -> Found:
    """Whether the addresses of GPUBOARD_NOTIFY and GPUBOARD_MAIL are understood; nothing is sent."""
    alerts = case.settings.alerts
    if not alerts.channels and not alerts.mail:
        return apart("neither GPUBOARD_NOTIFY nor GPUBOARD_MAIL is set")
    found = [way for way in ways_in(case).check() if not way.name.startswith(HOOK)]
    ill = [way for way in found if way.problem]
    if ill:
        name = ill[0].name.replace(CHANNEL, "channel ")
        more = f" (and {len(ill) - 1} more)" if len(ill) > 1 else ""
        return failed(
            f"{name}: {ill[0].problem}{more}", "correct it; what should go there waits, for a day at the most"
        )
    names = (way.name.replace(CHANNEL, "") if way.name.startswith(CHANNEL) else "people" for way in found)
    told = ", ".join(f"{name} by {way.shown.partition(' (')[0]}" for name, way in zip(names, found))
    return passed(f"{told}; `gpuboard alerts test` tells whether it arrives")


def hooks(case: Case) -> Found:
    """Whether the programs in GPUBOARD_HOOKS may be run."""
    folder = case.settings.alerts.hooks
    if folder is None:
        return apart("GPUBOARD_HOOKS is not set")
    from site_builder.alerts.hooks import Hooks  # noqa: PLC0415 # few have any

    found = Hooks(folder, (case.settings.data, case.settings.www)).look()
    for hook in found:
        if hook.problem:
            name = f"{folder}/{hook.name}" if hook.name else f"{folder}"
            advice = "nothing there is run until then" if not hook.name else "it is not run until then"
            return failed(f"{name} {hook.problem}", f"mend it, its owner or its mode: {advice}")
    if not found:
        return warned(f"there is no program in {folder}", "put one there, or set no GPUBOARD_HOOKS")
    return passed(f"{counted(len(found), 'program')} in {folder}")


def letters(case: Case) -> Found:
    """Whether what was to be told has arrived."""
    settings = case.settings
    if not settings.alerts.wanted:
        return apart(NOBODY)
    from site_builder.alerts.store import FILE, Unwritable, book_of  # noqa: PLC0415 # slow to import

    path = settings.state / FILE
    if path.exists() and path.stat().st_mode & 0o077:
        return warned(f"others can read {path}, which tells who was told what", f"chmod 600 {path}")
    kept = book_of(settings.state, settings.kv)
    try:
        book = kept.read()
    except Unwritable as why:
        return failed(str(why), "until then nobody is told anything")
    if kept.problem:
        return warned(f"{kept.where} {kept.problem}", "see why: a full disk, or a share that is no local disk")
    return arrived(book, case.now())


def arrived(book: Book, now: float) -> Found:
    """The same of what the book says."""
    from site_builder.alerts.queue import SENT, troubles  # noqa: PLC0415 # slow to import

    if book.begun is None:
        return skipped("no build has looked yet what there is to tell")
    if wrong := troubles(book, int(now)):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return warned(
            f"{wrong[0]}{more}", "`gpuboard alerts list` shows all of them, `gpuboard alerts test` tries anew"
        )
    sent = sum(one.how == SENT and now - one.at < DAY for one in book.history)
    return passed(f"{counted(sent, 'letter')} sent in the last day; {len(book.letters) or 'none'} on the way")


def bot(case: Case) -> Found:
    """Whether the bot in Slack runs, where it has tokens."""
    access = case.settings.alerts.slack
    if not access.app_token:
        return apart("GPUBOARD_SLACK_APP_TOKEN is not set")
    if not access.bot_token:
        return failed("GPUBOARD_SLACK_APP_TOKEN is set without GPUBOARD_SLACK_BOT_TOKEN", "set both: docs/slack.md")
    from site_builder.core import locks  # noqa: PLC0415 # few have a bot

    pid = locks.holder(case.settings.state / locks.BOT)
    if pid is None:
        return failed("the bot in Slack does not run", "`gpuboard slack` says why; `./install.sh web` starts it")
    return passed(f"the bot in Slack runs, as process {pid}")


def ways_in(case: Case) -> Ways:
    """All ways that are set up."""
    from site_builder.alerts.sender import ways_of  # noqa: PLC0415 # slow to import

    return ways_of(case.settings)


def first_of(problems: Sequence[Problem]) -> str:
    """The first problem, and how many more there are."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].where}: {problems[0].what}{more}"
