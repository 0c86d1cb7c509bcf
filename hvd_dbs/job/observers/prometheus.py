"""Figures of the job for Prometheus: at a port, or in a file of its node exporter.

The text format is a few lines, so no client library is needed. One would add a dependency, and a
registry of the whole process that keeps what it has after the job.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hvd_dbs.job.arguments import whole_number
from hvd_dbs.job.journal_entries import JobEntry, RoundEntry
from hvd_dbs.job.observers.figures import MEANINGS, job_figures, rank_figures
from hvd_dbs.job.observers.observer import Observer
from hvd_dbs.job.scores import RankScores

_LOGGER = logging.getLogger(__name__)

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_SECONDS_OF_REQUEST = 5.0
_POLL_SECONDS = 0.1
"""The end of a training waits for the server at most this long."""


class Prometheus(Observer):
    """Shows the figures of the last round to Prometheus while a training runs.

    Only processes of rank 0's host can ask, unless another address is given: there is no
    password. When `fit` ends the port is closed, and the file is removed. A port that is in use is
    a warning.

    Args:
        port: Answers `http://address:port/metrics`; 0: any free port, see `port`. None: no port.
        address: Where to listen: "0.0.0.0" is open to everybody who can reach the host.
        file: A file for the `textfile` collector of Prometheus's node exporter, whose name ends in
            ".prom". None: no file.

    Attributes:
        port: The one that is open; None: none is.

    Raises:
        TypeError: If the port is no whole number.
        ValueError: If neither a port nor a file is given, or the port is impossible.

    Example:
        >>> Prometheus(port=9464)
        Prometheus(port=9464, address='127.0.0.1')
    """

    def __init__(
        self,
        port: int | None = None,
        address: str = "127.0.0.1",
        file: str | os.PathLike[str] | None = None,
    ) -> None:
        if port is None and file is None:
            raise ValueError(
                "Prometheus was given neither a port nor a file. Give port=9464, or "
                "file='/var/lib/node_exporter/hvd_dbs.prom'."
            )
        if port is not None and not 0 <= (port := whole_number("port", port)) < 2**16:
            raise ValueError(f"port={port} is no port. Give a number from 0 to 65535.")
        self._wanted_port, self._address = port, address
        self._file = None if file is None else Path(file).absolute()
        self._server: _Server | None = None
        self._job: JobEntry | None = None
        self._num_rounds = self._num_steps = self._num_changes = self._num_falls = 0

    @property
    def port(self) -> int | None:
        """The port that is open; None: none is."""
        return None if self._server is None else self._server.server_address[1]

    def on_begin(self, job: JobEntry) -> None:
        """Opens the port."""
        self._job = job
        atexit.register(self.on_end)  # Where training ends by an exception nobody calls it.
        if self._wanted_port is None or self._server is not None:
            return
        try:
            self._server = _Server(self._address, self._wanted_port)
        except OSError as error:
            _LOGGER.warning(
                "Prometheus cannot ask for metrics at %s:%d: %s. Give Prometheus another port.",
                self._address,
                self._wanted_port,
                error.strerror,
            )
            return
        _LOGGER.info("metrics for Prometheus: http://%s:%d/metrics", self._address, self.port)

    def on_round(self, entry: RoundEntry, scores: RankScores) -> None:
        """Shows other figures."""
        if self._job is None:
            return
        self._num_rounds += 1
        self._num_steps += entry.num_steps
        self._num_changes += entry.changed
        self._num_falls += sum(event.is_slow for event in entry.events)
        text = "\n".join([*_gauges(self._job, entry, scores), *self._counters(), ""])
        if self._server is not None:
            self._server.text = text
        if self._file is not None:
            # The exporter must never read a part of it.
            part = self._file.with_name(f"{self._file.name}.part")
            part.write_text(text)
            part.replace(self._file)

    def on_end(self) -> None:
        """Closes the port, and removes the file, whose figures would be shown for good."""
        atexit.unregister(self.on_end)
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        if self._server is not None:
            server, self._server = self._server, None
            server.end()

    def _counters(self) -> Iterator[str]:
        for name, meaning, value in (
            ("rounds", "Rounds of decision.", self._num_rounds),
            ("steps", "Steps of training in these rounds.", self._num_steps),
            ("plan_changes", "Changes of the plan.", self._num_changes),
            ("slow_ranks", "Ranks that fell far below their own best speed.", self._num_falls),
        ):
            yield from _head(f"{name}_total", meaning, "counter")
            yield f"hvd_dbs_{name}_total {value}"

    def __repr__(self) -> str:
        given = [f"port={self._wanted_port}", f"address={self._address!r}"]
        given = given if self._wanted_port is not None else []
        given += [] if self._file is None else [f"file={str(self._file)!r}"]
        return f"Prometheus({', '.join(given)})"


class _Server(ThreadingHTTPServer):
    """Answers with a text, in threads that keep no process alive."""

    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.text = ""
        super().__init__((address, port), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="hvd_dbs metrics", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Closes the port."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = _MOST_SECONDS_OF_REQUEST
    server: _Server

    def do_GET(self) -> None:
        """Answers a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "see /metrics")
            return
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # Who asked has gone.
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Scrapes are no lines of the job's output."""


def _gauges(job: JobEntry, entry: RoundEntry, scores: RankScores) -> Iterator[str]:
    for name, value in job_figures(job, entry).items():
        if math.isfinite(value):
            yield from _head(name, MEANINGS[name], "gauge")
            yield f"hvd_dbs_{name} {float(value)!r}"
    for name, row in rank_figures(entry, scores).items():
        known = [(rank, value) for rank, value in enumerate(row) if math.isfinite(value)]
        if known:
            yield from _head(f"rank_{name}", MEANINGS[name], "gauge")
        for rank, value in known:
            host = _escaped(job.hosts[rank] if job.hosts else "")
            yield f'hvd_dbs_rank_{name}{{rank="{rank}",host="{host}"}} {float(value)!r}'


def _head(name: str, meaning: str, kind: str) -> tuple[str, str]:
    return f"# HELP hvd_dbs_{name} {meaning}", f"# TYPE hvd_dbs_{name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
