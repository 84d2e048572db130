"""Hooks: which programs run, with what environment, and what their exit codes mean."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from site_builder.alerts import hooks
from site_builder.alerts import render as alert_render
from site_builder.alerts.hooks import Hook, HookFolder
from site_builder.alerts.model import Alert, DeliveryOutcome

ROOT = Path(__file__).parents[2]
DATA = b'{"schema": 1, "title": "atlas is down"}\n'
Write = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for hooks; that those above it are open to others, as /tmp is, does not count here."""
    above = {(status.st_dev, status.st_ino) for status in (parent.stat() for parent in tmp_path.parents)}
    real = hooks.find_hook_permission_problem
    monkeypatch.setattr(
        hooks,
        "find_hook_permission_problem",
        lambda status: None if (status.st_dev, status.st_ino) in above else real(status),
    )
    made = tmp_path / "hooks"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def write(folder: Path) -> Write:
    def write(name: str, script: str, mode: int = 0o755) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(mode)
        return path

    return write


def test_a_hook_gets_the_alert_and_nothing_else_of_us(
    folder: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUBOARD_NOTIFY", "slack://secret")
    write("tell", f"cat > {tmp_path}/got; env > {tmp_path}/env; echo done >&2; pwd > {tmp_path}/pwd")
    assert HookFolder(folder).list_runnable_names() == ("tell",)
    assert HookFolder(folder).run_hook("tell", DATA) == DeliveryOutcome("sent")
    assert json.loads((tmp_path / "got").read_text())["title"] == "atlas is down"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "LANG", "PWD", "SHLVL", "_", "OLDPWD"}
    assert (tmp_path / "pwd").read_text().strip() == str(folder.resolve())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", DeliveryOutcome("sent")),
        (
            "echo the modem is busy; exit 75",
            DeliveryOutcome("failed", "the hook asked to be run again later: the modem is busy"),
        ),
        ("exit 75", DeliveryOutcome("failed", "the hook asked to be run again later")),
        (
            "echo first; printf 'cannot reach https://x.org/s3cret\\033[31m\\n'; exit 3",
            DeliveryOutcome("refused", "the hook failed with exit code 3: cannot reach https://…"),
        ),
        ("kill -TERM $$", DeliveryOutcome("unsure", "the hook was killed by signal 15")),
        ("exec 1>&- 2>&-; sleep 0.1; exit 0", DeliveryOutcome("sent")),
        ("head -c 3000000 /dev/zero; exit 0", DeliveryOutcome("sent")),
        (
            "head -c 3000000 /dev/zero | tr '\\000' x; exit 4",
            DeliveryOutcome("refused", f"the hook failed with exit code 4: {'x' * 200}"),
        ),
    ],
)
def test_outcomes_of_exit_codes(folder: Path, write: Write, script: str, expected: DeliveryOutcome) -> None:
    write("one", script)
    assert HookFolder(folder).run_hook("one", DATA) == expected


@pytest.mark.slow
def test_a_hook_that_does_not_end_is_ended_with_all_that_it_started(folder: Path, write: Write, tmp_path: Path) -> None:
    write("slow", f"sleep 300 & echo $! > {tmp_path}/child; yes; wait")
    began = time.monotonic()
    assert HookFolder(folder, timeout_s=0.5).run_hook("slow", DATA).status == "unsure"
    assert time.monotonic() - began < 20
    wait_until_gone(int((tmp_path / "child").read_text()))


def test_processes_that_a_hook_leaves_behind_are_killed(folder: Path, write: Write, tmp_path: Path) -> None:
    write("quick", f"sleep 300 & echo $! > {tmp_path}/child; exit 0")
    began = time.monotonic()
    assert HookFolder(folder).run_hook("quick", DATA) == DeliveryOutcome("sent")
    assert time.monotonic() - began < 20
    wait_until_gone(int((tmp_path / "child").read_text()))


def wait_until_gone(pid: int) -> None:
    """Until a process is no more, or only waits to be counted."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} lives on")


def test_only_hooks_that_nobody_else_can_write_run(folder: Path, write: Write) -> None:
    write("good", "exit 0")
    write("group", "exit 0", 0o775)
    write("others", "exit 0", 0o757)
    write("plain", "exit 0", 0o644)
    write("odd name", "exit 0")
    write("README.md", "notes", 0o644)
    write(".hidden", "exit 0")
    write("good~", "exit 0")
    (folder / "link").symlink_to(folder / "good")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    if os.geteuid() == 0:
        os.chown(write("theirs", "exit 0"), 12345, 12345)
    hook_problems = dict(HookFolder(folder).check_hooks())
    expected = {
        "good": None,
        "group": "can be written by users other than its owner",
        "others": "can be written by users other than its owner",
        "plain": "is not executable: chmod u+x",
        "odd name": "has a name with characters other than A-Z a-z 0-9 . _ -",
        "link": "is a link, and links are not followed",
        "sub": "is not a plain file",
        "pipe": "is not a plain file",
        "theirs": "belongs to another user",
    }
    assert hook_problems == {name: why for name, why in expected.items() if name in hook_problems}
    assert hook_problems.keys() >= expected.keys() - {"theirs"}
    assert HookFolder(folder).list_runnable_names() == ("good",)
    assert HookFolder(folder).run_hook("group", DATA) == DeliveryOutcome(
        "failed", "the hook can be written by users other than its owner"
    )
    assert HookFolder(folder).run_hook("../hooks/good", DATA) == DeliveryOutcome(
        "refused", "this hook no longer exists"
    )
    assert HookFolder(None).run_hook("good", DATA).status == "refused"
    assert HookFolder(None).check_hooks() == []


def test_a_folder_that_others_can_change_runs_nothing(folder: Path, write: Write, tmp_path: Path) -> None:
    write("good", "exit 0")
    inside = "where others can write: nothing in it runs"
    assert HookFolder(folder, (tmp_path / "data", tmp_path)).check_hooks() == [
        Hook("", f"is inside {tmp_path}, {inside}")
    ]
    assert HookFolder(folder, (folder,)).list_runnable_names() == ()
    link = tmp_path / "elsewhere"
    link.symlink_to(folder)
    assert HookFolder(link, (folder,)).list_runnable_names() == (), "a link does not lead around it"
    assert HookFolder(link).run_hook("good", DATA) == DeliveryOutcome("sent"), "the folder itself may be one"
    folder.chmod(0o1777)
    why = "can be written by users other than its owner: nothing in it runs"
    assert HookFolder(folder).check_hooks() == [Hook("", why)]
    assert HookFolder(folder).run_hook("good", DATA) == DeliveryOutcome("failed", f"the hooks folder {why}")
    folder.chmod(0o755)
    tmp_path.chmod(0o770)
    assert HookFolder(folder).check_hooks() == [Hook("", f"{tmp_path}, its parent folder, {why}")]
    assert HookFolder(folder / "good").check_hooks()[0].problem == "is not a folder"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for place in (loop, tmp_path / "none"):
        (hook,) = HookFolder(place).check_hooks()
        assert (hook.name, hook.problem is not None and hook.problem.startswith("cannot be read")) == ("", True)


def test_a_link_that_others_could_turn_elsewhere_is_not_followed(folder: Path, write: Write, tmp_path: Path) -> None:
    write("good", "exit 0")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(folder)
    (tmp_path / "first").symlink_to("shared/../shared/link")
    for link in (shared / "link", tmp_path / "first"):
        shared.chmod(0o755)
        assert HookFolder(link).list_runnable_names() == ("good",)
        shared.chmod(0o775)
        why = f"{shared}, on the path to it, can be written by users other than its owner: nothing in it runs"
        assert HookFolder(link).check_hooks() == [Hook("", why)]
        assert HookFolder(link).run_hook("good", DATA).status == "failed"


def test_a_folder_below_tmp_runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "hooks"
    made.mkdir()
    if not any(checked_folder.stat().st_mode & 0o022 for checked_folder in tmp_path.parents):
        pytest.skip("this machine keeps its temporary files where nobody else can write")
    (checked_folder,) = HookFolder(made).check_hooks()
    assert checked_folder.name == ""
    assert checked_folder.problem
    assert "its parent folder, can be written by users other" in checked_folder.problem


def test_a_hook_that_cannot_be_started_is_tried_again(folder: Path) -> None:
    for name, content, why in (
        ("gone", "#!/no/such/program\n", "the program in its first line does not exist"),
        ("bare", "echo hello\n", "its first line must name its interpreter, such as #!/bin/sh"),
    ):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
        assert HookFolder(folder).run_hook(name, DATA) == DeliveryOutcome(
            "failed", f"the hook cannot be started: {why}"
        )


def test_the_hook_of_the_docs_works(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs/alerts.md").read_text(), re.DOTALL)
    (folder / "log").write_text(script)
    (folder / "log").chmod(0o700)
    monkeypatch.setattr(hooks, "build_hook_environment", lambda: {"PATH": hooks.HOOK_PATH, "HOME": str(tmp_path)})
    data = alert_render.render_alert_json(
        Alert("1", "host-down", "begun", "atlas is down", "", 1, "atlas", people=("alice",))
    )
    assert HookFolder(folder).run_hook("log", data) == DeliveryOutcome("sent")
    assert (tmp_path / "alerts.log").read_text() == "atlas is down alice \n"
