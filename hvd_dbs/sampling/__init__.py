"""Who reads which sample, and when. Pure: NumPy only."""

from hvd_dbs.sampling.costs import SampleCosts, cut_by_cost
from hvd_dbs.sampling.cursor import Cursor, Interval, merge_intervals
from hvd_dbs.sampling.epoch_order import EpochOrder
from hvd_dbs.sampling.epoch_part import EpochPart
from hvd_dbs.sampling.layouts import LAYOUTS, Layout
from hvd_dbs.sampling.read_ahead import ReadAhead
from hvd_dbs.sampling.readers import CostReader, CountReader, RankStep, Reader
from hvd_dbs.sampling.schedule import PlanSchedule
from hvd_dbs.sampling.shards import Shard, num_evaluation_steps, shard
from hvd_dbs.sampling.windows import Window, num_steps, step_batch_sizes, window

__all__ = [
    "LAYOUTS",
    "CostReader",
    "CountReader",
    "Cursor",
    "EpochOrder",
    "EpochPart",
    "Interval",
    "Layout",
    "PlanSchedule",
    "RankStep",
    "ReadAhead",
    "Reader",
    "SampleCosts",
    "Shard",
    "Window",
    "cut_by_cost",
    "merge_intervals",
    "num_evaluation_steps",
    "num_steps",
    "shard",
    "step_batch_sizes",
    "window",
]
