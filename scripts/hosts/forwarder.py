"""Moves frames between two TAP devices after a delay, and loses some of them.

For kernels without the `netem` queue. Run in the network namespace of both devices:
`python forwarder.py DEVICE DEVICE DELAY_SECONDS LOSS`. It prints a line when both devices exist.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_LONGEST_FRAME = 65536
_LONGEST_QUEUE = 10_000
"""Frames under way in one direction; a link drops what is more, as a router does."""


def open_tap(name: str) -> int:
    """Makes a TAP device; it lives as long as the descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


def forward(one: int, other: int, delay: float, loss: float) -> None:
    """Moves frames both ways until its standard input is closed.

    Args:
        one: A TAP device.
        other: The device at the other end.
        delay: Seconds in each direction.
        loss: The part of the frames that is lost in each direction, from 0 to 1.
    """
    source = random.Random(1)
    queues: dict[int, deque[tuple[float, bytes]]] = {one: deque(), other: deque()}
    targets = {one: other, other: one}
    selector = selectors.DefaultSelector()
    for descriptor in (*targets, sys.stdin.fileno()):
        selector.register(descriptor, selectors.EVENT_READ)
    while True:
        next_due = min((queue[0][0] for queue in queues.values() if queue), default=None)
        timeout = None if next_due is None else max(0.0, next_due - time.monotonic())
        for key, _ in selector.select(timeout):
            if key.fd not in targets:  # Who has started it has ended.
                return
            for frame in _frames(key.fd):
                queue = queues[targets[key.fd]]
                if source.random() >= loss and len(queue) < _LONGEST_QUEUE:
                    queue.append((time.monotonic() + delay, frame))
        now = time.monotonic()
        for target, queue in queues.items():
            while queue and queue[0][0] <= now:
                _write(target, queue.popleft()[1])


def _frames(device: int) -> list[bytes]:
    frames = []
    while len(frames) < 64:
        try:
            frames.append(os.read(device, _LONGEST_FRAME))
        except BlockingIOError:
            break
    return frames


def _write(device: int, frame: bytes) -> None:
    try:
        os.write(device, frame)
    except OSError:  # The device is down, or its queue is full: the frame is lost.
        return


if __name__ == "__main__":
    devices = [open_tap(name) for name in sys.argv[1:3]]
    print("ready", flush=True)
    try:
        forward(*devices, delay=float(sys.argv[3]), loss=float(sys.argv[4]))
    except OSError:  # A host has ended, and its device with it.
        sys.exit(0)
