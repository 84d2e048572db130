"""Checks of alerts: the rules, whom they reach and by which way, and the letters that do not arrive."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.alerts.model import CHANNEL_PREFIX, HOOK_PREFIX
from site_builder.doctor.data_checks import format_plural
from site_builder.doctor.model import (
    CheckResult,
    DoctorContext,
    report_failure,
    report_not_applicable,
    report_pass,
    report_skip,
    report_warning,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from site_builder.alerts.channels import NotificationChannels
    from site_builder.alerts.config_files import Contacts
    from site_builder.alerts.model import AlertState
    from site_builder.core.model import Problem

NO_RECEIVERS_MESSAGE = (
    "nobody is told anything: neither GPUBOARD_NOTIFY nor GPUBOARD_MAIL, GPUBOARD_HOOKS or GPUBOARD_CONTACTS is set"
)
DAY_S = 86400


def check_alert_rules(case: DoctorContext) -> CheckResult:
    """What is told, and to whom."""
    settings = case.settings
    if not settings.alerts.is_enabled and not settings.alerts.rules_file:
        return report_not_applicable(NO_RECEIVERS_MESSAGE)
    from site_builder.alerts.config_files import RulesFile  # noqa: PLC0415 # slow to import

    found, problems = RulesFile(settings.alerts, (settings.data, settings.www), None).read()
    if problems:
        return report_warning(
            format_first_problem(problems), "correct it; what it does not say is as in alerts.conf.example"
        )
    if not settings.alerts.is_enabled:
        what = "GPUBOARD_ALERTS is set, but no way to tell anybody"
        return report_warning(what, "set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS: docs/alerts.md tells how")
    on = [name for name, rule in found.items() if rule.on and rule.to]
    if not on:
        return report_warning(
            "every rule is off: nobody is told anything", "see `on` and `to` in the file of GPUBOARD_ALERTS"
        )
    where = Path(settings.alerts.rules_file).name if settings.alerts.rules_file else "the defaults"
    return report_pass(f"{len(on)} of {format_plural(len(found), 'rule')} are on, by {where}")


def check_contacts(case: DoctorContext) -> CheckResult:
    """How people are told."""
    alerts = case.settings.alerts
    if not alerts.is_enabled:
        return report_not_applicable(NO_RECEIVERS_MESSAGE)
    if not alerts.contacts_file and not alerts.mail_domain:
        return report_skip("people are told nothing: neither GPUBOARD_CONTACTS nor GPUBOARD_MAIL_DOMAIN is set")
    if alerts.mail_domain and not alerts.mail_url:
        return report_warning(
            "GPUBOARD_MAIL_DOMAIN is set, but no mail server", "set GPUBOARD_MAIL: docs/alerts.md tells how"
        )
    return check_contacts_file(case)


def check_contacts_file(case: DoctorContext) -> CheckResult:
    """Whether the contacts can be read, by the builder alone."""
    from site_builder.alerts.config_files import ContactsFile, load_contacts  # noqa: PLC0415 # slow to import

    alerts = case.settings.alerts
    read, problems = ContactsFile(alerts, (case.settings.data, case.settings.www)).read()
    if not read.is_complete:
        return report_failure(
            format_first_problem(problems), "mend the file, or its owner and mode; until then people are told nothing"
        )
    if problems:
        return report_warning(format_first_problem(problems), "correct the line; the others count")
    if alerts.contacts_file and Path(alerts.contacts_file).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        what = f"others can read {alerts.contacts_file}, which holds addresses of people and may hold passwords"
        return report_warning(what, f"chmod 600 {alerts.contacts_file}")
    return check_contact_addresses(case, load_contacts(case.settings))


def check_contact_addresses(case: DoctorContext, known: Contacts) -> CheckResult:
    """Whether every address in the contacts can be used."""
    if shared := known.find_shared_members():
        what = f"{' and '.join(shared[0])} have one member id of Slack, so that the bot knows neither by it"
        return report_warning(what, "correct one; if they are one person, let aliases.csv say so")
    ways = open_context_channels(case)
    ill = [
        (person, way.problem) for person in known.contacts_by_login for way in ways.check_person(person) if way.problem
    ]
    if ill:
        more = f" (and {len(ill) - 1} more)" if len(ill) > 1 else ""
        return report_warning(
            f"a way to {ill[0][0]} cannot be used: {ill[0][1]}{more}", "correct that line of the contacts"
        )
    if known.mail_domain and not known.contacts_by_login:
        return report_pass(f"everybody has LOGIN@{known.mail_domain}")
    told = f"{format_plural(len(known.contacts_by_login), 'person')} in the contacts".replace("persons", "people")
    return report_pass(f"{told}; all others have LOGIN@{known.mail_domain}" if known.mail_domain else told)


def check_channels(case: DoctorContext) -> CheckResult:
    """Whether the addresses of GPUBOARD_NOTIFY and GPUBOARD_MAIL are understood; nothing is sent."""
    alerts = case.settings.alerts
    if not alerts.channels and not alerts.mail_url:
        return report_not_applicable("neither GPUBOARD_NOTIFY nor GPUBOARD_MAIL is set")
    found = [way for way in open_context_channels(case).check_receivers() if not way.name.startswith(HOOK_PREFIX)]
    ill = [way for way in found if way.problem]
    if ill:
        name = ill[0].name.replace(CHANNEL_PREFIX, "channel ")
        more = f" (and {len(ill) - 1} more)" if len(ill) > 1 else ""
        return report_failure(
            f"{name}: {ill[0].problem}{more}", "correct it; what should go there waits, for a day at the most"
        )
    names = (way.name.replace(CHANNEL_PREFIX, "") if way.name.startswith(CHANNEL_PREFIX) else "people" for way in found)
    told = ", ".join(f"{name} by {way.masked_address.partition(' (')[0]}" for name, way in zip(names, found))
    return report_pass(f"{told}; `gpuboard alerts test` tells whether it arrives")


def check_hooks(case: DoctorContext) -> CheckResult:
    """Whether the programs in GPUBOARD_HOOKS may be run."""
    folder = case.settings.alerts.hooks_folder
    if folder is None:
        return report_not_applicable("GPUBOARD_HOOKS is not set")
    from site_builder.alerts.delivery import HookFolder  # noqa: PLC0415 # few have any

    found = HookFolder(folder, (case.settings.data, case.settings.www)).check_hooks()
    for hook in found:
        if hook.problem:
            name = f"{folder}/{hook.name}" if hook.name else f"{folder}"
            advice = "nothing there is run until then" if not hook.name else "it is not run until then"
            return report_failure(f"{name} {hook.problem}", f"mend it, its owner or its mode: {advice}")
    if not found:
        return report_warning(f"there is no program in {folder}", "put one there, or set no GPUBOARD_HOOKS")
    return report_pass(f"{format_plural(len(found), 'program')} in {folder}")


def check_notifications(case: DoctorContext) -> CheckResult:
    """Whether what was to be told has arrived."""
    settings = case.settings
    if not settings.alerts.is_enabled:
        return report_not_applicable(NO_RECEIVERS_MESSAGE)
    from site_builder.alerts.store import STATE_FILE, AlertStateError, open_alert_store  # noqa: PLC0415 # slow to import

    path = settings.state / STATE_FILE
    if path.exists() and path.stat().st_mode & 0o077:
        return report_warning(f"others can read {path}, which tells who was told what", f"chmod 600 {path}")
    kept = open_alert_store(settings.state, settings.kv)
    try:
        book = kept.read()
    except AlertStateError as why:
        return report_failure(str(why), "until then nobody is told anything")
    if kept.problem:
        return report_warning(f"{kept.where} {kept.problem}", "see why: a full disk, or a share that is no local disk")
    return check_deliveries(book, case.read_clock())


def check_deliveries(book: AlertState, now: float) -> CheckResult:
    """The same of what the book says."""
    from site_builder.alerts.queue import SENT, describe_delivery_problems  # noqa: PLC0415 # slow to import

    if book.started_at is None:
        return report_skip("no build has looked yet what there is to tell")
    if wrong := describe_delivery_problems(book, int(now)):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return report_warning(
            f"{wrong[0]}{more}", "`gpuboard alerts list` shows all of them, `gpuboard alerts test` tries anew"
        )
    sent = sum(one.status == SENT and now - one.at < DAY_S for one in book.history)
    return report_pass(
        f"{format_plural(sent, 'letter')} sent in the last day; {len(book.notifications) or 'none'} on the way"
    )


def check_slack_bot(case: DoctorContext) -> CheckResult:
    """Whether the bot in Slack runs, where it has tokens."""
    access = case.settings.alerts.slack
    if not access.app_token:
        return report_not_applicable("GPUBOARD_SLACK_APP_TOKEN is not set")
    if not access.bot_token:
        return report_failure(
            "GPUBOARD_SLACK_APP_TOKEN is set without GPUBOARD_SLACK_BOT_TOKEN", "set both: docs/slack.md"
        )
    from site_builder.core import locks  # noqa: PLC0415 # few have a bot

    pid = locks.find_lock_holder(case.settings.state / locks.BOT_LOCK_NAME)
    if pid is None:
        return report_failure(
            "the bot in Slack does not run", "`gpuboard slack` says why; `./install.sh web` starts it"
        )
    return report_pass(f"the bot in Slack runs, as process {pid}")


def open_context_channels(case: DoctorContext) -> NotificationChannels:
    """All ways that are set up."""
    from site_builder.alerts.sender import load_channels  # noqa: PLC0415 # slow to import

    return load_channels(case.settings)


def format_first_problem(problems: Sequence[Problem]) -> str:
    """The first problem, and how many more there are."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0].where}: {problems[0].what}{more}"
