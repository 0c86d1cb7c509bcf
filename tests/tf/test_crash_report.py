"""What a rank says when an error ends it, and that it ends."""

from __future__ import annotations

import logging
import os
import signal
import sys

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from hvd_dbs.watchdog import crash_report
from tests.jobs import python, run_job

SHUT_DOWN = tf.errors.UnknownError(
    None, None, "\tin a graph\nHorovod has been shut down. This was caused by\n\t [[node]]"
)


@pytest.fixture
def words(monkeypatch):
    """Those of rank 2 of 3, and what was said before them."""
    monkeypatch.setattr(hvd, "size", lambda: 3)
    monkeypatch.setattr(hvd, "rank", lambda: 2)
    before = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: before.append(error[1]))
    monkeypatch.setattr(crash_report.atexit, "register", lambda function: None)
    crash_report.name_failures()
    return sys.excepthook, before


def test_an_error_of_its_own_is_named(words, caplog):
    error = ArithmeticError("on purpose\nand more")
    words[0](ArithmeticError, error, None)
    assert words[1] == [error]
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    message = record.getMessage()
    assert message.startswith("rank 2 of 3 (host ")
    assert message.endswith(f"process {os.getpid()}) has failed: ArithmeticError: on purpose")


def test_an_error_in_the_graph_is_named_as_the_user_wrote_it(words, caplog):
    def look_up(number):
        raise KeyError(f"no picture {number}")

    @tf.function
    def step():
        return tf.numpy_function(look_up, [7], tf.int64)

    with pytest.raises(tf.errors.UnknownError) as caught:
        step()
    # As Keras's fit begins it.
    error = tf.errors.UnknownError(None, None, f"Graph execution error:\n\n{caught.value.message}")
    words[0](type(error), error, None)
    assert caplog.messages[0].endswith("has failed: UnknownError: KeyError: 'no picture 7'")


def test_an_error_of_another_rank_is_one_line(words, caplog):
    made = {"error": SHUT_DOWN, "__name__": "of a library"}
    exec("def horovod_allreduce(): raise error", made)

    def evaluate_alone():
        made["horovod_allreduce"]()

    with pytest.raises(tf.errors.UnknownError) as caught:
        evaluate_alone()
    words[0](type(SHUT_DOWN), SHUT_DOWN, caught.tb)
    words[0](type(SHUT_DOWN), SHUT_DOWN, None)
    assert words[1] == []
    place = f"evaluate_alone (test_crash_report.py, line {caught.tb.tb_next.tb_lineno})"
    for message, where in zip(caplog.messages, [f"in {place}", "training"], strict=True):
        assert message.endswith(
            f"ends: another rank is gone while this one was {where}; see its own last line, or the "
            "launcher's. If none has an error, it has not made this call: all ranks must make it. "
            "(Horovod has been shut down)"
        )


def test_it_is_asked_once_whatever_the_rank(words, monkeypatch, caplog):
    monkeypatch.setattr(hvd, "rank", lambda: 1)
    crash_report.name_failures()  # An elastic job has met anew.
    words[0](ValueError, ValueError("x"), None)
    assert len(words[1]) == 1
    assert caplog.messages[0].startswith("rank 1 of 3")


class Sent:
    """What ranks send each other where one fails."""

    def __init__(self, text=""):
        self.text = text

    def send(self, text):
        self.text = self.text or text

    def received(self):
        return self.text


def test_the_others_get_the_line_of_the_one_that_has_failed(words, caplog):
    sent = Sent()
    crash_report.name_failures(sent)
    words[0](ValueError, ValueError("on purpose"), None)
    assert sent.text == caplog.messages[0]
    assert sent.text.endswith("has failed: ValueError: on purpose")


def test_an_error_is_reported_though_its_notice_fails(words, caplog):
    class Failing(Sent):
        def send(self, text):
            raise ConnectionError("no network")

    crash_report.name_failures(Failing())
    error = ValueError("on purpose")
    words[0](ValueError, error, None)
    assert words[1] == [error]
    assert caplog.messages[0] == "the other ranks get no notice: no network"
    assert caplog.messages[1].endswith("has failed: ValueError: on purpose")


def test_the_others_end_with_that_line(words, caplog):
    sent = Sent("rank 0 has failed: on purpose")
    crash_report.name_failures(sent)
    words[0](type(SHUT_DOWN), SHUT_DOWN, None)
    assert words[1] == []
    assert caplog.messages[0].startswith("rank 2 of 3 (host ")
    assert caplog.messages[0].endswith(f" ends because of another rank: {sent.text}")
    # Known to those who call an operation, and of no error of their own.
    assert crash_report.notice_of_others(SHUT_DOWN) == sent.text
    assert crash_report.notice_of_others(ValueError("x")) == ""


def test_an_error_is_reported_in_words_of_others(words, caplog):
    crash_report.explain_failures(lambda error: "use less" if str(error) == "much" else "")
    words[0](MemoryError, MemoryError("much"), None)
    words[0](MemoryError, MemoryError("more"), None)
    assert [line.partition("has failed: ")[2] for line in caplog.messages] == [
        "MemoryError: use less",
        "MemoryError: more",
    ]


FAILING = """
import atexit, ctypes, sys, threading
import horovod.tensorflow as hvd
from hvd_dbs.watchdog import crash_report

def hang():  # With Python's lock, so that no thread of Python can end it.
    ctypes.PyDLL(None).sleep(300)

hvd.size, hvd.rank = lambda: 3, lambda: 2
hvd.shutdown = hang if sys.argv[1] == "in Horovod" else lambda: None
atexit.register(hang if sys.argv[1] == "later" else lambda: None)
crash_report.LAST_SECONDS = 60 if sys.argv[1] == "never" else 0.5
crash_report.name_failures()
raise ValueError("on purpose")
"""


@pytest.mark.parametrize(
    ("hangs", "code"), [("in Horovod", -signal.SIGALRM), ("later", -signal.SIGALRM), ("never", 1)]
)
def test_who_has_failed_ends_wherever_it_hangs(hangs, code):
    job = run_job(python("-c", FAILING, hangs), timeout=60)
    assert job.exit_code == code, job.output
    assert "rank 2 of 3 (host " in job.output


READING = """
import sys, threading
import tensorflow as tf
import horovod.tensorflow as hvd
from hvd_dbs.data import RandomAccess
from hvd_dbs.watchdog import crash_report

class Items:
    is_reading = threading.Event()

    def __len__(self):
        return 8

    def __getitem__(self, number):
        if number >= 4:  # As where a file server does not answer any more.
            self.is_reading.set()
            threading.Event().wait(float(sys.argv[1]))
        return number

hvd.size, hvd.rank = lambda: 3, lambda: 2
crash_report.LAST_SECONDS = float(sys.argv[2])
crash_report.name_failures()
batches = RandomAccess(Items()).batches(tf.data.Dataset.range(8).batch(4)).prefetch(1)
iterator = iter(batches)
next(iterator)
Items.is_reading.wait()
raise ValueError("on purpose")
"""


@pytest.mark.parametrize(
    ("hangs_for", "limit", "code"), [("300", "0.5", -signal.SIGALRM), ("0.5", "60", 1)]
)
def test_who_has_failed_ends_while_a_thread_reads(hangs_for, limit, code):
    """Python waited for the thread, and began the limit after it."""
    job = run_job(python("-c", READING, hangs_for, limit), timeout=60)
    assert job.exit_code == code, job.output
    assert "rank 2 of 3 (host " in job.output


GOING_ON = """
import sys, threading
import horovod.tensorflow as hvd
from hvd_dbs.watchdog import crash_report

hvd.size, hvd.rank, hvd.shutdown = lambda: 3, lambda: 2, lambda: None
crash_report.LAST_SECONDS = 0.2
crash_report.name_failures()
"""
ERROR_OF_A_THREAD = """
threading.excepthook = lambda failed: sys.excepthook(*failed[:3])
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
"""
ERROR_AT_A_CONSOLE = """
import code
lines = ["1 / 0"]
console = code.InteractiveConsole(globals())
def read(prompt):
    if not lines:
        raise EOFError
    return lines.pop(0)
console.raw_input = read
console.interact()
"""
LATER = """
import os
threading.Event().wait(0.5)
os._exit(7)
"""


@pytest.mark.parametrize(
    "error", [ERROR_OF_A_THREAD, ERROR_AT_A_CONSOLE], ids=["thread", "console"]
)
def test_an_error_that_python_goes_on_after_ends_nothing(error):
    job = run_job(python("-c", GOING_ON + error + LATER), timeout=60)
    assert job.exit_code == 7, job.output
    assert "rank 2 of 3 (host " in job.output
    assert "only works in main thread" not in job.output


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
        (tf.errors.UnknownError(None, None, IN_A_GRAPH), "KeyError: 'label'"),
        (
            tf.errors.InvalidArgumentError(None, None, IN_A_PIPELINE),
            "assertion failed: [The stream has 97 samples]",
        ),
        (ValueError(OF_A_LAYER), "Input 0 of layer 'dense' is incompatible"),
        (NameError(OF_USER_CODE), "name 'label' is not defined"),
        (ValueError("first line\nValueError: second line"), "first line"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_reason_of_an_error_is_what_was_raised(error, reason):
    assert crash_report.last_line(error) == reason
