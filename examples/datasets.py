"""Real images for the examples: scanned digits, or CIFAR-10's binary files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Images = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images, shape `[N, height, width, channels]` in [0, 1], and labels, shape `[N]`."""

_SCANS = Path(__file__).parent / "digits.npz"
"""E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, doi:10.24432/C50P49, CC BY 4.0: the 1,797 scans of its test set."""

_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_RECORD = 1 + 3 * 32 * 32


def load(directory: str | None) -> tuple[Images, Images]:
    """Training and test images: CIFAR-10 from `directory`, or the digits if it is None."""
    return load_digits() if directory is None else load_cifar10(Path(directory))


def load_scans() -> Images:
    """1,797 scanned handwritten digits, `[1797, 8, 8, 1]`."""
    with np.load(_SCANS) as scans:
        images, labels = scans["images"], scans["labels"]
    return (images / np.float32(16))[..., np.newaxis], labels.astype(np.int64)


def load_digits(num_copies: int = 4, num_test: int = 261, seed: int = 0) -> tuple[Images, Images]:
    """The scanned digits, enlarged from 8x8 to 32x32, to train on and to test with.

    Each training image comes in `num_copies` versions, the later ones moved by a few pixels and
    with a different brightness, so that there is something to train on: 1,536 scans become 6,144
    images. The test images are left as they are.
    """
    images, labels = load_scans()
    images = images.repeat(4, axis=1).repeat(4, axis=2)
    random = np.random.default_rng(seed)
    order = random.permutation(len(images))
    images, labels = images[order], labels[order]
    test, train = (images[:num_test], labels[:num_test]), (images[num_test:], labels[num_test:])
    copies = [train[0]]
    for _ in range(num_copies - 1):
        moved = [np.roll(image, random.integers(-3, 4, size=2), axis=(0, 1)) for image in train[0]]
        brightness = random.uniform(0.7, 1.0, size=(len(moved), 1, 1, 1)).astype(np.float32)
        copies.append(np.stack(moved) * brightness)
    return (np.concatenate(copies), np.tile(train[1], num_copies)), test


def load_cifar10(directory: Path) -> tuple[Images, Images]:
    """CIFAR-10 from its binary version: data_batch_*.bin and test_batch.bin.

    Raises:
        ValueError: If the files are missing or not in that format.
    """
    train_files = sorted(directory.glob("data_batch_*.bin"))
    test_file = directory / "test_batch.bin"
    if not train_files or not test_file.exists():
        raise ValueError(
            f"{directory} has {[file.name for file in sorted(directory.glob('*'))][:8]}; expected "
            f"data_batch_*.bin and test_batch.bin of CIFAR-10's binary version."
        )
    parts = [_read_cifar10(file) for file in train_files]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return (images, labels), _read_cifar10(test_file)


def _read_cifar10(file: Path) -> Images:
    data = np.fromfile(file, dtype=np.uint8)
    if data.size == 0 or data.size % _CIFAR_RECORD:
        raise ValueError(
            f"{file} has {data.size} bytes; expected a multiple of {_CIFAR_RECORD} (one label and "
            f"3x32x32 pixels an image)."
        )
    records = data.reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise ValueError(f"{file} has label {labels.max()}; expected 0 to 9.")
    pixels = records[:, 1:].reshape(-1, *_CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return (pixels / np.float32(255)).astype(np.float32), labels
