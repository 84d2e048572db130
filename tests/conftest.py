"""For all tests: one browser, and a machine that is busy with something else is no failure of ours."""

from hypothesis import settings

from tests.browser import browser

__all__ = ["browser"]

settings.register_profile("gpuboard", deadline=None)
settings.load_profile("gpuboard")
