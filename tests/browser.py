"""A headless browser for tests of pages."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.jobs import kill_all_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
"""The browser; None: there is none."""
_SECONDS = 60.0


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
        *_command(folder, "--hide-scrollbars", "--window-size=1100,2000", *options),
        *("--virtual-time-budget=3000", "--enable-logging=stderr"),
        *("--dump-dom", page.absolute().as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Shown(done.stdout, console)


def traced(trace: Path, folder: Path) -> dict[str, Any]:
    """What the viewer at chrome://tracing reads from a trace, without a network.

    Args:
        trace: JSON file.
        folder: An empty one, for what the browser keeps.

    Returns:
        `warnings` of the import; `threads`, from "process: thread" to the titles of its slices;
        `counters`, the names of counters; `instants`, the titles of events without a length.
    """
    script = f"({_OPEN_TRACE})({json.dumps(trace.read_text())})"
    with _devtools(folder) as call:
        target = call("Target.createTarget", {"url": "chrome://tracing"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        session = call("Target.attachToTarget", attach)["sessionId"]
        evaluate = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = call("Runtime.evaluate", evaluate, session)
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return dict(answer["result"]["value"])


_OPEN_TRACE = """async text => {
  const later = () => new Promise(resolve => setTimeout(resolve, 50));
  while (!window.profilingView) await later();
  profilingView.setActiveTrace("run.json", text);
  while (!profilingView.timelineView.model) await later();
  const model = profilingView.timelineView.model;
  const processes = Object.values(model.processes);
  const threads = {};
  for (const process of processes)
    for (const thread of Object.values(process.threads))
      threads[`${process.name}: ${thread.name}`] = thread.sliceGroup.slices.map(one => one.title);
  return {
    warnings: model.importWarnings.map(one => one.message),
    threads,
    counters: processes.flatMap(one => Object.values(one.counters).map(it => it.name)),
    instants: model.instantEvents.map(one => one.title),
  };
}"""


def _command(folder: Path, *options: str) -> list[str]:
    return [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", *options),
        *(f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND"),
    ]


@contextmanager
def _devtools(folder: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """A function that calls a method of a browser's DevTools and returns the result."""
    (to_read, commands), (answers, to_write) = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3 and writes answers to 4.
    script = f'exec "$@" 3<&{to_read} 4>&{to_write} 2>/dev/null'
    browser = subprocess.Popen(
        ["bash", "-c", script, "bash", *_command(folder, "--remote-debugging-pipe")],
        pass_fds=(to_read, to_write),
        start_new_session=True,
    )
    os.close(to_read)
    os.close(to_write)
    limit = threading.Timer(_SECONDS, kill_all_of, [browser])
    limit.start()
    messages, numbers = _messages(answers), itertools.count(1)

    def call(method: str, parameters: Mapping[str, Any], session: str = "") -> dict[str, Any]:
        number = next(numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(commands, json.dumps(message).encode() + b"\0")
        answer = next((one for one in messages if one.get("id") == number), None)
        assert answer is not None, f"the browser ended before it answered {method}"
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    try:
        yield call
    finally:
        limit.cancel()
        kill_all_of(browser)
        os.close(commands)
        os.close(answers)


def _messages(descriptor: int) -> Iterator[dict[str, Any]]:
    rest = b""
    while chunk := os.read(descriptor, 1 << 16):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from map(json.loads, whole)
