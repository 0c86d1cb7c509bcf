"""What each mechanism of `adaptive` gains: each switched off alone, on the same seeds as the whole.

    python -m benchmarks.ablation [--ranks 4,64] [--seeds 20] [--curves FILE.csv] [--json FILE]

A cell is the mean over the seeds of a paired difference: throughput over the oracle's of the whole,
minus that without the mechanism, with a 95 % interval. `=`: no decision changed; bold: a gain of at
least 0.005 beyond the interval, of 5 seeds or more; `!`: a loss of as much. A mechanism without a
bold cell is not defended.

With --json FILE results are kept there and not found again: a run that was ended goes on, and more
seeds, classes or ranks are added. --seeds 0 shows the file's table alone.

The seeds 11 to 13 and 51 to 53 were used to choose constants, and are refused.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path

from benchmarks.ablation.cases import HALF_AS_LONG, Cases
from benchmarks.ablation.mechanisms import MECHANISMS
from benchmarks.ablation.runs import WHOLE, Key, Result, Results, Task
from benchmarks.ablation.table import Difference, markdown, verdicts
from hvd_dbs.cli.simulate.workers import workers

FIRST_SEED, SEEDS, STEPS = 201, 20, 800
SPENT_SEEDS = (11, 12, 13, 51, 52, 53)


def run_all(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Key, dict[str, Result]]]:
    """Results as they come."""
    if jobs == 1:
        yield from ((task.key, task.run()) for task in tasks)
        return
    with workers(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from zip((task.key for task in tasks), pool.map(Task.run, tasks), strict=True)


def report(
    results: Results, columns: Sequence[tuple[str, int]], mechanisms: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Lines of a table for each number of ranks, and mechanisms that changed no decision."""
    lines, everywhere = [], {name: list[Difference]() for name in mechanisms}
    seeds = sorted({seed for _, _, seed in results.found})
    for ranks in dict.fromkeys(ranks for _, ranks in columns):
        whole = {name: results.whole(name, of, seeds) for name, of in columns if of == ranks}
        names = [name for name, values in whole.items() if values]
        if not names:
            continue
        rows = {
            mechanism: {
                name: difference
                for name in names
                if (difference := results.difference(mechanism, name, ranks, seeds)) is not None
            }
            for mechanism in everywhere
        }
        for mechanism, differences in rows.items():
            everywhere[mechanism] += differences.values()
        counts = sorted({len(whole[name]) for name in names})
        title = f"{ranks} ranks" if ranks else "curves, 2 to 16 ranks"
        lines += [f"\n**{title}**, seeds a class: {', '.join(map(str, counts))}\n"]
        lines += markdown(
            names,
            whole,
            {name: row for name, row in rows.items() if row},
            {name: MECHANISMS[name].off for name in rows},
        )
    run = {name: found for name, found in everywhere.items() if found}
    idle = [name for name, found in run.items() if not any(one.changed for one in found)]
    return [*lines, "", *(f"- {line}" for line in verdicts(run))], idle


def arguments() -> argparse.Namespace:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=summary)
    parser.add_argument("--ranks", default="4,64", help="comma-separated, from 4 on")
    parser.add_argument("--classes", help="names separated by ;, default: all")
    parser.add_argument("--mechanisms", help="names separated by ;, default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a run")
    parser.add_argument("--curves", type=Path, help="CSV with device,batch_size,milliseconds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path, help="file that keeps the results")
    parser.add_argument("--table", type=Path, help="file for the table, written as results come")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    cases = Cases(given.steps, given.curves)
    classes = chosen(given.classes, cases.names)
    mechanisms = chosen(given.mechanisms, list(MECHANISMS))
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if spent := sorted(set(seeds) & set(SPENT_SEEDS)):
        sys.exit(f"seeds {spent} were used to choose constants; give another --first-seed.")
    wanted_ranks = [int(ranks) for ranks in given.ranks.split(",")]
    columns = [(name, ranks) for name in classes for ranks in cases.ranks(name, wanted_ranks)]
    columns.sort(key=lambda column: column[1] or inf)
    results = Results(given.json, given.steps)
    tasks = []
    for _, group in itertools.groupby(columns, key=lambda column: column[1]):
        for seed, (name, ranks) in itertools.product(seeds, list(group)):
            missing = results.missing((name, ranks, seed), [WHOLE, *mechanisms])
            if missing:
                tasks.append(Task(cases, (name, ranks, seed), missing))
    half = f"half of it in {', '.join(sorted(HALF_AS_LONG))}"
    print(f"adaptive; {given.steps} steps a run, {half}; seeds {list(seeds)}")
    for key, found in run_all(tasks, given.jobs):
        results.add(key, found)
        print(key, file=sys.stderr, flush=True)
        if given.table:
            given.table.write_text("\n".join(report(results, columns, mechanisms)[0]) + "\n")
    lines, idle = report(results, columns, mechanisms)
    print("\n".join(lines))
    print(f"\na run took {results.seconds_a_run():.2f} s of processor time on average")
    if given.table:
        given.table.write_text("\n".join(lines) + "\n")
    if tasks and idle and len(classes) == len(cases.names):
        sys.exit(f"these changed no decision anywhere; repair their patches: {', '.join(idle)}")


def chosen(given: str | None, known: Sequence[str]) -> list[str]:
    """The names given, or all."""
    names = [name.strip() for name in given.split(";")] if given else list(known)
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {unknown}; expected names among {', '.join(known)}, separated by ;.")
    return names


if __name__ == "__main__":
    main()
