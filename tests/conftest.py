"""For all tests: one browser, one Consul, a history in a state folder, and a slow machine is no failure of ours."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timezone
from pathlib import Path
from types import TracebackType

import pytest

from site_builder.history.writer import HistoryWriter
from tests.default_signals import ignore_here_alone
from tests.support import hypothesis_profiles
from tests.support.browser import browser
from tests.support.captures import CAPTURES
from tests.support.consul_server import consul, shared_consul
from tests.support.history_fixtures import folder
from tests.support.unflushed import unflushed_files

__all__ = ["browser", "consul", "shared_consul", "unflushed_files"]

pytest_plugins = ["tests.support.failure_artefacts"]

hypothesis_profiles.load(os.environ.get("HYPOTHESIS_PROFILE", "full"))

TESTS = Path(__file__).parent
# Tests of recorded machines need the recordings, which are not part of the project.
collect_ignore_glob = [] if CAPTURES.is_dir() else ["*_captures.py"]
# What takes longest begins first, so that at the end no core waits for one file.
LONGEST = (
    "integration/test_cron.py",
    "integration/test_docs_run.py",
    "integration/test_install_web.py",
    "integration/test_pythons.py",
    "integration/test_install.py",
    "integration/test_alerts_simulated_week.py",
    "integration/test_demo.py",
    "integration/test_deploy.py",
    "integration/test_three_accounts.py",
    "integration/test_booking_servers.py",
    "integration/test_live_page_odd.py",
    "integration/test_page_search.py",
    "integration/test_thousand_hosts.py",
    "integration/test_board_screens.py",
    "integration/test_first_paint.py",
    "integration/test_ansible.py",
    "integration/test_install_remove.py",
    "integration/test_prometheus_alerts.py",
    "integration/test_consul_kv_cluster.py",
    "integration/test_install_run.py",
    "demo/test_history.py",
    "board/test_consul_mirror.py",
    "config/test_commands.py",
    "client/test_run_command_bookings.py",
    "remote/test_fetch_ssh.py",
    "integration/test_webservers.py",
    "integration/test_chart_pages.py",
)
# Tests in integration/ build whole boards, or start servers and browsers. All but these are slow.
QUICK_INTEGRATION = {
    "test_dependencies.py",
    "test_docs.py",
    "test_pythons.py",
    "test_repository.py",
    "test_state_folder.py",
    "test_systemd.py",
}


def pytest_configure() -> None:
    """Start children as a terminal does, whatever this environment says, and let no child compile our modules again."""
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):  # with the latter, a full disk shows at once
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    if threading.current_thread() is threading.main_thread():  # workers of xdist inherit it
        ignore_here_alone()
    subprocess.Popen.__exit__ = kill_and_leave  # type: ignore[assignment, method-assign]


def kill_and_leave(
    process: subprocess.Popen[bytes],
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
    leave: Callable[..., None] = subprocess.Popen.__exit__,
) -> None:
    """Kill a process whose `with` block failed, or was ran out of time; Popen would wait for ever."""
    if kind:
        process.kill()
    leave(process, kind, error, traceback)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, skip those that need root where we are not, and begin with the longest files."""
    place = {name: number for number, name in enumerate(LONGEST)}
    for item in items:
        if item.path.parent.name == "integration" and item.path.name not in QUICK_INTEGRATION:
            item.add_marker(pytest.mark.slow)
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip("it needs root"))
    items.sort(key=lambda item: place.get(str(item.path.relative_to(TESTS)), len(LONGEST)))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what stays until the end: all tests, and the modules that they import."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """An empty state folder."""
    return folder(tmp_path)


@pytest.fixture
def history(state: Path) -> Iterator[HistoryWriter]:
    """The history in it, by the clock of UTC."""
    made = HistoryWriter(state, timezone.utc)
    yield made
    made.close()
