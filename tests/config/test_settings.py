"""Settings: one file for sh and Python, a flag over all else, and one sentence for whatever is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import NoReturn
from zoneinfo import ZoneInfoNotFoundError

import click
import pytest
from dateutil import tz
from hypothesis import example, given
from hypothesis import strategies as st

from site_builder.cli import COMMANDS, main
from site_builder.config.schema import (
    ENVIRONMENT_ONLY,
    HOST_SETTINGS,
    SETTINGS,
    Setting,
    format_duration_setting,
    parse_seconds_setting,
)
from site_builder.config.settings import (
    MAX_CONF_BYTES,
    MAX_WARNINGS,
    ConfFile,
    Settings,
    SettingsError,
    SettingValue,
    build_settings,
    list_conf_paths,
    load_conf_file,
    parse_conf_file,
    resolve_setting_values,
)
from site_builder.core import clock
from site_builder.core.clock import find_zone
from site_builder.core.command_options import with_settings
from site_builder.core.model import ConsulAccess, PrivacySettings, StateLimits
from tests.support.pace import check, took, within

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/settings.md"
EXAMPLE = ROOT / "gpuboard.conf.example"
WINTER = datetime(2026, 1, 15, 12)


def parsed(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str = "",
) -> Settings:
    values, _ = parse_conf_file(file.encode(), "gpuboard.conf")
    setting_values = resolve_setting_values(flags or {}, environment or {}, values)
    return build_settings(setting_values, environment or {})


def refusal(file: str = "", **environment: str) -> str:
    with pytest.raises(SettingsError) as wrong:
        parsed({}, environment, file)
    return str(wrong.value)


def warnings(file: str) -> list[str]:
    return parse_conf_file(file.encode(), "gpuboard.conf")[1]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which no settings of this machine count but those in /etc."""
    for name in (*SETTINGS, *HOST_SETTINGS, *ENVIRONMENT_ONLY, "TZ"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPUBOARD_CONF", "/dev/null")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(code: str, **environment: str) -> str:
    """What it prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Result:
    stdout: str
    stderr: str
    exit_code: int


def gpuboard(*words: str, command: click.Command = main) -> Result:
    """The command as it is called, but in this process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err, pytest.raises(SystemExit) as end:
        command(words, prog_name="gpuboard")
    return Result(out.getvalue(), err.getvalue(), int(end.value.code or 0))


# What is in force


def test_without_any_setting_the_defaults_are_those_of_the_model() -> None:
    loaded = parsed(environment={"TZ": "Europe/Paris"})
    assert (loaded.data, loaded.www, loaded.state) == (Path("data"), Path("www"), Path("state"))
    assert (loaded.limits, loaded.privacy, loaded.consul) == (StateLimits(), PrivacySettings(), None)
    assert str(loaded.zone) == "Europe/Paris"


def test_every_limit_can_be_set() -> None:
    names = [f"GPUBOARD_{field.name.upper()}" for field in fields(StateLimits)]
    lines = [f"{name}={number}" for number, name in enumerate(names, 11)]
    assert parsed(file="\n".join(lines)).limits == StateLimits(*range(11, 11 + len(names)))


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default() -> None:
    flags, environment = {"GPUBOARD_DATA": "flag"}, {"GPUBOARD_DATA": "env", "GPUBOARD_WWW": "env"}
    file = {
        name: SettingValue("file", "/x/gpuboard.conf", 3)
        for name in ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
    }
    setting_values = resolve_setting_values(flags, environment, file)
    origins = [(setting_values[name].text, setting_values[name].where) for name in (*file, "GPUBOARD_SOON")]
    assert origins == [
        ("flag", "--data"),
        ("env", "environment"),
        ("file", "/x/gpuboard.conf, line 3"),
        ("1d", "default"),
    ]


def test_an_empty_value_is_the_default_and_says_so() -> None:
    file = {
        "GPUBOARD_SOON": SettingValue("", "/x/gpuboard.conf", 2),
        "GPUBOARD_WWW": SettingValue("hidden", "/x/gpuboard.conf", 3),
    }
    setting_values = resolve_setting_values({}, {"GPUBOARD_WWW": ""}, file)
    assert (setting_values["GPUBOARD_WWW"].text, setting_values["GPUBOARD_WWW"].where) == ("www", "environment, empty")
    assert (setting_values["GPUBOARD_SOON"].text, setting_values["GPUBOARD_SOON"].short_where) == (
        "1d",
        "gpuboard.conf, line 2, empty",
    )


def test_an_empty_flag_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"GPUBOARD_DATA is '' \(--data\), but must be a folder"):
        parsed({"GPUBOARD_DATA": ""})


def test_privacy_settings() -> None:
    assert parsed(file="GPUBOARD_SHOW_COMMANDS=program\nGPUBOARD_SHOW_USERS=no").privacy == PrivacySettings(
        "program", users=False
    )


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("0", 0, "0s"),
        ("30", 30, "30s"),
        ("60", 60, "60s"),
        ("2m", 120, "2m"),
        ("7200", 7200, "2h"),
        ("90m", 5400, "90m"),
        ("24h", 86400, "1d"),
        ("61", 61, "61s"),
    ],
)
def test_a_time_may_have_a_unit_and_is_shown_with_one(text: str, seconds: int, shown: str) -> None:
    assert (parse_seconds_setting(text), format_duration_setting(seconds)) == (seconds, shown)


@given(st.integers(0, 10**8))
def test_a_time_that_is_shown_is_read_as_the_same(seconds: int) -> None:
    assert parse_seconds_setting(format_duration_setting(seconds)) == seconds


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_each_default_is_shown_as_the_docs_write_it(setting: Setting) -> None:
    assert setting.value_type.format_value(setting.default) == setting.default


# What is refused


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("GPUBOARD_SHOW_USERS=maybe", "but must be yes or no"),
        ("GPUBOARD_SHOW_COMMANDS=all", "but must be full, program or none"),
        ("GPUBOARD_IDLE_PERCENT=101", "but must be a number from 0 to 100"),
        ("GPUBOARD_IDLE_PERCENT=-1", "but must be a number from 0 to 100"),
        ("GPUBOARD_IDLE_PERCENT=nan", "but must be a number from 0 to 100"),
        ("GPUBOARD_IDLE_PERCENT=5%", "but must be a number from 0 to 100"),
        ("GPUBOARD_FREE_MIB=1e3", "but must be a number from 0 to 1048576"),
        ("GPUBOARD_FREE_MIB=٣", "but must be a number from 0 to 1048576"),
        ("GPUBOARD_HELD_AFTER=2 h", "but must be a time from 0s to 30d, such as 30s, 10m, 2h or 1d"),
        ("GPUBOARD_HELD_AFTER=31d", "but must be a time from 0s to 30d, such as 30s, 10m, 2h or 1d"),
        ("GPUBOARD_CLOCK_OFF=0", "but must be a time from 1s to 1d, such as 30s, 10m, 2h or 1d"),
        ("GPUBOARD_DATA=~/data", "but must be a folder, without ~ or $: nothing is expanded in a setting"),
        ("GPUBOARD_DATA=$HOME/data", "but must be a folder, without ~ or $: nothing is expanded in a setting"),
        ("GPUBOARD_CONSUL_SERVICE=a/b", "but must be the name of a service: letters, digits and . _ -"),
    ],
)
def test_wrong_value_is_refused_with_its_place_and_what_is_allowed(line: str, allowed: str) -> None:
    name, _, value = line.partition("=")
    assert refusal(f"# ours\n{line}") == f"{name} is '{value}' (gpuboard.conf, line 2), {allowed}"
    assert refusal(**{name: value}) == f"{name} is '{value}' (environment), {allowed}"


def test_no_escape_sequence_of_a_value_reaches_the_terminal() -> None:
    assert "is '?[31mred'" in refusal("GPUBOARD_SHOW_USERS=\x1b[31mred")


def test_a_host_cannot_be_down_before_it_is_stale() -> None:
    assert "must be longer than GPUBOARD_STALE_AFTER=10m (gpuboard.conf, line 1)" in refusal("GPUBOARD_STALE_AFTER=10m")


def test_folders_must_differ(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    words = refusal(f"GPUBOARD_DATA={tmp_path}/link/a\nGPUBOARD_STATE={tmp_path}/b/../a")
    assert f"GPUBOARD_DATA={tmp_path}/link/a (gpuboard.conf, line 1) and GPUBOARD_STATE=" in words
    assert words.endswith("are one folder, but must be two")


@pytest.mark.parametrize(("name", "why"), [("STATE", "it holds tokens"), ("DATA", "it names people and what they run")])
def test_folders_inside_www_are_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "www")
    for folder in ("www/x", "www/a/../b/c", "link/x"):
        words = refusal(f"GPUBOARD_WWW={tmp_path}/www\nGPUBOARD_{name}={tmp_path}/{folder}")
        assert words.endswith(
            f"lies inside GPUBOARD_WWW={tmp_path}/www (gpuboard.conf, line 1) and would be served: {why}"
        )


def test_a_folder_beside_the_site_with_a_like_name_is_fine(tmp_path: Path) -> None:
    assert parsed(file=f"GPUBOARD_WWW={tmp_path}/www\nGPUBOARD_STATE={tmp_path}/www-state")


# Consul


def test_consul_is_asked_only_where_a_service_is_set() -> None:
    assert parsed(environment={"CONSUL_HTTP_ADDR": "unix:///run/somebody-elses", "CONSUL_HTTP_SSL": "?"}).consul is None
    assert parsed(environment={"GPUBOARD_CONSUL_SERVICE": "gpu"}).consul == ConsulAccess("gpu")


def test_consul_keeps_its_own_names() -> None:
    file = "GPUBOARD_CONSUL_SERVICE=gpu\nGPUBOARD_CONSUL_DATACENTER=dc1\nCONSUL_HTTP_ADDR=[::1]:8501\n"
    file += "CONSUL_HTTP_TOKEN=t\nCONSUL_HTTP_SSL=true\nCONSUL_HTTP_SSL_VERIFY=false\n"
    file += "CONSUL_CACERT=/ca\nCONSUL_CLIENT_CERT=/c\nCONSUL_CLIENT_KEY=/k\n"
    expected = ConsulAccess("gpu", "dc1", "[::1]:8501", "t", tls=True, verify=False, ca="/ca", cert="/c", key="/k")
    assert parsed(file=file).consul == expected


@pytest.mark.parametrize(("text", "tls"), [("1", True), ("True", True), ("0", False), ("FALSE", False)])
def test_booleans_are_those_of_consul(text: str, tls: bool) -> None:
    assert parsed(file=f"GPUBOARD_CONSUL_SERVICE=gpu\nCONSUL_HTTP_SSL={text}").consul == ConsulAccess("gpu", tls=tls)


def test_https_in_consuls_address_turns_tls_on() -> None:
    access = parsed(file="GPUBOARD_CONSUL_SERVICE=gpu\nCONSUL_HTTP_ADDR=https://consul.lab:8501/").consul
    assert access == ConsulAccess("gpu", address="consul.lab:8501", tls=True)


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("8081", ("127.0.0.1", 8081)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),  # noqa: S104
        ("[::1]:8080", ("::1", 8080)),
        ("board:9000", ("board", 9000)),
    ],
)
def test_where_it_listens_is_an_address_and_a_port_or_a_port_of_this_machine_alone(
    text: str, listen: tuple[str, int]
) -> None:
    assert parsed({"GPUBOARD_LISTEN": text}).listen == listen


@pytest.mark.parametrize("text", ["0", "65536", "board", ":80", "::1:80", "http://board:80", "board:80/x"])
def test_an_address_on_which_nothing_can_listen_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"GPUBOARD_LISTEN is '.*' .*must be address:port or a port"):
        parsed({"GPUBOARD_LISTEN": text})


@pytest.mark.parametrize("address", ["consul", "consul:0", "consul:65536", "unix:///run/consul", "a b:1", "ftp://a:1"])
def test_invalid_consul_address_is_refused(address: str) -> None:
    words = refusal(f"GPUBOARD_CONSUL_SERVICE=gpu\nCONSUL_HTTP_ADDR={address}")
    assert words.endswith("but must be host:port, with http:// or https:// before it or not")


def test_a_certificate_needs_its_key() -> None:
    words = refusal("GPUBOARD_CONSUL_SERVICE=gpu\nCONSUL_CLIENT_CERT=/c")
    assert (
        words
        == "CONSUL_CLIENT_CERT=/c (gpuboard.conf, line 2) is of no use without CONSUL_CLIENT_KEY: set both, or none"
    )


@pytest.mark.parametrize(
    "file",
    [
        "CONSUL_HTTP_TOKEN=hush hush",
        "CONSUL_HTTP_TOKEN = hush",
        "CONSUL_HTTP_TOKEN= hush",
        "CONSUL_HTTP_ADDR=http://u:hush@h:1",
    ],
)
def test_no_refusal_repeats_a_secret(file: str) -> None:
    assert "hush" not in refusal(f"GPUBOARD_CONSUL_SERVICE=gpu\n{file}")


# The time zone


def offset(zone: tzinfo) -> timedelta | None:
    return WINTER.replace(tzinfo=zone).utcoffset()


def test_a_zone_by_its_name() -> None:
    assert offset(parsed(file="GPUBOARD_ZONE=Asia/Tokyo").zone) == timedelta(hours=9)
    assert offset(parsed(file="GPUBOARD_ZONE=America/Argentina/Buenos_Aires").zone) == timedelta(hours=-3)
    assert offset(parsed(file="GPUBOARD_ZONE=Etc/GMT+5").zone) == timedelta(hours=-5)


@pytest.mark.parametrize(
    "name",
    [
        "Paris",
        "Europe",
        "../../etc/passwd",
        "/etc/localtime",
        ":Europe/Paris",
        "Europe/../Europe/Paris",
        "foo3",
        "UTC+3",
        "Europe/Paris/",
        "Europe//Paris",
        "a" * 65,
        "Europe/Paris ",
        "tzdata.zi",
        ".",
    ],
)
def test_invalid_zone_is_refused_and_no_path_is_followed(name: str) -> None:
    words = refusal(GPUBOARD_ZONE=name)
    assert words == f"GPUBOARD_ZONE is '{name}' (environment), which is not a time zone; write one as Europe/Paris"


@pytest.mark.parametrize("name", ["Asia/Tokyo", ":Asia/Tokyo"])
def test_the_variable_tz_is_this_machines_zone(name: str) -> None:
    assert offset(find_zone("", {"TZ": name}, Path("/missing"))) == timedelta(hours=9)


@pytest.mark.parametrize("environment", [{}, {"TZ": ""}])
def test_default_zone_is_localtime_under_its_name(environment: dict[str, str], tmp_path: Path) -> None:
    there = tmp_path / "zoneinfo/Lab/Tokyo"
    there.parent.mkdir(parents=True)
    there.write_bytes(tokyo())
    (tmp_path / "localtime").symlink_to(there)
    zone = find_zone("", environment, tmp_path / "localtime")
    assert (offset(zone), str(zone)) == (timedelta(hours=9), "Lab/Tokyo")


def test_a_tz_that_names_localtime_is_localtime(tmp_path: Path) -> None:
    (tmp_path / "localtime").write_bytes(tokyo())
    zone = find_zone("", {"TZ": f":{tmp_path}/localtime"}, tmp_path / "localtime")
    assert offset(zone) == timedelta(hours=9)


def tokyo() -> bytes:
    import importlib.resources  # noqa: PLC0415
    import zoneinfo  # noqa: PLC0415

    for folder in zoneinfo.TZPATH:
        if Path(folder, "Asia/Tokyo").is_file():
            return Path(folder, "Asia/Tokyo").read_bytes()
    return importlib.resources.files("tzdata.zoneinfo.Asia").joinpath("Tokyo").read_bytes()


@pytest.mark.parametrize("content", [None, b"", b"not a zone"])
def test_without_localtime_the_zone_is_that_of_the_c_library(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "localtime").write_bytes(content)
    assert find_zone("", {}, tmp_path / "localtime") == tz.tzlocal()


def test_tz_rule_is_left_to_the_c_library() -> None:
    code = "import os, datetime; from site_builder.config.settings import find_zone;"
    code += "print(datetime.datetime(2026, 1, 15, tzinfo=find_zone('', os.environ)))"
    assert python(code, TZ="XYZ-3:30") == "2026-01-15 00:00:00+03:30\n"


def test_machine_without_zones_uses_dateutil(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_zone(name: str) -> NoReturn:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(clock, "ZoneInfo", find_no_zone)
    assert offset(find_zone("Asia/Tokyo", {})) == timedelta(hours=9)
    assert offset(find_zone("UTC", {})) == timedelta(0)


# The file: what sh and Python read alike

SHELLS = ("dash", "bash", "busybox ash")
AS_SH = """set -eu; LIB=scripts/lib; . scripts/lib/common.sh; load_settings
for key in $KEYS; do eval "[ -z \\"\\${$key:+set}\\" ] || printf '%s=%s\\\\000' $key \\"\\$$key\\""; done"""
HOST_DEFAULTS = {
    "GPUBOARD_GPUS_EVERY": b"20",
    "GPUBOARD_PROCESSES_EVERY": b"20",
    "GPUBOARD_PS_EVERY": b"10",
    "GPUBOARD_LIMIT": b"10",
    "GPUBOARD_NVIDIA": b"auto",
    "GPUBOARD_AMD": b"auto",
}


def as_sh_reads(file: Path, shell: str = "dash", **environment: str) -> dict[str, bytes] | str:
    """What the host scripts take from the file; or their refusal."""
    if not shutil.which(shell.split(maxsplit=1)[0]) and not os.environ.get("CI"):
        pytest.skip(f"{shell} is not here")
    settings = {"PATH": os.environ["PATH"], "GPUBOARD_CONF": str(file), "KEYS": " ".join(HOST_SETTINGS), **environment}
    result = subprocess.run([*shell.split(), "-c", AS_SH], env=settings, cwd=ROOT, capture_output=True, check=False)
    if result.returncode:
        return result.stderr.decode()
    pairs = (pair.partition(b"=") for pair in result.stdout.split(b"\0") if pair)
    return {key.decode(): value for key, _, value in pairs}


def as_python_reads(file: Path) -> dict[str, bytes]:
    """The same for Python; nothing is the default."""
    values = {
        key: setting_value.text
        for key, setting_value in load_conf_file(str(file), {}).values.items()
        if key in HOST_SETTINGS
    }
    return {**HOST_DEFAULTS, **{key: os.fsencode(value) for key, value in values.items() if value}}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "content",
    [
        b"GPUBOARD_DEST=/srv/data\nGPUBOARD_LIMIT=7\nGPUBOARD_PS_EVERY=5\n",
        b"GPUBOARD_DEST=web:/srv/data\r\nGPUBOARD_LIMIT=7\r\n\r\n",
        b"# a comment\n\n   # another\nGPUBOARD_DEST=/no/newline/at/the/end",
        b"GPUBOARD_DEST=/first\nGPUBOARD_DEST=/second\n",
        b"GPUBOARD_LIMIT=\nGPUBOARD_LIMIT=7\n",
        b"GPUBOARD_DEST=\"/in quotes\"\nGPUBOARD_DISK_USE='x'\n",
        b"GPUBOARD_DEST=/a=b#c\\n$HOME`id`$(id) ~ \n",
        b"GPUBOARD_DEST=/x\r\r\n",
        b" GPUBOARD_DEST=/indented\nexport GPUBOARD_DEST=/exported\ngpuboard_dest=/small\n#GPUBOARD_DEST=/off\n",
        b"\xef\xbb\xbfGPUBOARD_DEST=/after a mark\nGPUBOARD_LIMIT=7\n",
        "GPUBOARD_DEST=/dépôt/données\n".encode(),
        "# d\u00e9p\u00f4t\nGPUBOARD_DEST=/d\u00e9p\u00f4t\n".encode("latin-1"),
        b"GPUBOARD_DATA=/python\nGPUBOARD_CONF=/x\nGPUBOARD_PROC=/x\nPATH=/x\nGPUBOARD_SPOOL=/s\nGPUBOARD_SSH_CONFIG=/c\n",
        b"words\n=\n==\nGPUBOARD_DEST\r\n",
        b"",
    ],
)
def test_sh_and_python_read_the_same(content: bytes, shell: str, tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_bytes(content)
    assert as_python_reads(file) == as_sh_reads(file, shell)


@pytest.mark.parametrize("value", ["7", ""])
def test_the_environment_hides_the_file_in_both_even_when_it_is_empty(value: str, tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("GPUBOARD_LIMIT=5\nGPUBOARD_FREE_MIB=5\n")
    assert as_sh_reads(file, GPUBOARD_LIMIT=value) == {**HOST_DEFAULTS, "GPUBOARD_LIMIT": value.encode() or b"10"}
    assert parsed({}, {"GPUBOARD_FREE_MIB": value}, file.read_text()).limits.free_mib == int(value or 1024)


@pytest.mark.parametrize(
    "line", ["GPUBOARD_DEST =/x", "GPUBOARD_DEST= /x", "GPUBOARD_NEW =x", "GPUBOARD_DEST ", "GPUBOARD_LIMIT"]
)
def test_what_sh_refuses_python_refuses(line: str, tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text(f"# ours\n{line}\n")
    assert isinstance(as_sh_reads(file), str)
    with pytest.raises(SettingsError, match=f"^{re.escape(str(file))}, line 2: .*; write GPUBOARD_[A-Z]*=value$"):
        load_conf_file(str(file), {})


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*(set(HOST_SETTINGS) - set(HOST_DEFAULTS)), "# x", "GPUBOARD_DATA", " GPUBOARD_DEST"]),
            st.text("a='\"\\$`#\r\x7fé ;&|*\t", max_size=8).filter(lambda text: not text.startswith((" ", "\t"))),
        ),
        max_size=6,
    )
)
def test_sh_and_python_read_the_same_whatever_is_written(lines: list[tuple[str, str]]) -> None:
    import tempfile  # noqa: PLC0415 # tmp_path is one for all examples

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "my.conf")
        file.write_bytes("\n".join(f"{key}={value}" for key, value in lines).encode())
        assert as_python_reads(file) == as_sh_reads(file)


@given(
    st.one_of(
        st.binary(), st.text().map(lambda text: f"GPUBOARD_DATA={text}\nCONSUL_{text}".encode("utf-8", "replace"))
    )
)
@example(b"GPUBOARD_DATA")
@example(b"GPUBOARD_DATA=\xff\xfe")
@example(b"GPUBOARD_\x1c ")
@example(b"GPUBOARD_ZONE=\xff")
def test_no_content_raises_anything_but_the_one_error(content: bytes) -> None:
    try:
        values, messages = parse_conf_file(content, "gpuboard.conf")
        build_settings(resolve_setting_values({}, {}, values), {})
    except SettingsError as wrong:
        messages = [str(wrong)]
    assert all(sentence.isprintable() for sentence in messages)


@given(st.sampled_from([*SETTINGS]), st.text())
def test_no_value_raises_anything_but_the_one_error(name: str, value: str) -> None:
    environment = {"GPUBOARD_CONSUL_SERVICE": "gpu", name: value}
    try:
        parsed({}, environment)
    except SettingsError as wrong:
        assert str(wrong).isprintable()


# The file: what is told of it


@pytest.mark.parametrize(
    ("file", "warning"),
    [
        (
            "GPUBOARD_DATA=a\nGPUBOARD_DATA=b",
            "line 2: GPUBOARD_DATA stands in line 1 already, and the first one counts",
        ),
        ("GPUBOARD_HELDAFTER=1h", "line 1: there is no setting GPUBOARD_HELDAFTER; is it GPUBOARD_HELD_AFTER?"),
        ("CONSUL_HTTP_ADRR=x:1", "line 1: there is no setting CONSUL_HTTP_ADRR; is it CONSUL_HTTP_ADDR?"),
        ("GPUBOARD_CONF=x", "line 1: GPUBOARD_CONF counts in the environment only, and is left out"),
        ('GPUBOARD_DATA="a"', "line 1: the quotes around GPUBOARD_DATA are part of its value; leave them out"),
        ("GPUBOARD_DEST='a'", "line 1: the quotes around GPUBOARD_DEST are part of its value; leave them out"),
        ("GPUBOARD_DATA=a ", "line 1: the blank at the end of GPUBOARD_DATA is part of its value; leave it out"),
        ("\nexport GPUBOARD_DATA=a", "line 2: it is no KEY=value line of ours, and is left out"),
    ],
)
def test_suspicious_lines_cause_warnings(file: str, warning: str) -> None:
    assert warnings(file) == [f"gpuboard.conf, {warning}"]


def test_settings_of_the_host_side_are_known() -> None:
    assert warnings("".join(f"{name}=5\n" for name in HOST_SETTINGS)) == []


def test_no_warning_repeats_a_value() -> None:
    assert "hush" not in str(
        warnings("CONSUL_HTTP_TOKN=hush\nexport CONSUL_HTTP_TOKEN=hush\nCONSUL_HTTP_TOKEN='hush'\nhush")
    )


def test_a_file_that_is_something_else_costs_neither_time_nor_a_screenful() -> None:
    with within(1):
        assert len(warnings("".join(f"GPUBOARD_DATA{number}=x\n" for number in range(3000)))) == MAX_WARNINGS
        assert len(warnings(f"GPUBOARD_{'DATA' * 16000}=x")[0]) < 400


def test_token_that_everybody_can_read_causes_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("CONSUL_HTTP_TOKEN=hush\n")
    file.chmod(0o644)
    assert load_conf_file(str(file), {}).warnings == (
        f"{file} has a token or a password in it, and everybody here can read it: chmod o-r",
    )
    file.chmod(0o640)
    assert load_conf_file(str(file), {}).warnings == ()
    file.write_text("CONSUL_HTTP_TOKEN=\n")
    file.chmod(0o644)
    assert load_conf_file(str(file), {}).warnings == ()


# The file: where it is looked for


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / folder / "gpuboard.conf" for folder in ("here", "home/.config/gpuboard", "etc/gpuboard")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("")
    return paths


def test_the_first_file_that_is_there_counts(places: list[Path]) -> None:
    for path in places:
        assert load_conf_file(None, {}, places) == ConfFile(path, {})
        path.unlink()
    assert load_conf_file(None, {}, places) == ConfFile(None, {})


def test_a_file_that_is_named_counts_alone(places: list[Path], tmp_path: Path) -> None:
    (tmp_path / "env.conf").write_text("")
    (tmp_path / "flag.conf").write_text("")
    environment = {"GPUBOARD_CONF": str(tmp_path / "env.conf")}
    assert load_conf_file(None, environment, places).path == tmp_path / "env.conf"
    assert load_conf_file(str(tmp_path / "flag.conf"), environment, places).path == tmp_path / "flag.conf"


def test_the_file_of_another_user_in_this_folder_is_left_alone(
    places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home, _ = places
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert load_conf_file(None, {}, places) == ConfFile(home, {}, (f"{here} is another user's, and left alone",))


def test_missing_home_is_looked_up() -> None:
    in_home = Path("~/.config/gpuboard/gpuboard.conf").expanduser()
    assert list_conf_paths({})[1] == list_conf_paths({"HOME": ""})[1] == in_home


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^cannot read the settings file .*/none: No such file or directory$"):
        load_conf_file(str(tmp_path / "none"), {})
    with pytest.raises(SettingsError, match=r"^cannot read the settings file .*: Is a directory$"):
        load_conf_file(None, {"GPUBOARD_CONF": str(tmp_path)})


def test_a_file_that_is_too_large_or_no_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_bytes(b"#" * MAX_CONF_BYTES)
    assert load_conf_file(str(file), {}).values == {}
    file.write_bytes(b"#" * (MAX_CONF_BYTES + 1))
    with pytest.raises(SettingsError, match=r"has more than 64 KB, and is not read$"):
        load_conf_file(str(file), {})
    file.write_bytes(b"GPUBOARD_DATA=a\0b")
    with pytest.raises(SettingsError, match=r"is not a text file$"):
        load_conf_file(str(file), {})


# gpuboard config


def test_config_prints_each_value_and_its_origin(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "my.conf").write_text(
        "# ours\n\nGPUBOARD_DATA=/srv/gpuboard/data\nGPUBOARD_DEST=web:/x\nGPUBOARD_SOON=7200\n"
    )
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "hush")
    result = gpuboard("config", "--conf", "my.conf", "--www", "/srv/www")
    first, *lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr, first) == (0, "", "# my.conf")
    rows = [tuple(re.split("  +", line)) for line in lines]
    assert ("GPUBOARD_DATA", "/srv/gpuboard/data", "my.conf, line 3") in rows
    assert ("GPUBOARD_WWW", "/srv/www", "--www") in rows
    assert ("GPUBOARD_SOON", "2h", "my.conf, line 5") in rows
    assert ("GPUBOARD_HELD_AFTER", "2h", "default") in rows
    assert ("CONSUL_HTTP_TOKEN", "•••", "environment") in rows
    assert rows[-2:] == [("# on the GPU hosts (docs/hosts.md)",), ("GPUBOARD_DEST", "web:/x", "my.conf, line 4")]
    assert "hush" not in result.stdout


def test_config_fits_80_columns_and_a_long_value_costs_only_its_own_line(alone: Path) -> None:
    (alone / "my.conf").write_text(f"GPUBOARD_DATA=/{'long/' * 20}\nGPUBOARD_CONSUL_DATACENTER=amsterdam-1\n")
    lines = gpuboard("config", "--conf", "my.conf").stdout.splitlines()
    assert [line.split()[0] for line in lines if len(line) > 80] == ["GPUBOARD_DATA"]
    assert len({line.index("default") for line in lines if line.endswith("default")}) == 1


def test_config_as_json(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone / "my.conf").write_text("CONSUL_HTTP_TOKEN=hush\nGPUBOARD_LIMIT=7\n")
    (alone / "my.conf").chmod(0o600)
    monkeypatch.setenv("GPUBOARD_CONF", str(alone / "my.conf"))
    rows = {row["name"]: row for row in json.loads(gpuboard("config", "--json").stdout)}
    assert set(rows) == {*SETTINGS, "GPUBOARD_LIMIT"}
    token = {"name": "CONSUL_HTTP_TOKEN", "value": "•••", "from": f"{alone}/my.conf, line 1"}
    assert rows["CONSUL_HTTP_TOKEN"] == token
    assert rows["GPUBOARD_CONSUL_SERVICE"] == {"name": "GPUBOARD_CONSUL_SERVICE", "value": None, "from": "default"}


@pytest.mark.usefixtures("alone")
def test_config_without_a_file_says_so_and_warnings_stay_out_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("gpuboard.conf").write_text("GPUBOARD_DAAT=x\n")
    monkeypatch.delenv("GPUBOARD_CONF")
    result = gpuboard("config")
    assert result.stdout.startswith(f"# {Path.cwd()}/gpuboard.conf\n")
    assert result.stderr.startswith("gpuboard: ")
    assert result.stderr.count("\n") == 1
    Path("gpuboard.conf").unlink()
    if not Path("/etc/gpuboard/gpuboard.conf").exists():
        assert gpuboard("config").stdout.startswith("# no gpuboard.conf here, ")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("words", [["--conf", "none"], ["--data", "www"], ["--state", "www/state"], ["--data", ""]])
def test_wrong_settings_are_one_sentence_and_exit_2(words: list[str]) -> None:
    result = gpuboard("config", *words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("gpuboard: ")


def test_config_prints_on_a_terminal_that_has_no_dots_and_on_odd_bytes(alone: Path) -> None:
    (alone / "gpuboard.conf").write_bytes(b"GPUBOARD_DATA=/d\xe9p\xf4t\n")
    environment = {**os.environ, "GPUBOARD_CONF": "gpuboard.conf", "CONSUL_HTTP_TOKEN": "hush"}
    command = [sys.executable, "-m", "site_builder", "config"]
    result = subprocess.run(
        command,
        env={**environment, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"^CONSUL_HTTP_TOKEN +\?\?\? +environment$", result.stdout, re.MULTILINE)
    assert re.search(r"^GPUBOARD_DATA +/d\?p\?t +gpuboard.conf, line 1$", result.stdout, re.MULTILINE)


@pytest.mark.usefixtures("alone")
def test_a_command_gets_the_settings_beside_its_own_options() -> None:
    @click.command()
    @click.argument("host")
    @with_settings
    @click.option("--twice", is_flag=True)
    def forget(settings: Settings, host: str, twice: bool) -> None:
        """Forget a host."""
        click.echo(f"{host} {settings.data} {twice}")

    assert gpuboard("--data", "x", "atlas", "--twice", command=forget) == Result("atlas x True\n", "", 0)
    assert gpuboard("--data", "www", "atlas", command=forget).exit_code == 2


def test_help_imports_nothing_slow() -> None:
    slow = [
        "paramiko",
        "consul",
        "jinja2",
        "dateutil",
        "zoneinfo",
        "sqlite3",
        "rich",
        "difflib",
        "site_builder.config.settings",
    ]
    code = "import sys; from site_builder.cli import main; main(['--help'], standalone_mode=False);"
    code += f"print([name for name in {slow} if name in sys.modules])"
    assert python(code).splitlines()[-1] == "[]"


def test_every_command_has_its_line_in_the_help() -> None:
    listed = gpuboard("--help").stdout.partition("For everybody:\n")[2].splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  ")] == list(COMMANDS)


def test_settings_cost_less_than_5_ms(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_bytes(EXAMPLE.read_bytes().replace(b"\n#GPUBOARD_", b"\nGPUBOARD_"))

    def load() -> None:
        setting_values = resolve_setting_values({}, {}, load_conf_file(str(file), {}).values)
        build_settings(setting_values, {})

    check(took(load, rounds=5), 0.005)


# Docs that cannot drift (GPUBOARD_UPDATE_GOLDEN=1 writes them anew)


def test_host_settings_are_those_of_the_scripts() -> None:
    reader = (ROOT / "scripts/lib/settings.sh").read_text().partition("\nread_conf_file()")[2].partition("\n}\n")[0]
    cases = re.findall(r"^ +(GPUBOARD_[A-Z_ |]+)\) ;;$", reader, re.MULTILINE)
    assert set(" ".join(cases).replace("|", " ").split()) == set(HOST_SETTINGS)
    of_both = re.findall(r"^ +(CONSUL_[A-Z_ |]+)\) ;;", reader, re.MULTILINE)
    names = set(" ".join(of_both).replace("|", " ").split())
    assert names == {name for name in SETTINGS if name.startswith("CONSUL_")} | {"GPUBOARD_CONSUL_SERVICE"}


def kept(path: Path, part: str, start: str) -> None:
    """The part of a file from the line `start` up to an empty line is this."""
    text = path.read_text()
    before, separator, after = text.partition(start)
    assert separator
    if os.environ.get("GPUBOARD_UPDATE_GOLDEN"):
        text = before + part + "\n" + after[after.index("\n\n") + 1 :]
        path.write_text(text)
    assert f"{part}\n" in text


def test_the_docs_have_every_setting_with_its_default() -> None:
    lines = ["| setting | default | what it is | what it prevents |", "| --- | --- | --- | --- |"]
    for setting_name, setting in SETTINGS.items():
        default = f"`{setting.default}`" if setting.default else "none"
        name = f"`{setting_name}`" + (f", `{setting.flag}`" if setting.flag else "")
        lines.append(f"| {name} | {default} | {setting.description} | {setting.prevented_failure} |")
    kept(DOCS, "\n".join(lines), lines[0])


def test_the_example_has_every_setting_with_its_default() -> None:
    lines = ["# --- The web host: docs/settings.md ---"]
    for name, setting in SETTINGS.items():
        lines += [f"# {setting.description[0].upper()}{setting.description[1:]}.", f"#{name}={setting.default}"]
    kept(EXAMPLE, "\n".join(lines), lines[0])
    assert set(re.findall(r"^#([A-Z_]+)=", EXAMPLE.read_text(), re.MULTILINE)) == {*SETTINGS, *HOST_SETTINGS}


def test_the_example_can_be_used_as_it_is_and_with_every_line_on(tmp_path: Path) -> None:
    assert load_conf_file(str(EXAMPLE), {}) == ConfFile(EXAMPLE, {})
    file = tmp_path / "my.conf"
    file.write_text(re.sub(r"^#([A-Z_]+=)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    loaded = load_conf_file(str(file), {})
    assert (len(loaded.values), loaded.warnings) == (len(SETTINGS) + len(HOST_SETTINGS), ())
    environment = {"TZ": "Europe/Paris"}
    assert parsed(environment=environment, file=file.read_text()) == parsed(environment=environment)
    assert as_sh_reads(file) == as_sh_reads(EXAMPLE)


def test_every_name_in_the_code_is_documented() -> None:
    names = re.compile(r"\b(?:GPUBOARD|CONSUL)(?:_[A-Z]+)+\b")
    used: set[str] = set()
    for module in (ROOT / "site_builder").rglob("*.py"):
        used |= set(names.findall(module.read_text()))
    documented = set(names.findall(DOCS.read_text())) | set(names.findall((ROOT / "docs/hosts.md").read_text()))
    assert used - documented == set()


def test_misspelt_variable_causes_a_warning(tmp_path: Path) -> None:
    environment = {"GPUBOARD_SHOW_COMANDS": "none", "GPUBOARD_TEST_SHELL": "dash", "GPUBOARD_CONF": ""}
    (warning,) = load_conf_file(None, environment, [tmp_path / "gpuboard.conf"]).warnings
    assert warning == "the environment has GPUBOARD_SHOW_COMANDS, which is no setting; is it GPUBOARD_SHOW_COMMANDS?"
