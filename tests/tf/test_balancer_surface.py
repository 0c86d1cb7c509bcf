"""What users see of a balancer, and that it comes without the Keras part of the package."""

from __future__ import annotations

import subprocess
import sys

import hvd_dbs
from hvd_dbs.balancer import Balancer

SHOWN = {
    *("global_batch_size", "strategy", "plan", "rank", "size", "collective", "clock"),
    *("dataset", "epochs", "loop", "resize", "observe", "dynamic_learning_rate"),
    *("cursor", "state_dict", "gather_state_dict", "load_state_dict", "rejoin", "pause"),
}


def test_users_see_what_documents_and_tests_use():
    assert {name for name in dir(Balancer) if not name.startswith("_")} == SHOWN


def test_the_package_gives_the_balancer_without_its_keras_part():
    code = (
        "import sys, hvd_dbs; print('tensorflow' in sys.modules, 'Balancer' in dir(hvd_dbs)); "
        "from hvd_dbs import Balancer; import hvd_dbs.tensorflow as hvd; "
        "print(hvd.Balancer is Balancer, 'hvd_dbs.keras' in sys.modules)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["False", "True", "True", "False"], done.stderr
    assert hvd_dbs.Balancer is Balancer
