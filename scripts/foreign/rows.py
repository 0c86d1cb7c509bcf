"""What is run, with what changed: one row a script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mend:
    """A change of text, by regular expression, for what is not Horovod's doing.

    Attributes:
        name: What it mends; shown in the table.
        pattern: What is replaced.
        text: By what.
    """

    name: str
    pattern: str
    text: str


@dataclass(frozen=True)
class Row:
    """A script of the snapshot, and how it is run.

    Attributes:
        path: In the snapshot.
        arguments: Of its command line; of pytest where it holds tests.
        mends: Applied after the import was changed.
        elastic: Whether `horovodrun` starts it as an elastic job.
        others: Files that it needs beside it.
        limit: Seconds after which it counts as hanging.
    """

    path: str
    arguments: tuple[str, ...] = ()
    mends: tuple[Mend, ...] = ()
    elastic: bool = False
    others: tuple[str, ...] = ()
    limit: float = 300.0


# Keras 2's leftovers, which Keras 3 does not have.
_RUN_FUNCTION = Mend("experimental_run_tf_function", r",\s*experimental_run_tf_function=False", "")
_VARIABLES = Mend("opt.variables()", r"\bopt\.variables\(\)", "opt.variables")
_RATE = Mend("optimizer.lr", r"\b(opt|optimizer)\.lr\b", r"\1.learning_rate")
_RATE_ARGUMENT = Mend("lr=", r"\blr=", "learning_rate=")
_LENGTH = Mend("input_length=", r", input_length=10", "")
_RELU = Mend("ThresholdedReLU", r"ThresholdedReLU\(0\.5\)", "ReLU(threshold=0.5)")
_INIT = Mend(
    "Optimizer.__init__", r"super\(\)\.__init__\(name=name,", "super().__init__(0.1, name=name,"
)
_UPDATE = Mend(
    "update_step",
    r"update_step\(self, gradient, variable\)",
    "update_step(self, gradient, variable, _)",
)

_LOSS = Mend(
    "losses by name",
    r"(?:tf\.)?keras\.(?:losses|metrics)\.(mean_squared_error|categorical_accuracy)",
    r'"\1"',
)
_EAGERLY = Mend(
    "_executing_eagerly", r"\bhvd\.(?:util\.)?_executing_eagerly\(", "_executing_eagerly("
)
_FUSED = Mend("fused=", r",\s*fused=(?:False|True)", "")
_REFERENCE = Mend("var.ref()", r"\bvar\.ref\(\)", "id(var)")
# The tests ask the optimizer for gradients, which Keras 3's has no method for; a tape gives them.
_GRADIENTS = (
    Mend(
        "_compute_gradients",
        r"\w+\._compute_gradients\(\s*(?:loss=)?loss, var_list=(\w+)\)",
        r"_gradients_of(loss, \1)",
    ),
    Mend(
        "_compute_gradients",
        r"(?m)^_PRE_TF_2_2_0 = ",
        """def _gradients_of(loss, variables):
    with tf.GradientTape() as tape:
        value = loss()
    return list(zip(tape.gradient(value, variables), variables))

_PRE_TF_2_2_0 = """,
    ),
    Mend("aggregate_gradients=", r",\s*experimental_aggregate_gradients=False", ""),
)
# Horovod's private counter of passes; and Keras 3 counts updates where Keras 2 counted passes.
_COUNTERS = (
    Mend("_agg_helper", r"\n\s*aggregation_counter = .*\n\s*assert aggregation_counter.*", ""),
    Mend("iterations", r"\n\s*assert idx \+ 1 == hvd_optimizer\.iterations\.numpy\(\)", ""),
)

# A minute's training instead of an hour's.
_SHORT = (
    Mend("fewer steps", r"\b(500|100|10000) // hvd\.size\(\)", "12 // hvd.size()"),
    Mend("fewer epochs", r"\bepochs=24\b", "epochs=4"),
    Mend("fewer epochs", r"\bepochs=24-", "epochs=3-"),
)
_SMALL = ("--no-cuda", "--model", "MobileNet", "--batch-size", "2", "--num-iters", "2")
_SMALL += ("--num-batches-per-iter", "1")
_WARM = ("--num-warmup-batches", "1")

_TESTS_ON_VALUES = (
    "rank or size or average_cpu or grouped_allreduce_cpu or mixed_indexed or allgather_cpu"
    " or variable_size or broadcast_cpu or inplace or broadcast_error or eager_mode or graph_mode"
    " or alltoall_cpu or compression or object or join or elastic_state or local_gradient"
    " or reducescatter_cpu or partial or model_parallel or syncbn_cpu"
)

ROWS = (
    Row("examples/tensorflow2/tensorflow2_keras_mnist.py", (), (_RUN_FUNCTION, *_SHORT)),
    Row("examples/tensorflow2/tensorflow2_mnist.py", (), (_VARIABLES, *_SHORT)),
    Row("examples/tensorflow2/tensorflow2_keras_synthetic_benchmark.py", _SMALL, (_RUN_FUNCTION,)),
    Row("examples/tensorflow2/tensorflow2_synthetic_benchmark.py", _SMALL + _WARM, (_VARIABLES,)),
    Row(
        "examples/elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py",
        (),
        (_RUN_FUNCTION, _RATE, *_SHORT),
        elastic=True,
    ),
    Row(
        "examples/elastic/tensorflow2/tensorflow2_mnist_elastic.py",
        (),
        (_RATE, *_SHORT),
        elastic=True,
    ),
    Row(
        "examples/elastic/tensorflow2/tensorflow2_synthetic_benchmark_elastic.py",
        _SMALL + _WARM,
        (_RATE,),
        elastic=True,
    ),
    Row("examples/keras/keras_mnist.py"),
    Row("examples/keras/keras_mnist_advanced.py"),
    Row(
        "test/parallel/test_tensorflow2_keras.py",
        (),
        (
            *(_RUN_FUNCTION, _RATE, _RATE_ARGUMENT, _LENGTH, _RELU, _INIT, _UPDATE, _LOSS),
            *(_REFERENCE, *_GRADIENTS, *_COUNTERS),
        ),
    ),
    Row("test/parallel/test_tensorflow2_keras_process_sets.py", (), (_INIT, _UPDATE)),
    Row(
        "test/parallel/test_tensorflow.py",
        ("-k", f"not gpu and ({_TESTS_ON_VALUES})"),
        (_EAGERLY, _FUSED, _REFERENCE),
        others=("test/parallel/base_test_tensorflow.py", "test/utils/common.py"),
        limit=900.0,
    ),
)

_TF1 = "TensorFlow 1 (tf.ConfigProto, tf.Session), which TensorFlow 2 does not have"

KNOWN = {
    "keras_mnist.py": _TF1,
    "keras_mnist_advanced.py": _TF1,
    "test_tensorflow.py::test_horovod_syncbn_cpu": "Horovod's layer passes on Keras 2's fused=",
    "test_tensorflow2_keras.py::test_legacy_optimizer": "keras.optimizers.legacy is of Keras 2",
    "test_tensorflow2_keras.py::test_partial_distributed_optimizer": (
        "looks at gradients in Keras 2's _compute_gradients, before any weight changes"
    ),
}
"""Scripts, and tests as `file::test`, that cannot pass, and why."""
