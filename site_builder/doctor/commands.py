"""`gpuboard doctor`: find problems on the web host, and how to fix them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator

import click

from site_builder import __version__
from site_builder.config.settings import SettingsError, load_settings
from site_builder.core.command_options import with_setting_options
from site_builder.core.terminal_text import is_coloured, replace_unencodable
from site_builder.doctor import alert_checks, builder_checks, data_checks, web_checks
from site_builder.doctor.model import EXIT_CODES, PASS, Check, CheckResult, DoctorContext, run_check
from site_builder.snapshots.local_machine import read_local_machine_name

LINE_WIDTH = 80
STATUS_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red"}
# Before the words: status and id.
MESSAGE_INDENT = 23
CHECKS = (
    Check("program", "python", builder_checks.check_python),
    Check("program", "packages", builder_checks.check_packages),
    Check("program", "settings", builder_checks.check_settings),
    Check("data", "data", data_checks.check_data_folder),
    Check("data", "comments", data_checks.check_bookings_file),
    Check("data", "lists", data_checks.check_name_lists),
    Check("data", "hosts", data_checks.check_hosts),
    Check("data", "clocks", data_checks.check_host_clocks),
    Check("data", "problems", data_checks.check_host_problems),
    Check("data", "keys", data_checks.check_authorized_keys),
    Check("data", "consul", data_checks.check_consul),
    Check("data", "kv", data_checks.check_kv_store),
    Check("builder", "cron-daemon", builder_checks.check_cron_daemon),
    Check("builder", "cron-allowed", builder_checks.check_cron_allowed),
    Check("builder", "crontab", builder_checks.check_crontab),
    Check("builder", "linger", builder_checks.check_linger),
    Check("builder", "state", builder_checks.check_state_folder),
    Check("builder", "www", builder_checks.check_www_folder),
    Check("builder", "builder", builder_checks.check_builder),
    Check("builder", "disk", builder_checks.check_disk_space),
    Check("builder", "history", data_checks.check_history),
    Check("alerts", "rules", alert_checks.check_alert_rules),
    Check("alerts", "channels", alert_checks.check_channels),
    Check("alerts", "contacts", alert_checks.check_contacts),
    Check("alerts", "hooks", alert_checks.check_hooks),
    Check("alerts", "notifications", alert_checks.check_notifications),
    Check("alerts", "slack", alert_checks.check_slack_bot),
    Check("web", "url", web_checks.check_board_url),
    Check("web", "types", web_checks.check_content_types),
    Check("web", "caching", web_checks.check_caching),
    Check("web", "headers", web_checks.check_security_headers),
    Check("web", "gzip", web_checks.check_compression),
    Check("web", "built", web_checks.check_served_age),
    Check("web", "closed", web_checks.check_private_files),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verbose", is_flag=True, help="Show skipped checks too, and cut nothing.")
@click.option("--url", metavar="URL", help="Address of the board.")
@with_setting_options
def doctor(conf: str | None, options: dict[str, str | None], as_json: bool, verbose: bool) -> None:
    """Check everything that the board needs on the web host.

    Each check passes, warns, fails or is skipped, and says what to do: docs/doctor.md. Nothing is changed. Run it as
    the user who builds. On a GPU host, run scripts/gpu-doctor.sh instead.

    Exit 0 if all is well, 1 for a warning (the board works), 2 for a failure.

    \b
    gpuboard doctor
    gpuboard doctor --url https://gpus.example.org/
    gpuboard doctor --json
    """
    flags = {f"GPUBOARD_{name.upper()}": value for name, value in options.items() if value is not None}
    try:
        context = DoctorContext(load_settings(conf, flags, os.environ))
    except SettingsError as error:
        context = DoctorContext(None, str(error))
    results: list[CheckResult] = []
    group = ""
    if not as_json:
        click.echo(f"{read_local_machine_name()} (gpuboard {__version__})")
    for check in CHECKS:
        if not as_json and check.group != group:
            group = check.group
            click.echo(f"\n{group}")
        results.append(run_check(check, context))
        if not as_json:
            for line in format_check_lines(check.id, results[-1], verbose):
                click.echo(line)
    statuses = Counter(result.status for result in results)
    # skipped checks do not count
    worst = max(EXIT_CODES.keys() & statuses, key=EXIT_CODES.__getitem__, default=PASS)
    if as_json:  # in the same form as gpu-doctor.sh
        checks = [
            {
                "id": check.id,
                "group": check.group,
                "status": result.status,
                "what": result.message,
                "do": result.advice or None,
            }
            for check, result in zip(CHECKS, results)
        ]
        report = {"host": read_local_machine_name(), "version": __version__, "worst": worst, "checks": checks}
        click.echo(replace_unencodable(json.dumps(report, indent=1, ensure_ascii=False)))
    else:
        click.echo("\n" + ", ".join(f"{statuses[status]} {status}" for status in ("pass", "warn", "fail", "skip")))
    sys.exit(EXIT_CODES[worst])


def format_check_lines(name: str, result: CheckResult, verbose: bool) -> Iterator[str]:
    """Format a check; one that passes takes a single line."""
    if result.is_not_applicable and not verbose:
        return
    width = max(LINE_WIDTH, shutil.get_terminal_size((LINE_WIDTH, 24)).columns) if sys.stdout.isatty() else LINE_WIDTH
    status = f"{result.status:4}"
    if is_coloured():
        status = click.style(status, fg=STATUS_COLOURS.get(result.status))
    width_left = width - MESSAGE_INDENT - 1
    message, advice = (
        " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        for text in (result.message, result.advice)
    )
    lines = textwrap.wrap(message, width_left) or [""]
    if result.status == "pass" and not verbose and len(lines) > 1:
        lines = [message[: width_left - 3] + "..."]
    yield replace_unencodable(f"  {status}  {name:13}  {lines[0]}")
    yield from (replace_unencodable(" " * MESSAGE_INDENT + line) for line in lines[1:])
    for number, line in enumerate(textwrap.wrap(advice, width_left)):
        yield replace_unencodable((" " * MESSAGE_INDENT if number else f"{'->':>{MESSAGE_INDENT - 1}} ") + line)
