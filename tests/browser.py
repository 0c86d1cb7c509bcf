"""A headless browser for tests of pages."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.jobs import kill_all_of, python

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
    """What Perfetto shows of a trace, as `vizviewer` serves it, without a network.

    Args:
        trace: JSON file.
        folder: An empty one, for what the browser keeps.

    Returns:
        `title`, of the page; `errors` of the import; `slices`, rows of the names of process, thread
        and slice, and how many there are; `counters`, the names of counters.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = python("-m", "viztracer.viewer", "--server_only", "--port", port, str(trace))
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url)
        with _devtools(folder) as call:
            target = call("Target.createTarget", {"url": url})["targetId"]
            attach = {"targetId": target, "flatten": True}
            session = call("Target.attachToTarget", attach)["sessionId"]
            script = {"expression": _SHOWN, "awaitPromise": True, "returnByValue": True}
            while not (shown := call("Runtime.evaluate", script, session)["result"].get("value")):
                time.sleep(0.2)  # Until the browser's time is up, which is an error of `call`.
            return dict(shown)
    finally:
        kill_all_of(server)


def _wait_for(url: str) -> None:
    end = time.monotonic() + _SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=_SECONDS).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nobody answers at {url}"
            time.sleep(0.1)


_SHOWN = """(async () => {
  const trace = window.app && app.trace;
  if (!trace || !document.title.includes("Perfetto UI")) return null;
  const plain = value => typeof value == "bigint" ? Number(value) : value;
  const rows = async (sql, names) => {
    const found = [], result = await trace.engine.query(sql);
    for (const it = result.iter({}); it.valid(); it.next())
      found.push(names.map(name => plain(it.get(name))));
    return found;
  };
  const errors = "select name, value from stats where severity != 'info' and value > 0";
  const slices = `select process.name as host, thread.name as thread, slice.name as slice,
    count(*) as number from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) join process using (upid) group by 1, 2, 3`;
  return {
    title: document.title,
    errors: await rows(errors, ["name", "value"]),
    slices: await rows(slices, ["host", "thread", "slice", "number"]),
    counters: (await rows("select distinct name from counter_track", ["name"])).flat(),
  };
})()"""


def _command(folder: Path, *options: str) -> list[str]:
    return [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", *options),
        *(f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
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
