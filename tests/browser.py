"""A headless browser for tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
"""The browser; None: there is none."""


class Shown(NamedTuple):
    """What became of a page: its elements as text, and what it wrote to the console."""

    elements: str
    console: list[str]


def show(page: Path, folder: Path, *options: str) -> Shown:
    """Opens a page without a network and lets it draw.

    Args:
        page: HTML file.
        folder: An empty one, for what the browser keeps.
        options: Further ones of the browser.
    """
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--window-size=1100,2000", "--virtual-time-budget=3000", f"--user-data-dir={folder}"),
        *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND", *options),
        *("--dump-dom", page.absolute().as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Shown(done.stdout, console)
