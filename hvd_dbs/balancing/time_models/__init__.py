"""Rank-local models of step time; one method a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hvd_dbs.balancing.time_models.ewma import Ewma
from hvd_dbs.balancing.time_models.last_round import LastRound
from hvd_dbs.balancing.time_models.narx import Narx
from hvd_dbs.balancing.time_models.narx_or_last import NarxOrLast
from hvd_dbs.balancing.time_models.overlap_affine import OverlapAffine
from hvd_dbs.balancing.time_models.posterior import Posterior
from hvd_dbs.balancing.time_models.time_model import TimeModel
from hvd_dbs.balancing.time_models.windowed_mean import WindowedMean

TIME_MODELS: Mapping[str, Callable[[], TimeModel]] = MappingProxyType(
    {
        "ewma": Ewma,
        "last_round": LastRound,
        "narx": Narx,
        "narx_or_last": NarxOrLast,
        "overlap_affine": OverlapAffine,
        "posterior": Posterior,
        "windowed_mean": WindowedMean,
    }
)
"""All models by name; the conformance suite runs over each of them."""
