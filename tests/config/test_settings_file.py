"""The settings file: what sh and Python read alike, what is reported of it, and where it is."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_builder.cli import COMMANDS, main
from site_builder.config.schema import (
    ENVIRONMENT_ONLY,
    HOST_SETTINGS,
    SETTINGS,
)
from site_builder.config.settings import (
    MAX_CONF_BYTES,
    MAX_WARNINGS,
    ConfFile,
    Settings,
    SettingsError,
    build_settings,
    list_conf_paths,
    load_conf_file,
    parse_conf_file,
    resolve_setting_values,
)
from site_builder.core.command_options import with_settings
from tests.support.pace import check, took, within
from tests.support.settings_fixtures import EXAMPLE, ROOT, as_sh_reads, parsed, python


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


# The file: what sh and Python read alike


SHELLS = ("dash", "bash", "busybox ash")


HOST_DEFAULTS = {
    "GPUBOARD_GPUS_EVERY": b"20",
    "GPUBOARD_PROCESSES_EVERY": b"20",
    "GPUBOARD_PS_EVERY": b"10",
    "GPUBOARD_LIMIT": b"10",
    "GPUBOARD_NVIDIA": b"auto",
    "GPUBOARD_AMD": b"auto",
}


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
            "line 2: GPUBOARD_DATA is already set in line 1; the first value counts",
        ),
        ("GPUBOARD_HELDAFTER=1h", "line 1: there is no setting GPUBOARD_HELDAFTER; did you mean GPUBOARD_HELD_AFTER?"),
        ("CONSUL_HTTP_ADRR=x:1", "line 1: there is no setting CONSUL_HTTP_ADRR; did you mean CONSUL_HTTP_ADDR?"),
        ("GPUBOARD_CONF=x", "line 1: GPUBOARD_CONF only counts in the environment; this line is ignored"),
        ('GPUBOARD_DATA="a"', "line 1: the quotes around GPUBOARD_DATA are part of its value; remove them"),
        ("GPUBOARD_DEST='a'", "line 1: the quotes around GPUBOARD_DEST are part of its value; remove them"),
        ("GPUBOARD_DATA=a ", "line 1: the space at the end of GPUBOARD_DATA is part of its value; remove it"),
        ("\nexport GPUBOARD_DATA=a", "line 2: not a KEY=value line; it is ignored"),
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
        f"{file} contains a token or password, and every user here can read it: chmod o-r",
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
    assert load_conf_file(None, {}, places) == ConfFile(home, {}, (f"{here} belongs to another user and is ignored",))


def test_missing_home_is_looked_up() -> None:
    in_home = Path("~/.config/gpuboard/gpuboard.conf").expanduser()
    assert list_conf_paths({})[1] == list_conf_paths({"HOME": ""})[1] == in_home


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^the settings file .*/none cannot be read: No such file or directory$"):
        load_conf_file(str(tmp_path / "none"), {})
    with pytest.raises(SettingsError, match=r"^the settings file .* cannot be read: Is a directory$"):
        load_conf_file(None, {"GPUBOARD_CONF": str(tmp_path)})


def test_a_file_that_is_too_large_or_no_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_bytes(b"#" * MAX_CONF_BYTES)
    assert load_conf_file(str(file), {}).values == {}
    file.write_bytes(b"#" * (MAX_CONF_BYTES + 1))
    with pytest.raises(SettingsError, match=r"is larger than 64 KB and is not read$"):
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

    check(took(load), 0.05)
