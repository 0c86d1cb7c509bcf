"""What follows a job on rank 0: `balancer.observe(...)`."""

from hvd_dbs.job.events import RankEvent
from hvd_dbs.job.observers.observer import Observer
from hvd_dbs.job.observers.prometheus import Prometheus
from hvd_dbs.job.observers.tensorboard import TensorBoard

__all__ = ["Observer", "Prometheus", "RankEvent", "TensorBoard"]
