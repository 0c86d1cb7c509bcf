"""One rank of the tests of heterogeneous.sh: burns CPU and reports how much it got done.

`burn_windows.py FOLDER NUM_WINDOWS`: all ranks burn in the same windows of time and write their
number of loops per window to FOLDER/rank-I.json; rank 0 counts windows as steps. With 0 windows it
burns until it is killed.
"""

import json
import os
import sys
import time
from pathlib import Path

WINDOW_SECONDS = 1.2
PAUSE_SECONDS = 0.4

folder, num_windows = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ["OMPI_COMM_WORLD_SIZE"])


def burn(until: float) -> int:
    """Counts loops until a wall-clock time."""
    loops = 0
    while time.time() < until:
        for _ in range(1000):
            pass
        loops += 1
    return loops


def write(path: Path, text: str) -> None:
    """Writes a file at once, as others wait for it."""
    part = path.with_name(f"part-{rank}")
    part.write_text(text)
    part.rename(path)


write(folder / f"ready-{rank}", str(os.getpid()))
if not num_windows:
    burn(time.time() + 300)
while len(list(folder.glob("ready-*"))) < size:
    time.sleep(0.01)
if rank == 0:
    write(folder / "start", repr(time.time() + PAUSE_SECONDS))
while not (folder / "start").exists():
    time.sleep(0.01)

start = float((folder / "start").read_text())
loops = []
for window in range(num_windows):
    time.sleep(max(0.0, start - time.time()))
    loops.append(burn(start + WINDOW_SECONDS))
    start += WINDOW_SECONDS + PAUSE_SECONDS
    if rank == 0:
        Path(os.environ["HVD_DBS_STEP_FILE"]).write_text(str(window + 1))
write(folder / f"rank-{rank}.json", json.dumps(loops))
