"""`hvd-dbs check-hosts`: what horovodrun will read from a host discovery script."""

from __future__ import annotations

import click

from hvd_dbs.cli.input_error import input_errors
from hvd_dbs.cli.wording import counted
from hvd_dbs.elastic.host_discovery import discover
from hvd_dbs.elastic.ssh_keepalive import FIX, hosts_without_keepalive


@click.command("check-hosts")
@click.argument("script")
@click.option("--slots-per-host", type=click.IntRange(min=1), help="As given to horovodrun.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True
)
def command(script: str, slots_per_host: int | None, timeout: float) -> None:
    """Runs a host discovery SCRIPT once and shows its hosts, or what is wrong with it.

    Run it on the machine that will run horovodrun: it also looks at how ssh is set up there.

    Exit codes: 0, or 2 if horovodrun could not use it.
    """
    with input_errors():
        hosts = discover(script, slots_per_host, timeout)
    for host, slots in hosts.items():
        click.echo(f"{host}: {counted(slots, 'rank')}")
    click.echo(f"{counted(sum(hosts.values()), 'rank')} on {counted(len(hosts), 'host')}")
    if without := hosts_without_keepalive(list(hosts)):
        click.echo(
            f"warning: ssh to {', '.join(without)} has no keepalive, so horovodrun would never"
        )
        click.echo(f"         notice that such a host is cut off. Fix: {FIX}")
