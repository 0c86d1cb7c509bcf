"""`hvd-dbs doctor`: this process, the job that it is part of, or the hosts of a job to come."""

from hvd_dbs.cli.doctor.entry import command

__all__ = ["command"]
