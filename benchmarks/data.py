"""TFRecords read by windows against TensorFlow's own ways, and their index against `cat`.

    scripts/bench.sh data                    records of 1 KB, 10 KB and 100 KB

One process reads what the second of two equal ranks reads in an epoch. All ways take turns, so
that any other load of the machine hits them alike. Files lie in the page cache; bytes are those
that the process got from the system (rchar in /proc/self/io). Processor time is that of all threads
together; other jobs on the machine change it less than the time that passes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.time_budget import TimeBudget, minutes
from hvd_dbs.data import TFRecords
from hvd_dbs.data.index_stage import IndexStage
from hvd_dbs.data.pipeline import make_dataset
from hvd_dbs.data.records import reader as records
from hvd_dbs.ops import native

NUM_FILES = 8
RANK, NUM_RANKS = 1, 2
PLAIN = "TFRecordDataset, all records in sequence"


@dataclass
class Runs:
    """What one way took, run by run."""

    num_samples: int = 0
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    bytes_read: list[int] = field(default_factory=list)


def write_files(folder: Path, record_bytes: int, total_bytes: int) -> list[Path]:
    """Files of random records of about one size; each file a different number of them."""
    random = np.random.default_rng(0)
    pool = random.bytes(4 * record_bytes)
    paths = []
    for i in range(NUM_FILES):
        paths.append(folder / f"{record_bytes}-{i}.tfrecord")
        num_records = total_bytes // record_bytes // NUM_FILES + i
        with tf.io.TFRecordWriter(str(paths[-1])) as writer:
            for start in random.integers(0, 2 * record_bytes, num_records).tolist():
                size = record_bytes + start % 64 - 32
                writer.write(pool[start : start + size])
    return paths


def ways(
    paths: Sequence[Path], num_samples: int, batch_size: int, block_size: int
) -> dict[str, tf.data.Dataset]:
    """Data sets of string batches by name; the first is what others compare with."""
    names = [str(path) for path in paths]

    def plain() -> tf.data.Dataset:
        return tf.data.TFRecordDataset(names)

    def batched(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    def ours(seed: int | None, block_size: int = 1) -> tf.data.Dataset:
        source = TFRecords(names, block_size=block_size)
        stage = IndexStage(
            source.num_samples, seed, RANK, (batch_size,) * NUM_RANKS, source.block_size
        )
        return make_dataset(source, stage)

    half = num_samples // NUM_RANKS
    return {
        PLAIN: batched(plain()),
        "TFRecordDataset, shard": batched(plain().shard(NUM_RANKS, RANK)),
        "TFRecordDataset, skip and take": batched(plain().skip(half * RANK).take(half)),
        "hvd.data.TFRecords, in sequence": ours(None),
        f"hvd.data.TFRecords, blocks of {block_size} shuffled": ours(7, block_size),
        "hvd.data.TFRecords, each record shuffled": ours(7),
    }


def measure(datasets: dict[str, tf.data.Dataset], num_repeats: int) -> dict[str, Runs]:
    """Reads each data set once a repeat, in an order that goes round."""
    runs = {name: Runs() for name in datasets}
    names = list(datasets)

    @contextmanager
    def noted(one: Runs) -> Iterator[None]:
        before, start, used = _bytes_read(), time.perf_counter(), time.process_time()
        yield
        one.seconds.append(time.perf_counter() - start)
        one.processor_seconds.append(time.process_time() - used)
        one.bytes_read.append(_bytes_read() - before)

    for repeat in range(-1, num_repeats):
        for i in range(len(names)):
            name = names[(i + repeat) % len(names)]
            # Not what an epoch costs once: TensorFlow optimizes the pipeline here. Nothing is read.
            iterator = iter(datasets[name])
            with noted(Runs() if repeat < 0 else runs[name]):
                runs[name].num_samples = int(_drain(iterator))
    return runs


@tf.function
def _drain(iterator: tf.data.Iterator) -> tf.Tensor:
    """The number of records that an iterator has left, which has none then."""
    total = tf.constant(0, tf.int64)
    for batch in iterator:
        total += tf.size(batch, tf.int64)
    return total


def measure_scans(paths: Sequence[Path], num_repeats: int) -> dict[str, list[float]]:
    """Seconds to read all files with `cat` and to find their records, in turns."""

    def scan(verify: bool = False) -> None:
        for path in paths:
            records.scan(path, verify)

    def read() -> None:
        with open("/dev/null", "wb") as nowhere:
            subprocess.run(["cat", *map(str, paths)], stdout=nowhere, check=True)

    kinds: dict[str, Callable[[], None]] = {
        "cat to /dev/null": read,
        "index scan": scan,
        "index scan that verifies all data": lambda: scan(verify=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for repeat in range(-1, num_repeats):
        for name, run in kinds.items():
            start = time.perf_counter()
            run()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def table(runs: dict[str, Runs], file_bytes: int, num_samples: int) -> list[str]:
    """A Markdown table of speeds, processor times and bytes, for each sample delivered."""
    lines = [
        "| way | samples/s | quartiles | speed over the first | processor time a sample, us "
        "| over the first | bytes read over the share |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    first = runs[PLAIN]
    for name, one in runs.items():
        scale = first.num_samples / one.num_samples
        low, middle, high = np.percentile(one.num_samples / np.array(one.seconds), [25, 50, 75])
        faster = np.median(np.array(first.seconds) / one.seconds / scale)
        processor = np.median(one.processor_seconds) / one.num_samples * 1e6
        busier = np.median(np.array(one.processor_seconds) / first.processor_seconds) * scale
        share = file_bytes * one.num_samples / num_samples
        lines.append(
            f"| {name} | {middle:,.0f} | {low:,.0f} - {high:,.0f} | {faster:.2f} "
            f"| {processor:.2f} | {busier:.2f} | {np.median(one.bytes_read) / share:.3f} |"
        )
    return lines


def scan_table(seconds: dict[str, list[float]]) -> list[str]:
    """A Markdown table: medians, quartiles, and ratios to `cat`."""
    lines = ["| whole files | median ms | quartiles | of cat's time |", "|---|---:|---:|---:|"]
    first = np.array(next(iter(seconds.values())))
    for name, times in seconds.items():
        low, middle, high = np.percentile(times, [25, 50, 75]) * 1e3
        ratio = np.median(np.array(times) / first)
        lines.append(f"| {name} | {middle:.1f} | {low:.1f} - {high:.1f} | {ratio:.2f} |")
    return lines


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def main() -> None:
    """Measures all record sizes, and removes the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record-kb", nargs="+", type=int, default=[1, 10, 100])
    parser.add_argument("--megabytes", type=int, default=768, help="of records of each size")
    parser.add_argument("--batch-size", type=int, default=128, help="of the rank")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--folder", type=Path, help="where files are made (default: a temporary one)"
    )
    parser.add_argument("--json", type=Path, help="where to add the figures, one line a size")
    parser.add_argument(
        "--minutes", type=minutes, help="print what there is after so many; default: all sizes"
    )
    options = parser.parse_args()
    print(f"native library: {'yes' if native.loaded() else native.reason_for_absence()}")
    for number in TimeBudget(options.minutes, say=print).rounds(1, len(options.record_kb)):
        kilobytes = options.record_kb[number]
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            paths = write_files(Path(folder), kilobytes * 1024, options.megabytes << 20)
            num_samples = TFRecords([str(path) for path in paths]).num_samples
            datasets = ways(paths, num_samples, options.batch_size, options.block_size)
            runs = measure(datasets, options.repeats)
            scans = measure_scans(paths, options.repeats)
            file_bytes = sum(path.stat().st_size for path in paths)
        title = (
            f"Records of {kilobytes} KB: {num_samples} in {NUM_FILES} files, local batches of "
            f"{options.batch_size}, {options.repeats} repeats"
        )
        print("\n".join(["", title, "", *table(runs, file_bytes, num_samples)]))
        print("\n".join(["", *scan_table(scans)]), flush=True)
        if options.json:
            record = {
                "record_kilobytes": kilobytes,
                "num_samples": num_samples,
                "file_bytes": file_bytes,
                "batch_size": options.batch_size,
                "runs": {name: vars(one) for name, one in runs.items()},
                "scan_seconds": scans,
            }
            with options.json.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
