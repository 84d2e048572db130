"""For the tests of what the builder writes: a lab in every state, which nobody changes."""

from __future__ import annotations

import pytest

from tests.support.board_fixture import Lab
from tests.support.every_state import make_lab


@pytest.fixture(scope="session")
def lab_in_every_state(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("every-state"))
