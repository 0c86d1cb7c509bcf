"""Trains from TFRecord files that rank 0 first makes of the scanned digits.

Each rank reads its windows and nothing else.

    python examples/keras_tfrecord.py
    horovodrun -np 4 python examples/keras_tfrecord.py --files /shared/digits

`--files DIR` keeps the files, in a folder that all hosts see; without it a temporary one is used,
which is enough on one machine.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hvd_dbs.keras as hvd
from hvd_dbs.tensorflow import broadcast_object

sys.path.insert(0, str(Path(__file__).resolve().parent))
import datasets

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def write_files(images: np.ndarray, labels: np.ndarray, folder: Path, num_files: int = 4) -> None:
    """Writes images as PNG with their labels, uncompressed as a file."""
    parts = np.array_split(np.random.default_rng(0).permutation(len(images)), num_files)
    for i, rows in enumerate(parts):
        with tf.io.TFRecordWriter(str(folder / f"train-{i}-of-{num_files}.tfrecord")) as writer:
            for row in rows:
                png = tf.io.encode_png(np.uint8(images[row] * 255)).numpy()
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[labels[row]])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def parse(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A batch of records to a batch of images and labels."""
    samples = tf.io.parse_example(batch, FEATURES)
    # One image at a time, since they could differ in size.
    images = tf.map_fn(
        lambda png: tf.io.decode_png(png, channels=1),
        samples["image"],
        fn_output_signature=tf.TensorSpec([32, 32, 1], tf.uint8),
    )
    return tf.cast(images, tf.float32) / 255.0, samples["label"]


def main() -> None:
    """Trains, and prints the test accuracy on rank 0."""
    parser = argparse.ArgumentParser(description="Digits from TFRecord files.")
    parser.add_argument(
        "--files", type=Path, help="folder for the files (default: a temporary one)"
    )
    parser.add_argument(
        "--strategy", default="adaptive", help="how to balance: dbs, adaptive, even, ..."
    )
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hvd_dbs").setLevel(logging.INFO)

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # One for each rank.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    keras.utils.set_random_seed(1 + hvd.rank())
    with ExitStack() as stack:
        folder = options.files
        if hvd.rank() == 0:
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            (images, labels), test = datasets.load_digits()
            write_files(images, labels, folder)
        # Also a barrier: nobody reads before the files are there.
        folder = broadcast_object(folder, name="folder")
        model = train(folder, options)
        if hvd.rank() == 0:
            loss, accuracy = model.evaluate(*test, verbose=0)
            print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}", flush=True)


def train(folder: Path, options: argparse.Namespace) -> keras.Model:
    """Trains a small convolutional net on the files of a folder."""
    balancer = hvd.Balancer(options.global_batch_size, strategy=options.strategy)
    source = hvd.data.TFRecords(folder / "train-*.tfrecord", parse, block_size=8)
    dataset = balancer.dataset(source, shuffle_seed=7)

    model = keras.Sequential(
        [
            keras.layers.Input((32, 32, 1)),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.02, momentum=0.9), balancer=balancer
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        dataset,
        epochs=options.epochs,
        shuffle=False,  # The order comes from the balancer.
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.DynamicBatchSizeCallback(balancer),
        ],
    )
    return model


if __name__ == "__main__":
    main()
