"""Settings: one file for sh and Python, a flag over all else, and one sentence for whatever is wrong."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import NoReturn
from zoneinfo import ZoneInfoNotFoundError

import pytest
from dateutil import tz
from hypothesis import given
from hypothesis import strategies as st

from site_builder.config.schema import (
    SETTINGS,
    Setting,
    format_duration_setting,
    parse_seconds_setting,
)
from site_builder.config.settings import (
    SettingsError,
    SettingValue,
    resolve_setting_values,
)
from site_builder.core import clock
from site_builder.core.clock import find_zone
from site_builder.core.model import ConsulAccess, PrivacySettings, StateLimits
from tests.support.settings_fixtures import parsed, python

WINTER = datetime(2026, 1, 15, 12)


def refusal(file: str = "", **environment: str) -> str:
    with pytest.raises(SettingsError) as wrong:
        parsed({}, environment, file)
    return str(wrong.value)


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
        ("GPUBOARD_DATA=~/data", "but must be a folder without ~ or $, which are not expanded"),
        ("GPUBOARD_DATA=$HOME/data", "but must be a folder without ~ or $, which are not expanded"),
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
    assert words.endswith("are the same folder: set two different ones")


@pytest.mark.parametrize(("name", "why"), [("STATE", "it holds tokens"), ("DATA", "it names people and what they run")])
def test_folders_inside_www_are_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "www")
    for folder in ("www/x", "www/a/../b/c", "link/x"):
        words = refusal(f"GPUBOARD_WWW={tmp_path}/www\nGPUBOARD_{name}={tmp_path}/{folder}")
        assert words.endswith(
            f"is inside GPUBOARD_WWW={tmp_path}/www (gpuboard.conf, line 1) and would be served: {why}"
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
    assert words.endswith("but must be host:port, http://host:port or https://host:port")


def test_a_certificate_needs_its_key() -> None:
    words = refusal("GPUBOARD_CONSUL_SERVICE=gpu\nCONSUL_CLIENT_CERT=/c")
    assert (
        words
        == "CONSUL_CLIENT_CERT=/c (gpuboard.conf, line 2) has no effect without CONSUL_CLIENT_KEY: set both, or neither"
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
    assert words == f"GPUBOARD_ZONE is '{name}' (environment), but must be a time zone such as Europe/Paris"


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
