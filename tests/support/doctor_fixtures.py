"""Single checks of `gpuboard doctor`, run on a lab."""

from __future__ import annotations

import re

from site_builder.config.settings import load_settings
from site_builder.doctor import model as doctor_model
from site_builder.doctor.commands import CHECKS
from site_builder.doctor.model import CheckResult, DoctorContext
from tests.support.board_fixture import Lab

BY_ID = {check.id: check for check in CHECKS}


def case_of(lab: Lab, **environment: str) -> DoctorContext:
    """As the command makes it of these variables."""
    folders = {"GPUBOARD_DATA": lab.data, "GPUBOARD_WWW": lab.www, "GPUBOARD_STATE": lab.state}
    merged_environment = {**{key: str(folder) for key, folder in folders.items()}, **environment}
    return DoctorContext(
        load_settings("/dev/null", {}, merged_environment), home=lab.data.parent, environment=merged_environment
    )


def look(case: DoctorContext, name: str) -> CheckResult:
    return doctor_model.run_check(BY_ID[name], case)


def told(case: DoctorContext, name: str) -> tuple[str, str]:
    """Status and all words of one check."""
    finding = look(case, name)
    assert bool(finding.advice) == (finding.status in ("warn", "fail"))
    return finding.status, f"{finding.message} -> {finding.advice}"


def assert_finds(case: DoctorContext, name: str, status: str, words: str) -> None:
    finding = told(case, name)
    assert finding[0] == status, finding
    assert re.search(words, finding[1]), finding
