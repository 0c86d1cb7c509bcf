"""The program `hvd-dbs`: finds a subcommand's module when it is asked for, not before."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

import click

import hvd_dbs

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "doctor": "hvd_dbs.cli.doctor",
        "verify": "hvd_dbs.cli.verify",
        "report": "hvd_dbs.cli.report.entry",
        "watch": "hvd_dbs.cli.watch.entry",
        "simulate": "hvd_dbs.cli.simulate.entry",
        "check-hosts": "hvd_dbs.cli.check_hosts",
    }
)
"""Modules by subcommand; each has a `command`. A new one takes a file and an entry."""


class LazyGroup(click.Group):
    """A group whose subcommands are imported one by one, so that none pays for the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are listed."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of this name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(hvd_dbs.__version__, prog_name="hvd-dbs")
def main() -> None:
    """Dynamic batch sizes for Horovod on unequal machines."""


if __name__ == "__main__":
    main()
