"""What all ranks have to know of each other, or to have alike, before they go on.

Every function here is collective: all ranks call it, in the same order and from one thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_dbs.comm.collective import Collective
from hvd_dbs.rank_names import name_ranks


def allgather_text(collective: Collective, text: str) -> list[str]:
    """A text of every rank, by rank; for set-up and errors, not for every round."""
    data = np.frombuffer(text.encode(errors="backslashreplace"), dtype=np.uint8)
    lengths = collective.allgather(np.array([data.size], dtype=np.int64))[:, 0]
    padded = np.zeros(max(1, int(lengths.max())), dtype=np.uint8)
    padded[: data.size] = data
    rows = collective.allgather(padded)
    return [
        bytes(row[:length]).decode() for row, length in zip(rows, lengths.tolist(), strict=True)
    ]


def allgather_json(collective: Collective, value: Any) -> list[Any]:
    """A value of every rank, as JSON gives it back, by rank; likewise."""
    return [json.loads(text) for text in allgather_text(collective, json.dumps(value))]


def raise_together(collective: Collective, error: Exception | None) -> None:
    """Raises on all ranks what any rank has met, naming the responsible ranks.

    Args:
        collective: The job.
        error: What this rank has met, or None.

    Raises:
        ValueError: With the errors of all ranks; of the type of the lowest such rank's error
            where that is TypeError or RuntimeError.
    """
    named = "" if error is None else f"{type(error).__name__}: {error}"
    texts = allgather_text(collective, named)
    ranks_by_text: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text:
            ranks_by_text.setdefault(text, []).append(rank)
    if not ranks_by_text:
        return
    if list(ranks_by_text.values()) == [list(range(collective.size))] and error is not None:
        raise error
    lines = [f"{name_ranks(ranks)}: {text}" for text, ranks in ranks_by_text.items()]
    kind = next(iter(ranks_by_text)).partition(":")[0]
    kinds: dict[str, type[Exception]] = {"TypeError": TypeError, "RuntimeError": RuntimeError}
    raise kinds.get(kind, ValueError)("\n".join(lines)) from error


@contextmanager
def raising_together(
    collective: Collective, kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Within it, what one rank raises is raised on all ranks, at its end.

    Args:
        collective: The job.
        kinds: Errors that other ranks are told of; those of other kinds end this rank alone.

    Raises:
        ValueError: See `raise_together`.
    """
    error: Exception | None = None
    try:
        yield
    except kinds as caught:
        error = caught
    raise_together(collective, error)


def require_equal(collective: Collective, arguments: dict[str, str]) -> None:
    """Checks that all ranks were given the same arguments.

    Args:
        collective: The job.
        arguments: Each argument's value as text, by name; the same names on all ranks.

    Raises:
        ValueError: On all ranks, with each differing argument's values by rank, or where ranks
            compare different arguments.
    """
    rows = allgather_json(collective, arguments)
    ranks_by_names: dict[str, list[int]] = {}
    for rank, row in enumerate(rows):
        ranks_by_names.setdefault(", ".join(row), []).append(rank)
    if len(ranks_by_names) > 1:
        given = "; ".join(f"{names} on {name_ranks(r)}" for names, r in ranks_by_names.items())
        raise ValueError(
            f"The ranks do not run the same code: they compare different arguments ({given}). "
            f"Install one version of hvd_dbs on all hosts; hvd-dbs doctor shows those that differ."
        )
    lines = []
    for name in arguments:
        ranks_by_value: dict[str, list[int]] = {}
        for rank, row in enumerate(rows):
            ranks_by_value.setdefault(row[name], []).append(rank)
        if len(ranks_by_value) > 1:
            given = "; ".join(
                f"{value or 'none'} on {name_ranks(r)}" for value, r in ranks_by_value.items()
            )
            lines.append(f"{name} differs between ranks: {given}.")
    if lines:
        raise ValueError("\n".join([*lines, "Give every rank the same arguments."]))


def require_alike(
    collective: Collective, values: NDArray[Any], check: Callable[[NDArray[Any]], None]
) -> None:
    """Checks that all ranks have about the same values, where all have as many.

    Args:
        collective: The job.
        values: This rank's, shape `[n]`.
        check: Gets rank 0's values; raises ValueError if this rank's are others.

    Raises:
        ValueError: On all ranks, if one of them has others than rank 0.
    """
    counts = collective.allgather(np.array([values.size], dtype=np.int64))
    if counts.min() != counts.max() or not counts.any():
        return
    with raising_together(collective, ValueError):
        check(collective.broadcast(values))
