"""Pictures of the board with the simulated lab on it: light, dark, phone and wall screen, or those of the README.

Look at them after each change of the page.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser

from tests.support.browser import chromium, served
from tests.support.command_line import clean_environment


class Picture(NamedTuple):
    """How a picture is taken: with no height it is of the whole page."""

    width: int
    scheme: str
    height: int = 0
    page: str = ""


HOST = "hosts/hydra.html"
ALL = {
    "light": Picture(1440, "light"),
    "dark": Picture(1440, "dark"),
    "phone": Picture(390, "light"),
    "phone-dark": Picture(390, "dark"),
    "wall": Picture(2560, "dark", 1440, "?wall"),
    "free": Picture(1440, "dark", 1300, "?q=state%3Afree&group=model"),
    "host": Picture(1440, "light", page=HOST),
    "host-dark": Picture(1440, "dark", page=HOST),
    "host-phone": Picture(390, "light", page=HOST),
}
README = {"board": Picture(1280, "light", 1000), "board-dark": Picture(1280, "dark", 1000)}


def make_lab(folder: Path) -> Path:
    """The site of the demo, as it is at its start."""
    words = ["demo", "--once", "--folder", str(folder / "lab")]
    subprocess.run([sys.executable, "-m", "site_builder", *words], env=clean_environment(), check=True)
    return folder / "lab/www"


def take(browser: Browser, url: str, path: Path, picture: Picture) -> None:
    """One picture; what is off the screen is not drawn, so for a whole page the screen is as tall as that."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height or 900},
        color_scheme="dark" if picture.scheme == "dark" else "light",
        device_scale_factor=2 if picture.width < 800 else 1,
    )
    page = context.new_page()
    page.goto(url)
    for _ in range(0 if picture.height else 3):  # each part shows its real height only when it is in view
        height = int(page.evaluate("Math.ceil(document.body.getBoundingClientRect().height)"))
        page.set_viewport_size({"width": picture.width, "height": height})
        page.wait_for_timeout(100)
    page.screenshot(path=path)
    context.close()


def take_all(target: Path) -> None:
    """Take them all."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as path:
        www = make_lab(Path(path))
        with served(www, Path(path) / "server") as site, chromium() as browser:
            for name, picture in (README if target.name == "docs" else ALL).items():
                take(browser, site.url + picture.page, target / f"{name}.png", picture)
                print(target / f"{name}.png")
