"""Modelled clusters on a virtual clock, on which the very controller of a job is judged."""

from hvd_dbs.simulator.conditions import Conditions
from hvd_dbs.simulator.figures import Figures, figures_of
from hvd_dbs.simulator.scenario import Scenario
from hvd_dbs.simulator.scenario_file import read_scenario
from hvd_dbs.simulator.simulation import Run, simulate

__all__ = [
    "Conditions",
    "Figures",
    "Run",
    "Scenario",
    "figures_of",
    "read_scenario",
    "simulate",
]
