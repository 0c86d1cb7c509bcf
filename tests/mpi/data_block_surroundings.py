"""What runs around the Python blocks of the pages on data and evaluation."""

from __future__ import annotations

from tests.mpi.block_surroundings import Around

_RECORDS = """
def parse(records):
    samples = tf.io.parse_example(records, features)
    return tf.one_hot(samples["label"], 8), samples["label"]

def example(label):
    image = tf.io.encode_jpeg(np.zeros((224, 224, 3), "uint8")).numpy()
    values = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()

def write(name, compression=""):
    with tf.io.TFRecordWriter(name, compression) as writer:
        for label in range(40):
            writer.write(example(label % 3))
    return name

features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
"""  # noqa: E501
_READ = """
seen = 0
for epoch in balancer.epochs(dataset, 1):
    for batch in epoch:
        seen += len(tf.nest.flatten(batch)[-1])
assert hvd.allreduce(tf.constant(float(seen)), op=hvd.Sum) == dataset_size
"""

AROUND_DATA = [
    Around("docs/data.md", before=_RECORDS),
    Around(
        "docs/data.md",
        "hvd.data.TFRecords",
        'import os; os.mkdir("data"); write("data/train-0.tfrecord"); dataset_size = 40',
        _READ,
        instead={"/data/": "data/"},
    ),
    Around(
        "docs/data.md",
        "ArrayRecordDataSource",
        """
import pytest
module = pytest.importorskip("array_record.python.array_record_module")
paths, dataset_size = ["one.array_record"], 40
writer = module.ArrayRecordWriter(paths[0], "group_size:1")
for label in range(40):
    writer.write(example(label))
writer.close()
""",
        _READ,
    ),
    Around(
        "docs/data.md",
        '"GZIP"',
        """
files, dataset_size, parse_batch = [write("one.gz", "GZIP")], 40, parse
augment_batch = lambda x, y: (x, y)
""",
        _READ,
        instead={"num_samples=50_000": "num_samples=40"},
    ),
    Around(
        "docs/data.md",
        ".repeat()",
        'files = [write("one.tfrecord")]',
        instead={"steps_per_epoch=500": "steps_per_epoch=3", "shuffle(10_000)": "shuffle(100)"},
    ),
    Around(
        "docs/data.md",
        "cost=lengths",
        """
texts = [[1] * (1 + n % 9) for n in range(600)]
dataset_size = 600
""",
        _READ,
    ),
    Around(
        "docs/evaluation.md",
        "validation_data",
        "val_images, val_labels = images[:90], labels[:90]",
    ),
    Around("docs/evaluation.md", "model.evaluate", "test = images[90:150], labels[90:150]"),
    Around(
        "docs/evaluation.md",
        "model.predict",
        "test_images = images[:90]",
        "np.testing.assert_allclose(everything, model(test_images), rtol=1e-5, atol=1e-6)",
    ),
    Around(
        "docs/evaluation.md",
        "tf.stack",
        "val_images, val_labels = images[:90], labels[:90]",
        """
right = np.argmax(model(val_images), axis=1) == val_labels
assert (seen, correct) == (90, np.count_nonzero(right))
""",
    ),
]
