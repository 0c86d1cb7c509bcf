"""Synchronous Horovod training at full speed on unequal machines."""

__version__ = "0.1.0"
