"""Keras callbacks for Horovod jobs."""

from hvd_dbs.keras.callbacks.best_model import BestModelCheckpoint
from hvd_dbs.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from hvd_dbs.keras.callbacks.dynamic_batch_size import DynamicBatchSizeCallback
from hvd_dbs.keras.callbacks.dynamic_learning_rate import DynamicLearningRateCallback
from hvd_dbs.keras.callbacks.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from hvd_dbs.keras.callbacks.metric_average import MetricAverageCallback
from hvd_dbs.keras.callbacks.progress_watchdog import ProgressWatchdogCallback
from hvd_dbs.keras.callbacks.training_state import TrainingStateCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DynamicBatchSizeCallback",
    "DynamicLearningRateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ProgressWatchdogCallback",
    "TrainingStateCallback",
]
