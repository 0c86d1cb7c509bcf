"""`hvd-dbs verify`: whether balanced training learns what one process would, here and now."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hvd_dbs.cli.input_error import InputError
from hvd_dbs.cli.verify.findings import (
    Finding,
    Report,
    sampling_findings,
    training_findings,
)
from hvd_dbs.cli.verify.problem import Step, VerifyProblem
from hvd_dbs.cli.wording import counted
from hvd_dbs.comm.agreement import allgather_json, raise_together
from hvd_dbs.comm.collective import Collective, connect, is_elastic

if TYPE_CHECKING:
    from hvd_dbs.cli.verify.training import Training


@click.command("verify")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31),
    default=0,
    show_default=True,
    help="Of samples, first weights and plans.",
)
@click.option(
    "--model",
    metavar="MODULE:FUNCTION",
    help="Verify a model of yours: the function returns a compiled Keras model and its samples.",
)
@click.option(
    "--steps",
    type=click.IntRange(2, 100_000),
    help="With --model: steps to train.  [default: 12]",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 2**31),
    help="With --model: samples of all ranks in a step.  [default: 16 a rank, at least 32]",
)
@click.pass_context
def command(
    context: click.Context, seed: int, model: str | None, steps: int | None, batch: int | None
) -> None:
    """Checks on your machines that balanced training learns what one process would.

    Start it as you start your jobs: mpirun -np 4 hvd-dbs verify. It trains a small model on all
    ranks, with plans that change at random, and once more in plain Keras on whole global batches
    in one process, and compares. With --model it does so with a model of yours.

    Exit codes, the same on all ranks: 0; 1 if a property FAILED; 2 if nothing could be checked.
    """
    if is_elastic():
        raise InputError(
            "hvd-dbs verify is for jobs whose ranks stay. Start it without --min-np, --max-np and "
            "--host-discovery-script."
        )
    if model is None and (steps or batch):
        raise InputError("--steps and --batch go with --model. Leave them out, or give --model.")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # What matters is found, and said once.
    try:
        import hvd_dbs.keras as hvd
        from hvd_dbs.cli.verify import training as verify_training
    except ImportError as error:
        raise InputError(
            f"hvd-dbs verify trains, which is not possible here: {str(error).rstrip('.')}. "
            f"scripts/setup.sh installs all of TensorFlow, Keras and Horovod."
        ) from error
    hvd.init()
    collective = connect()
    _print(collective, _heading(collective, verify_training.prepare()))
    if model is None:
        problem = VerifyProblem(collective.size, seed)
        # An error in here ends this rank: others wait for it in Horovod, where none is agreed on.
        training, seen = verify_training.train_balanced(problem)
        findings = _findings(collective, problem, training, seen)
        _print(collective, *map(str, findings))
    else:
        findings = _of_model(collective, model, seed, steps or 12, batch)
    if collective.size == 1:
        name = "" if model is None else f" --model {model}"
        text = f"one rank says little; start several: mpirun -np 4 hvd-dbs verify{name}"
        _print(collective, text)
    verify_training.meet()  # A launcher ends all ranks when one of them ends with 1.
    context.exit(0 if all(finding.is_ok for finding in findings) else 1)


def _of_model(
    collective: Collective, name: str, seed: int, steps: int, batch: int | None
) -> list[Finding]:
    """The findings of a model of the user's, printed as they come. Collective."""
    from hvd_dbs.cli.verify.model_check import Request, verify_model

    findings = []
    for found in verify_model(collective, Request(name, seed, steps, batch)):
        _print(collective, str(found))
        if isinstance(found, Finding):
            findings.append(found)
    return findings


def _heading(collective: Collective, device: str) -> str:
    """What the job consists of, in a line. Collective.

    Raises:
        InputError: On all ranks, if one insists on the native library and one lacks it.
    """
    import hvd_dbs.keras as hvd
    from hvd_dbs.ops import native

    try:
        library = native.agreed()
    except (ValueError, RuntimeError) as error:
        raise InputError(str(error)) from error
    rows = allgather_json(collective, [socket.gethostname(), device])
    hosts, devices = {host for host, _ in rows}, [device for _, device in rows]
    parts = [
        f"{counted(collective.size, 'rank')} on {counted(len(hosts), 'host')}",
        *(f"{devices.count(kind)} on {kind}" for kind in sorted(set(devices))),
        f"{'TensorFlow' if library is None else 'native'} operations",
        f"Horovod over {'MPI' if hvd.mpi_enabled() else 'Gloo'}",
    ]
    return ", ".join(parts)


def _findings(
    collective: Collective,
    problem: VerifyProblem,
    training: Training,
    steps: list[tuple[Step, list[int]]],
) -> list[Finding]:
    """All findings from what each rank has trained, the same on all ranks. Collective."""
    from hvd_dbs.cli.verify.training import compare

    seen: defaultdict[Step, list[tuple[int, list[int]]]] = defaultdict(list)
    for rank, row in enumerate(allgather_json(collective, steps)):
        for (epoch, step), numbers in row:
            seen[epoch, step].append((rank, numbers))
    report: dict[str, Any] = {}
    failure: Exception | None = None
    try:
        report = asdict(compare(problem, training, seen))
    except Exception as caught:  # Whatever it is, the other ranks must not wait for this one.
        failure = caught
    raise_together(collective, failure)
    reports = [Report(**row) for row in allgather_json(collective, report)]
    return [*sampling_findings(problem, seen), *training_findings(problem, seen, reports)]


def _print(collective: Collective, *lines: str) -> None:
    if collective.rank == 0:
        click.echo("\n".join(lines))
