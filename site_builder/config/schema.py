"""Table of all settings: name, default, type, purpose, and which failure each prevents."""

from __future__ import annotations

import re
from dataclasses import dataclass

from site_builder.config.setting_types import (
    BOARD_URL,
    BOOLEAN,
    CHANNELS,
    FILE,
    FOLDER,
    KV_URL,
    LISTEN,
    LOGINS,
    MAIL_URL,
    PERCENT,
    SENTENCE,
    SERVER_NAMES,
    SLACK_URL,
    ZONE_NAME,
    SettingType,
    build_choice_type,
    build_duration_type,
    build_number_type,
    build_text_type,
    parse_consul_address_setting,
    parse_folder_setting,
)

DAY_S = 86400
NAME_IN_CONSUL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TOKEN_PATTERN = re.compile(r"[!-~]{1,4096}")
NAME_AND_PASSWORD = re.compile(r"[^:\x00-\x20\x7f][^:\x00-\x1f\x7f]{0,99}:[^\x00-\x1f\x7f]{1,500}")
# A path on the board's own server: no scheme, no host, no `..`.
BOOK_PATH = re.compile(r"(?!//)(?!.*\.\.)[A-Za-z0-9/][A-Za-z0-9/._~-]{0,199}")
DOMAIN_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")
IP_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")
HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
SLACK_BOT_TOKEN, SLACK_APP_TOKEN = (re.compile(rf"{kind}-[A-Za-z0-9-]{{1,500}}") for kind in ("xoxb", "xapp"))

# Settings of GPU hosts, which scripts/lib/settings.sh reads from the file; see docs/hosts.md.
HOST_SETTINGS = (
    *("GPUBOARD_DEST", "GPUBOARD_GPUS_EVERY", "GPUBOARD_PROCESSES_EVERY", "GPUBOARD_PS_EVERY", "GPUBOARD_LIMIT"),
    *("GPUBOARD_NVIDIA", "GPUBOARD_AMD", "GPUBOARD_SSH_CONFIG", "GPUBOARD_SSH_KEY", "GPUBOARD_DISK_USE"),
    "GPUBOARD_SPOOL",
)
# Read from the environment only.
ENVIRONMENT_ONLY = ("GPUBOARD_CONF", "GPUBOARD_PROC", "GPUBOARD_USER")


@dataclass(frozen=True)
class Setting:
    default: str
    value_type: SettingType
    description: str
    prevented_failure: str
    flag: str | None = None
    is_secret: bool = False


SETTINGS = {
    "GPUBOARD_DATA": Setting(
        "data",
        FOLDER,
        "the shared folder that the GPU hosts push to, with bookings and host list",
        "a board of the wrong fleet",
        flag="--data",
    ),
    "GPUBOARD_WWW": Setting(
        "www",
        FOLDER,
        "the folder that the web server serves, and that is written anew at each build",
        "a site where nobody looks",
        flag="--www",
    ),
    "GPUBOARD_STATE": Setting(
        "state",
        FOLDER,
        "what the builder remembers: last good snapshots, history, tokens; on a local disk, outside www",
        "a database on a network share, and tokens that are served",
        flag="--state",
    ),
    "GPUBOARD_ZONE": Setting(
        "",
        ZONE_NAME,
        "the time zone of dates without an offset, such as Europe/Paris; by default this machine's",
        "bookings that end hours early or late where the web host runs in UTC",
    ),
    "GPUBOARD_SHOW_COMMANDS": Setting(
        "full",
        build_choice_type(full="full", program="program", none="none"),
        "what is shown of commands: full, program (its name only) or none",
        "arguments, file names and project names on a page that others can read",
    ),
    "GPUBOARD_SHOW_USERS": Setting(
        "yes",
        build_choice_type(yes=True, no=False),
        "whether users are named: yes or no",
        "a public list of who works when",
    ),
    "GPUBOARD_NOTICE": Setting(
        "",
        SENTENCE,
        "a sentence at the top of the board, for everybody: what is planned, whom to ask",
        "a power cut on Friday that nobody read of",
    ),
    "GPUBOARD_LISTEN": Setting(
        "127.0.0.1:8080",
        LISTEN,
        "where `gpuboard serve` listens, as address:port or port; 0.0.0.0:8080 is open to the network",
        "a board that strangers can read, or nobody",
        flag="--listen",
    ),
    "GPUBOARD_SERVER_NAMES": Setting(
        "",
        SERVER_NAMES,
        "names under which `gpuboard serve` answers, with commas between them, besides IP addresses, localhost, the "
        "names of its machine and the name in GPUBOARD_URL",
        "a page elsewhere that leads a name of its own to the board, and reads it in your browser",
    ),
    "GPUBOARD_HTPASSWD": Setting(
        "",
        FILE,
        "a file of `htpasswd -B`, with the names and passwords that `gpuboard serve` asks for before it shows anything",
        "a board that everybody on the network can read",
        flag="--htpasswd",
    ),
    "GPUBOARD_URL": Setting(
        "",
        BOARD_URL,
        "where the board is, such as https://gpus.lab.org/: commands on other machines book and look there",
        "a lab in which only the web host can book",
        flag="--url",
    ),
    "GPUBOARD_TOKEN": Setting(
        "",
        build_text_type(TOKEN_PATTERN, "a token without blanks"),
        "what `gpuboard token` gave you: it says who you are when you book through GPUBOARD_URL",
        "a booking under somebody else's name",
        is_secret=True,
    ),
    "GPUBOARD_LOGIN": Setting(
        "",
        build_text_type(NAME_AND_PASSWORD, "a name, a colon and a password"),
        "name:password for a board at GPUBOARD_URL that asks for them",
        "a board behind a password that no command can read",
        is_secret=True,
    ),
    "GPUBOARD_BOOK_URL": Setting(
        "",
        build_text_type(BOOK_PATH, "a path on the board's own server, such as book or /cgi-bin/book.cgi"),
        "where the page sends bookings: book, for `gpuboard serve`, or the path of book.cgi; without it the page shows "
        "the command to copy",
        "people who edit comments.json because the page cannot book",
    ),
    "GPUBOARD_BOOK_OPEN": Setting(
        "no",
        build_choice_type(yes=True, no=False),
        "whether anybody who reaches the board may book under any name: yes or no",
        "bookings by strangers; with yes, tokens in a lab where all trust each other",
    ),
    "GPUBOARD_BOOK_FOR_OTHERS": Setting(
        "yes",
        build_choice_type(yes=True, no=False),
        "whether people may book under another's name, which is logged: yes or no",
        "GPUs booked in the name of somebody who does not know of it",
    ),
    "GPUBOARD_ADMINS": Setting(
        "",
        LOGINS,
        "logins that may change everybody's bookings and are bound by no limit, with commas between them",
        "a forgotten booking that nobody can release",
    ),
    "GPUBOARD_BOOK_GPUS": Setting(
        "0",
        build_number_type(0, 100_000),
        "how many GPUs a person may have booked at the same time; 0 is no limit",
        "one person with all GPUs",
    ),
    "GPUBOARD_BOOK_HOURS": Setting(
        "0",
        build_number_type(0, 1_000_000),
        "how many GPU-hours a person may have booked from now on (of what repeats, four weeks); 0 is no limit",
        "a fleet that is promised to the first who comes",
    ),
    "GPUBOARD_BOOK_LONGEST": Setting(
        "0s",
        build_duration_type(0, 3650 * DAY_S),
        "how long one booking may be; 0 is no limit",
        "GPUs that are booked for ever",
    ),
    "GPUBOARD_BOOK_AHEAD": Setting(
        "0s",
        build_duration_type(0, 3650 * DAY_S),
        "how far ahead a booking may begin; 0 is no limit",
        "the week before the deadline, booked a year before",
    ),
    "GPUBOARD_BOOK_KEEP": Setting(
        "30d",
        build_duration_type(0, 3650 * DAY_S),
        "how long a booking that is over stays in comments.json before it moves to state/bookings-past.jsonl; 0 is for "
        "ever",
        "a file in which nobody finds the bookings that count",
    ),
    "GPUBOARD_PROXY": Setting(
        "",
        build_text_type(IP_ADDRESS, "the IP address of a proxy"),
        "the address of a proxy that says who somebody is; from any other its header is not believed",
        "anybody who passes for anybody by a header",
    ),
    "GPUBOARD_PROXY_HEADER": Setting(
        "X-Remote-User",
        build_text_type(HEADER_NAME, "the name of an HTTP header"),
        "the header in which that proxy says it",
        "the same",
    ),
    "GPUBOARD_STALE_AFTER": Setting(
        "30s",
        build_duration_type(0, DAY_S),
        "how much later than three intervals a snapshot may come before its host is stale",
        "old numbers that look like new ones; a longer one, hosts that flicker on a slow network",
    ),
    "GPUBOARD_DOWN_AFTER": Setting(
        "10m",
        build_duration_type(1, 30 * DAY_S),
        "how old a host's last word may be before it is down",
        "a dead host that is only called stale; a longer one, an alarm at each reboot",
    ),
    "GPUBOARD_CLOCK_OFF": Setting(
        "60s",
        build_duration_type(1, DAY_S),
        "how far a host's clock may be off before the board warns",
        "times of processes that are wrong, and nobody knows why",
    ),
    "GPUBOARD_IDLE_PERCENT": Setting(
        "5",
        PERCENT,
        "below this use, in percent, a GPU with memory taken counts as idle",
        "a forgotten notebook that passes for work",
    ),
    "GPUBOARD_HELD_AFTER": Setting(
        "2h",
        build_duration_type(0, 30 * DAY_S),
        "how long a GPU is idle with memory taken before it is held",
        "somebody blamed during a lunch break or a slow start",
    ),
    "GPUBOARD_FREE_PERCENT": Setting(
        "5",
        PERCENT,
        "below this share of memory in use, in percent, a GPU without a process is free",
        "memory that no process explains, and that would fail the next job",
    ),
    "GPUBOARD_FREE_MIB": Setting(
        "1024",
        build_number_type(0, 1024 * 1024),
        "the same limit in MiB; both must hold",
        "a large GPU called free while some GB of it are taken",
    ),
    "GPUBOARD_SOON": Setting(
        "1d",
        build_duration_type(0, 30 * DAY_S),
        "a free GPU that is promised within this time says until when it is free",
        "a long job begun an hour before somebody else's booking",
    ),
    "GPUBOARD_SNAPSHOT_KIB": Setting(
        "1024",
        build_number_type(64, 8192),
        "the largest file of a host that is read, in KiB; of a larger one the page says so, and the last one serves",
        "every build slowed by one host that sends megabytes",
    ),
    "GPUBOARD_NOTIFY": Setting(
        "",
        CHANNELS,
        "where alerts go: addresses as apprise has them, with blanks between them, each with a name before it where "
        "there are several: lab=slack://… ops=mailto://…",
        "a host that is down for a weekend before anybody looks",
        is_secret=True,
    ),
    "GPUBOARD_MAIL": Setting(
        "",
        MAIL_URL,
        "the mail server by which people are told, as mailtos://user:password@smtp.lab.org?from=gpus@lab.org",
        "a booking that is broken, and whose owner hears of it last",
        is_secret=True,
    ),
    "GPUBOARD_MAIL_DOMAIN": Setting(
        "",
        build_text_type(DOMAIN_NAME, "a domain such as lab.org"),
        "where LOGIN@ this is the address of whoever has no line in the contacts",
        "a list of addresses to keep up where they follow from logins",
    ),
    "GPUBOARD_CONTACTS": Setting(
        "",
        FILE,
        "the file that says how each person is told: lines of login,address",
        "alerts to an address that nobody reads",
    ),
    "GPUBOARD_ALERTS": Setting(
        "",
        FILE,
        "the file with the rules of alerts; by default those of alerts.conf.example",
        "alerts that nobody asked for, until nobody reads any",
    ),
    "GPUBOARD_HOOKS": Setting(
        "",
        SettingType(FOLDER.refusal, lambda text: parse_folder_setting(text) if text else None),
        "a folder of programs that get each alert as JSON; only the builder's user may write there",
        "a way to tell people that gpuboard does not know",
    ),
    "GPUBOARD_SLACK_BOT_TOKEN": Setting(
        "",
        build_text_type(SLACK_BOT_TOKEN, "the bot token of a Slack app, which begins with xoxb-"),
        "the token by which `gpuboard slack` answers, and by which people get alerts as direct messages",
        "people who ask in Slack which GPU is free, and wait for somebody to look",
        is_secret=True,
    ),
    "GPUBOARD_SLACK_APP_TOKEN": Setting(
        "",
        build_text_type(SLACK_APP_TOKEN, "the app-level token of a Slack app, which begins with xapp-"),
        "the token by which `gpuboard slack` hears what is asked, over a connection that it opens itself",
        "a port that Slack would have to reach from outside",
        is_secret=True,
    ),
    "GPUBOARD_SLACK_URL": Setting(
        "https://slack.com/api/",
        SLACK_URL,
        "where Slack is; for GovSlack https://slack-gov.com/api/",
        "a token that is sent to a Slack which does not know it",
    ),
    "GPUBOARD_CONSUL_SERVICE": Setting(
        "",
        build_text_type(NAME_IN_CONSUL, "the name of a service: letters, digits and . _ -"),
        "the service that GPU hosts register in Consul; without it Consul is not asked",
        "a host that never pushed, and that nobody misses",
    ),
    "GPUBOARD_KV": Setting(
        "",
        KV_URL,
        "where hosts put their snapshots into Consul, as consul://host:port/prefix; data/ is then a copy of it, and "
        "bookings live there too",
        "a web host without which nobody sees anything",
    ),
    "GPUBOARD_CONSUL_DATACENTER": Setting(
        "",
        build_text_type(NAME_IN_CONSUL, "the name of a datacenter: letters, digits and . _ -"),
        "the datacenter that is asked; by default the agent's own",
        "hosts of another site on the board, or none",
    ),
    "CONSUL_HTTP_ADDR": Setting(
        "127.0.0.1:8500",
        SettingType("but must be host:port, with http:// or https:// before it or not", parse_consul_address_setting),
        "where Consul answers, as host:port; https:// before it turns TLS on",
        "questions to an agent that is not there",
    ),
    "CONSUL_HTTP_TOKEN": Setting(
        "",
        build_text_type(TOKEN_PATTERN, "a token without blanks"),
        "the ACL token; in a file that only the builder can read",
        "an empty host list where Consul shows nothing to strangers",
        is_secret=True,
    ),
    "CONSUL_HTTP_SSL": Setting(
        "false",
        BOOLEAN,
        "whether Consul is asked over TLS: true or false",
        "a token that crosses the network in the clear",
    ),
    "CONSUL_HTTP_SSL_VERIFY": Setting(
        "true",
        BOOLEAN,
        "whether its certificate is checked: true or false",
        "a token told to whoever answers",
    ),
    "CONSUL_CACERT": Setting(
        "",
        FILE,
        "the file with the authority that signed it; by default the system's",
        "a check turned off because the authority is your own",
    ),
    "CONSUL_CLIENT_CERT": Setting(
        "",
        FILE,
        "the file with our own certificate, where Consul wants one",
        "a refusal by Consul where it checks both sides",
    ),
    "CONSUL_CLIENT_KEY": Setting(
        "",
        FILE,
        "the file with its key",
        "the same",
    ),
}
