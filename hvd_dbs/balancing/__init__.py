"""The brain: measurements in, plans out. Needs NumPy only; no clock, file, TensorFlow or MPI."""

from hvd_dbs.balancing import strategies
from hvd_dbs.balancing.apportionment import apportion
from hvd_dbs.balancing.bounds import Bounds
from hvd_dbs.balancing.controller import Controller
from hvd_dbs.balancing.measurement import Measurement
from hvd_dbs.balancing.plan import Decision, Plan
from hvd_dbs.balancing.strategies import Strategy

__all__ = [
    "Bounds",
    "Controller",
    "Decision",
    "Measurement",
    "Plan",
    "Strategy",
    "apportion",
    "strategies",
]
