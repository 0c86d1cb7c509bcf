"""Who reads which sample, and when. Pure: NumPy only."""

from hvd_dbs.sampling.epoch_order import EpochOrder
from hvd_dbs.sampling.schedule import PlanSchedule
from hvd_dbs.sampling.windows import Window, num_steps, step_batch_sizes, window

__all__ = ["EpochOrder", "PlanSchedule", "Window", "num_steps", "step_batch_sizes", "window"]
