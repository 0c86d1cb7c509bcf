"""`hvd-dbs verify`: its own problem, or a model of yours."""

from hvd_dbs.cli.verify.entry import command

__all__ = ["command"]
