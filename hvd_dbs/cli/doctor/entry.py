"""`hvd-dbs doctor`: whether hvd_dbs can train here, and how to fix what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvd_dbs.cli.doctor.facts import Facts, look
from hvd_dbs.cli.doctor.finding import Finding
from hvd_dbs.cli.doctor.job_findings import of_job, of_versions
from hvd_dbs.cli.doctor.report import Report
from hvd_dbs.cli.input_error import InputError, input_errors
from hvd_dbs.cli.wording import counted

if TYPE_CHECKING:
    from hvd_dbs.cli.doctor.job import Job


@click.command("doctor")
@click.option(
    "--hosts",
    metavar="HOST[:RANKS],...",
    help="Look at these hosts from this machine, before a job is started on them.",
)
@click.option(
    "--hostfile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The same for the hosts of a file, one a line.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=60.0,
    show_default=True,
    help="Seconds that the ranks of a job wait for each other, or that a host may take.",
)
def command(hosts: str | None, hostfile: Path | None, timeout: float) -> None:
    """Says whether hvd_dbs can train here, and how to fix what is wrong.

    Alone, or started as training is: horovodrun -np 4 hvd-dbs doctor. A problem is what training
    fails by, a warning what makes it worse than it could be.

    With --hosts or --hostfile it looks, before any job, at the hosts of one: names, ssh, Python
    and its packages, Open MPI and network interfaces.

    Exit codes: 0, or 1 if there is a problem, on all ranks; 2 for wrong input.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # What matters is found, and said once.
    if hosts is not None or hostfile is not None:
        raise SystemExit(_look_at_hosts(hosts, hostfile, timeout))
    raise SystemExit(_look_here(look(), timeout))


def _look_at_hosts(text: str | None, file: Path | None, timeout: float) -> int:
    from hvd_dbs.cli.doctor.host_check import Here, look_at_hosts
    from hvd_dbs.cli.doctor.host_findings import of_hosts
    from hvd_dbs.cli.doctor.host_list import parse_hostfile, parse_hosts

    if text is not None and file is not None:
        raise InputError("both --hosts and --hostfile were given. Give one of them.")
    with input_errors():
        if file is not None:
            names = parse_hostfile(file.read_text(errors="replace"), str(file))
        else:
            names = parse_hosts(text or "")
    report, here = Report(""), Here.look()
    report.say(of_hosts(look_at_hosts(names, here, timeout), here))
    hosts = counted(len(names), "host")
    return report.conclude(f"a job can be started on {hosts}", f"a job would fail on {hosts}")


def _look_here(facts: Facts, timeout: float) -> int:
    in_job = bool(facts.launch.kind)
    report = Report(f"{facts.launch.name}: " if facts.launch.name else "")
    if not (in_job and facts.can_connect):
        report.say(of_job([facts]))  # Before Horovod starts: a broken MPI ends the process.
    if not facts.can_connect or facts.launch.num_apart:
        # A launcher ends the ranks that wait for this one.
        return report.conclude()
    if facts.launch.may_abort and "Open MPI" in facts.mpi and facts.launch.rank == 0:
        click.echo(
            "srun starts the ranks by PMI-2, which few builds of Open MPI understand; if this "
            "ends with an error of MPI: srun --mpi=pmix"
        )

    from hvd_dbs.cli.doctor.job import Job, deadline

    def give_up(finding: Finding) -> int:
        report.say([*(of_job([facts]) if in_job else []), finding])
        return report.conclude()

    with deadline(timeout, give_up):
        try:
            job = Job()
        except Exception as error:
            fix = "see above; outside of a job, hvd-dbs doctor says more"
            return give_up(Finding("problem", f"Horovod does not start: {error}", fix))
        return _report_of(job, facts, report)


def _report_of(job: Job, facts: Facts, report: Report) -> int:
    """Says what is found on all ranks; the exit code. Collective."""
    in_job = bool(facts.launch.kind)
    ranks = job.introduce(facts)
    report.start, report.is_silent = "", job.rank > 0
    if len({one.versions.get("hvd_dbs") for one in ranks}) > 1:
        # Other versions may have other facts, which this one cannot read.
        report.say(list(of_versions(ranks)))
    else:
        everybody = job.gather(facts)
        report.say([*(of_job(everybody) if in_job else []), *job.try_out(everybody)])
    code = report.conclude()
    job.introduce(facts)  # A launcher ends all ranks when one has ended with an error.
    return code
