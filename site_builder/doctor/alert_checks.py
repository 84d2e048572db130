"""Checks of alerts: the rules, whom they reach and by which channel, and the notifications that do not arrive."""

from __future__ import annotations

import stat
from pathlib import Path

from site_builder.alerts.channels import load_channels
from site_builder.alerts.contacts import ContactsAndRules, load_contacts
from site_builder.alerts.hooks import HookFolder
from site_builder.alerts.model import CHANNEL_PREFIX, HOOK_PREFIX, SENT
from site_builder.alerts.queue import describe_queue_problems
from site_builder.alerts.store import STATE_FILE, AlertStateError, open_alert_store
from site_builder.core import locks
from site_builder.core.formatting import format_count
from site_builder.doctor.model import CheckResult, DoctorContext, fail, not_applicable, passed, skip, warn

NO_RECEIVERS_MESSAGE = (
    "alerts are off: none of GPUBOARD_NOTIFY, GPUBOARD_MAIL, GPUBOARD_HOOKS and GPUBOARD_CONTACTS is set"
)
DAY_S = 86400


def check_alert_rules(context: DoctorContext) -> CheckResult:
    settings = context.settings
    if not settings.alerts.is_enabled and not settings.alerts.rules_file:
        return not_applicable(NO_RECEIVERS_MESSAGE)
    rules, problems = ContactsAndRules(settings.alerts, settings.data, settings.www).read_rules()
    if problems:
        return warn(problems, "correct it; until then the defaults of alerts.conf.example apply to the affected rules")
    if not settings.alerts.is_enabled:
        message = "GPUBOARD_ALERTS is set, but there is no channel to send alerts to"
        return warn(message, "set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS: see docs/alerts.md")
    active_rules = [name for name, rule in rules.items() if rule.on and rule.to]
    if not active_rules:
        return warn(
            "all rules are off, so no alerts are sent", "check `on` and `to` in the file that GPUBOARD_ALERTS names"
        )
    where = Path(settings.alerts.rules_file).name if settings.alerts.rules_file else "the defaults"
    return passed(f"{len(active_rules)} of {format_count(len(rules), 'rule')} are on ({where})")


def check_contacts(context: DoctorContext) -> CheckResult:
    alerts = context.settings.alerts
    if not alerts.is_enabled:
        return not_applicable(NO_RECEIVERS_MESSAGE)
    if not alerts.contacts_file and not alerts.mail_domain:
        return skip("people get no notifications: neither GPUBOARD_CONTACTS nor GPUBOARD_MAIL_DOMAIN is set")
    if alerts.mail_domain and not alerts.mail_url:
        return warn("GPUBOARD_MAIL_DOMAIN is set, but no mail server", "set GPUBOARD_MAIL: see docs/alerts.md")
    contacts_result, problems = ContactsAndRules(alerts, context.settings.data, context.settings.www).read_contacts()
    if not contacts_result.is_complete:
        return fail(problems, "correct the file, its owner or its mode; until then people get no notifications")
    if problems:
        return warn(problems, "correct the line; the others are used")
    if alerts.contacts_file and Path(alerts.contacts_file).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        message = f"other users can read {alerts.contacts_file}, which contains addresses and perhaps passwords"
        return warn(message, f"chmod 600 {alerts.contacts_file}")
    contacts, channels = load_contacts(context.settings), load_channels(context.settings)
    if shared := contacts.find_shared_members():
        message = f"{' and '.join(shared[0])} have the same Slack member id, so the bot recognises neither"
        return warn(message, "correct one; if they are one person, add them to aliases.csv")
    unusable = [
        f"a contact of {person} cannot be used: {channel.problem}"
        for person in contacts.contacts_by_login
        for channel in channels.check_person(person)
        if channel.problem
    ]
    if unusable:
        return warn(unusable, "correct that line in the contacts")
    if contacts.mail_domain and not contacts.contacts_by_login:
        return passed(f"everybody gets mail at LOGIN@{contacts.mail_domain}")
    summary = f"{format_count(len(contacts.contacts_by_login), 'person')} in the contacts".replace("persons", "people")
    return passed(
        f"{summary}; all others get mail at LOGIN@{contacts.mail_domain}" if contacts.mail_domain else summary
    )


def check_channels(context: DoctorContext) -> CheckResult:
    alerts = context.settings.alerts
    if not alerts.channels and not alerts.mail_url:
        return not_applicable("neither GPUBOARD_NOTIFY nor GPUBOARD_MAIL is set")
    receivers = load_channels(context.settings).check_receivers()
    receivers = [receiver for receiver in receivers if not receiver.name.startswith(HOOK_PREFIX)]
    unusable = [receiver for receiver in receivers if receiver.problem]
    if unusable:
        name = unusable[0].name.replace(CHANNEL_PREFIX, "channel ")
        problems = [f"{name}: {receiver.problem}" for receiver in unusable]
        return fail(problems, "correct it; notifications wait, for up to a day")
    routes = []
    for receiver in receivers:
        is_channel = receiver.name.startswith(CHANNEL_PREFIX)
        name = receiver.name.replace(CHANNEL_PREFIX, "") if is_channel else "people"
        routes.append(f"{name} via {receiver.masked_address.partition(' (')[0]}")
    return passed(f"{', '.join(routes)}; `gpuboard alerts test` sends a test")


def check_hooks(context: DoctorContext) -> CheckResult:
    folder = context.settings.alerts.hooks_folder
    if folder is None:
        return not_applicable("GPUBOARD_HOOKS is not set")
    hooks = HookFolder(folder, (context.settings.data, context.settings.www)).check_hooks()
    for hook in hooks:
        if hook.problem:
            name = f"{folder}/{hook.name}" if hook.name else f"{folder}"
            advice = "until then no hook runs" if not hook.name else "until then it does not run"
            return fail(f"{name} {hook.problem}", f"correct it, its owner or its mode; {advice}")
    if not hooks:
        return warn(f"there is no program in {folder}", "put one there, or unset GPUBOARD_HOOKS")
    return passed(f"{format_count(len(hooks), 'program')} in {folder}")


def check_notifications(context: DoctorContext) -> CheckResult:
    settings = context.settings
    if not settings.alerts.is_enabled:
        return not_applicable(NO_RECEIVERS_MESSAGE)
    path = settings.state / STATE_FILE
    if path.exists() and path.stat().st_mode & 0o077:
        return warn(f"other users can read {path}, which lists who was notified of what", f"chmod 600 {path}")
    store = open_alert_store(settings.state, settings.kv)
    try:
        alert_state = store.read()
    except AlertStateError as error:
        return fail(str(error), "until it can be read, no alerts are sent")
    if store.problem:
        return warn(f"{store.where} {store.problem}", "check whether the disk is full or is a network file system")
    if alert_state.started_at is None:
        return skip("no build has evaluated the alert rules yet")
    now = context.read_clock()
    if problems := describe_queue_problems(alert_state, int(now)):
        return warn(problems, "`gpuboard alerts list` shows all of them, `gpuboard alerts test` sends a test")
    sent = sum(delivery.status == SENT and now - delivery.at < DAY_S for delivery in alert_state.history)
    waiting = len(alert_state.notifications) or "none"
    return passed(f"{format_count(sent, 'notification')} sent in the last day; {waiting} waiting")


def check_slack_bot(context: DoctorContext) -> CheckResult:
    access = context.settings.alerts.slack
    if not access.app_token:
        return not_applicable("GPUBOARD_SLACK_APP_TOKEN is not set")
    if not access.bot_token:
        return fail("GPUBOARD_SLACK_APP_TOKEN is set without GPUBOARD_SLACK_BOT_TOKEN", "set both: docs/slack.md")
    pid = locks.find_lock_holder(context.settings.state / locks.BOT_LOCK_NAME)
    if pid is None:
        return fail("the Slack bot is not running", "`gpuboard slack` shows why; `./install.sh web` starts it")
    return passed(f"the Slack bot is running, as process {pid}")
