"""Ranks notice other samples by a few values, and take no rounding for others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_dbs.data.arrays import Arrays

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (200, 9, 9, 3)).astype(np.uint8)
PICTURES[:, :4] //= 16  # Dark ones, where a grey level is a large part.
FEATURES = RNG.normal(size=(200, 12)) * 10.0 ** np.arange(-3, 9)
TEXTS = np.array([str(i) * (i % 7) + "." for i in range(200)])


def changed(data, change):
    return tf.nest.map_structure(change, data)


def is_like(mine, other):
    mine, other = Arrays(mine), Arrays(other)
    assert mine.identity == other.identity
    try:
        mine.fingerprint.require_like(other.fingerprint.values)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "whole",
    [
        PICTURES,
        PICTURES.astype(np.float16) / 255,
        PICTURES.reshape(200, -1),
        FEATURES,
        FEATURES.astype(np.complex64),
        np.arange(200),
        np.arange(200, dtype=np.uint8) % 7,
        RNG.integers(0, 2, (200, 3)).astype(bool),
        TEXTS,
        {"y": (np.zeros(200), np.zeros((200, 0))), "x": TEXTS[:, None]},
    ],
)
def test_shards_and_other_orders_are_other_samples(whole):
    first, second = (changed(whole, lambda array, r=r: array[r::2]) for r in (0, 1))
    assert not is_like(second, first)
    order = np.random.default_rng(1).permutation(200)
    assert not is_like(changed(whole, lambda array: array[order]), whole)
    assert is_like(changed(whole, np.copy), whole)


@pytest.mark.parametrize("num_samples", [1, 2, 15, 16, 17])
def test_few_samples(num_samples):
    x = FEATURES[:num_samples]
    assert is_like(x, x.copy())
    assert not is_like(x, FEATURES[1 : num_samples + 1])


def test_what_machines_and_libraries_make_of_the_same_samples_is_the_same():
    grey_levels = RNG.integers(-2, 3, PICTURES.shape)
    decoded = np.clip(PICTURES.astype(int) + grey_levels, 0, 255).astype(np.uint8)
    assert is_like(decoded, PICTURES)
    assert is_like(decoded.astype("f4") / 255, PICTURES.astype("f4") / 255)
    rounded = tf.cast(tf.constant(FEATURES, tf.float32), tf.bfloat16)
    assert is_like(np.asarray(tf.cast(rounded, tf.float32)), FEATURES.astype("f4"))
    # A feature that is but rounding, such as the last of many principal components.
    noise = [np.append(FEATURES, RNG.normal(size=(200, 1)) * 1e-7, axis=1) for _ in range(2)]
    assert is_like(*noise)
    gaps = np.where(FEATURES > 0, np.nan, np.where(FEATURES < -1e8, -np.inf, FEATURES))
    assert is_like(gaps, gaps.copy())


def test_structure_and_types_are_part_of_the_identity():
    x = np.zeros((3, 2), "f4")
    assert Arrays({"a": x, "b": x}).identity == Arrays({"b": x, "a": x}).identity
    alike = [(x, x[:, 0]), (x, x[:, 0].astype("f8")), (x[:, 0], x), {"a": x, "b": x[:, 0]}, x]
    assert len({Arrays(given).identity for given in alike}) == len(alike)
