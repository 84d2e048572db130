"""The check of authorized_keys: what the keys of the hosts may do on this machine."""

from __future__ import annotations

import os
import re
import shlex
import stat

from site_builder.core.formatting import names
from site_builder.doctor.check_result import Case, Found, failed, passed, skipped, warned

LIMIT = 1 << 20
KEY = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-[\w@.-]+)\s+[A-Za-z0-9+/=]+(?:\s+(.*))?$")
COMMAND = re.compile(r'(?:^|,)command="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
RECEIVER = "gpu-receive.sh"
# By which a shell would do more than it is told by one command.
MORE = re.compile(r"[;&|<>()$`\n]")
# What gives back, behind `restrict`, what it took.
LOOSENED = {"agent-forwarding", "port-forwarding", "pty", "user-rc", "x11-forwarding"}


def keys(case: Case) -> Found:
    """Each key that logs in here as this user should be able to push for one host, and nothing else."""
    path = case.home / ".ssh/authorized_keys"
    try:
        with path.open("rb") as file:
            lines = file.read(LIMIT).decode(errors="replace").splitlines()
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        return skipped(f"{path} is not there: no host pushes here by a key of this user")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return failed(f"others can write to {path}: sshd takes no key of it", f"chmod go-w {path}")
    found = [(number, *taken_apart(line)) for number, line in enumerate(lines, 1) if is_key(line)]
    gone = sorted(
        {script for _, options, _ in found if (script := script_of(options)) and not os.access(script, os.X_OK)}
    )
    if gone:
        what = f"{path} names {gone[0]}, which is not there: nothing arrives from those hosts"
        return failed(what, "call ./install.sh web, or enrol them again: gpu-enrol.sh add HOST")
    loose = [
        f"line {number}{f' ({comment})' if comment else ''}" for number, options, comment in found if is_loose(options)
    ]
    if loose:
        what = f"of {len(found)} keys in {path}, {len(loose)} can do more than push for one host: {names(loose)}"
        advice = "a GPU host's key belongs behind restrict,command=: gpu-enrol.sh add HOST; see docs/security.md"
        return warned(what, f"{advice}. A person's own key may stay")
    return passed(f"all {len(found)} keys in {path} push for one host each, and do nothing else")


def is_key(line: str) -> bool:
    """Whether a line holds a key at all."""
    return bool(line.strip()) and not line.lstrip().startswith("#") and bool(KEY.search(line))


def taken_apart(line: str) -> tuple[str, str]:
    """The options before a key, and the comment behind it."""
    match = KEY.search(line)
    if match is None:
        return "", ""
    comment = "".join(letter if letter.isprintable() else "?" for letter in match[2] or "")
    return line[: match.start(1)].strip(), comment[:40]


def words_of(options: str) -> list[str]:
    """The words of a forced command as a shell sees them, what it would make more of as words of their own."""
    command = COMMAND.search(options)
    found = shlex.shlex(command[1].replace('\\"', '"') if command else "", posix=True, punctuation_chars=True)
    found.commenters, found.whitespace_split = "", True
    try:
        return list(found)
    except ValueError:  # a quote without its end
        return []


def script_of(options: str) -> str:
    """The receiver that a forced command names; empty where it is something else."""
    words = words_of(options)
    return words[0] if words and words[0].endswith(f"/{RECEIVER}") else ""


def is_loose(options: str) -> bool:
    """Whether a key can do more than the one thing."""
    program, *words = words_of(options) or [""]
    plain = {option.strip().lower() for option in COMMAND.sub("", options).split(",")}
    is_ours = program.rpartition("/")[2] == RECEIVER and not MORE.search(" ".join(words))
    return not is_ours or "restrict" not in plain or bool(plain & LOOSENED)
