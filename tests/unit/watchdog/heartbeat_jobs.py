"""Jobs whose ranks send heartbeats, and what is found in them."""

from __future__ import annotations

import time
from dataclasses import replace

from hvd_dbs.watchdog.contacts import Contact, Endpoint
from hvd_dbs.watchdog.heartbeat import WAITING, Heartbeat
from hvd_dbs.watchdog.heartbeat_client import HeartbeatClient
from hvd_dbs.watchdog.heartbeat_server import HeartbeatServer
from hvd_dbs.watchdog.limits import Limits
from hvd_dbs.watchdog.packets import KeyPair
from hvd_dbs.watchdog.process_kill import ProcessName
from hvd_dbs.watchdog.stall_detection import StallDetector

KEYS = [KeyPair() for _ in range(3)]

SUM = "the sum of gradients"


class Job:
    """Rank 0's thread and those of others, in this process.

    Ranks are on hosts of their own, except for rank 2, which is a process on rank 1's.
    """

    def __init__(
        self, size=2, abort_seconds=0.5, one_host=False, process_of_2=None, period=0.02, **limits
    ):
        self.ended = []
        self.beats = [Heartbeat(rank, 1, doing=WAITING, operation="sum") for rank in range(size)]
        own = ProcessName.own()
        hosts = [own.host if one_host else "first", own.host, own.host]
        processes = [replace(own, host=host) for host in hosts[:size]]
        if process_of_2 is not None:
            processes[2] = process_of_2
        self.contacts = [
            Contact(process, keys.public, ["127.0.0.1"])
            for process, keys in zip(processes, KEYS, strict=False)
        ]
        self.limits = Limits(period, 10 * period, abort_seconds, **limits)
        detector = StallDetector(processes, self.limits, time.monotonic())
        self.server = HeartbeatServer(
            self.contacts, KEYS[0], detector, lambda: self.beats[0], self.end(0)
        )
        self.clients = []

    def end(self, rank):
        return lambda code: self.ended.append((rank, code))

    def client(self, rank=1, endpoint=None, keys=None):
        endpoint = endpoint or Endpoint.from_json(self.server.endpoint.to_json())
        client = HeartbeatClient(
            rank,
            endpoint,
            self.contacts,
            keys or KEYS[rank],
            self.limits,
            lambda: self.beats[rank],
            self.end(rank),
        )
        self.clients.append(client)
        return client

    def stop(self):
        for thread in [*self.clients, self.server]:
            thread.stop()


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def beat(rank, doing=WAITING, progress=1, **more):
    operation = SUM if doing == WAITING else ""
    return Heartbeat(rank, progress, progress, "epoch 2, step 7", doing, operation, **more)


def actions(findings):
    return [(finding.rank, finding.action) for finding in findings]
