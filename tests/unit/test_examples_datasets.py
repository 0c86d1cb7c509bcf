"""The examples' data: digits, and CIFAR-10's real format in a small file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "datasets.py"
SPEC = importlib.util.spec_from_file_location("examples_datasets", FILE)
datasets = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(datasets)


def write_cifar10(path: Path, num_images: int, seed: int) -> np.ndarray:
    records = np.random.default_rng(seed).integers(0, 256, (num_images, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    records.tofile(path)
    return records


def test_cifar10_files_are_read(tmp_path):
    first = write_cifar10(tmp_path / "data_batch_1.bin", 3, seed=1)
    second = write_cifar10(tmp_path / "data_batch_2.bin", 2, seed=2)
    test = write_cifar10(tmp_path / "test_batch.bin", 4, seed=3)
    (images, labels), (test_images, test_labels) = datasets.load(str(tmp_path))
    assert images.shape == (5, 32, 32, 3)
    assert test_images.shape == (4, 32, 32, 3)
    assert images.dtype == np.float32
    np.testing.assert_array_equal(labels, [*first[:, 0], *second[:, 0]])
    np.testing.assert_array_equal(test_labels, test[:, 0])
    # Red, green and blue planes of 32 rows each, after the label.
    pixel = second[1, 1 + 2 * 1024 + 5 * 32 + 7]
    assert images[4, 5, 7, 2] == np.float32(pixel) / np.float32(255)


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "0 bytes"), (b"x" * 3072, "3072 bytes"), (bytes([10]) + b"x" * 3072, "label 10")],
)
def test_other_files_are_an_error(tmp_path, content, text):
    write_cifar10(tmp_path / "test_batch.bin", 1, seed=1)
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(ValueError, match=text):
        datasets.load(str(tmp_path))


def test_a_folder_without_the_files_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"expected data_batch_\*\.bin"):
        datasets.load(str(tmp_path))


def test_digits_are_enlarged_and_split():
    (images, labels), (test_images, test_labels) = datasets.load(None)
    assert images.shape == (4 * (1797 - 261), 32, 32, 1)
    assert test_images.shape == (261, 32, 32, 1)
    assert set(labels) == set(test_labels) == set(range(10))
    assert 0 <= images.min() < images.max() <= 1
    again, _ = datasets.load(None)
    np.testing.assert_array_equal(again[0], images)  # All ranks make the same images.


def test_scans_are_those_of_the_published_test_set():
    images, labels = datasets.load_scans()
    assert images.shape == (1797, 8, 8, 1)
    assert set(np.unique(images * 16)) == set(range(17))
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    np.testing.assert_array_equal(np.bincount(labels), published)
