"""What the last line of a rank says of an error."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hvd_dbs.watchdog.crash_report import last_line

IN_A_GRAPH = """Graph execution error:

Detected at node PyFunc defined at (most recent call last):
<stack traces unavailable>
KeyError: 'label'
Traceback (most recent call last):

  File "train.py", line 7, in parse

KeyError: 'label'
with more on it
\t [[{{node PyFunc}}]] [Op:IteratorGetNext] name: """

IN_A_PIPELINE = (
    "{{function_node __wrapped__IteratorGetNext_device_CPU:0}} Error in user-defined function "
    "passed to MapDataset:24 transformation with iterator: Iterator::Root::Prefetch::Zip[2]::Map: "
    "assertion failed: [The stream has 97 samples]\n\t [[{{node Assert}}]]"
)

OF_A_LAYER = (
    "Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 of layer 'dense' is "
    "incompatible\x1b[0m\n\nArguments received by Sequential.call():\n  • training=None"
)

OF_USER_CODE = (
    'in user code:\n\n    File "train.py", line 3, in f  *\n        return label\n\n'
    "    NameError: name 'label' is not defined\n"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (tf.errors.UnknownError(None, None, IN_A_GRAPH), "'label'"),
        (
            tf.errors.InvalidArgumentError(None, None, IN_A_PIPELINE),
            "assertion failed: [The stream has 97 samples]",
        ),
        (ValueError(OF_A_LAYER), "Input 0 of layer 'dense' is incompatible"),
        (NameError(OF_USER_CODE), "name 'label' is not defined"),
        (ValueError("first line\nsecond line"), "first line"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_reason_of_an_error_is_what_was_raised(error, reason):
    assert last_line(error) == reason
