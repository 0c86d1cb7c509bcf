"""docs/strategies.md names all parts that there are, and its example runs."""

import re
from pathlib import Path

import pytest

from hvd_dbs.balancing import Bounds, Controller, Measurement
from hvd_dbs.balancing.solvers import SOLVERS
from hvd_dbs.balancing.time_models import TIME_MODELS

DOCS = (Path(__file__).parents[3] / "docs" / "strategies.md").read_text()
PARTS = DOCS[DOCS.index("## Parts for a strategy of your own") :]


@pytest.mark.parametrize("make", [*TIME_MODELS.values(), *SOLVERS.values()])
def test_every_part_is_in_a_table(make):
    assert f"| `{type(make()).__name__}` |" in PARTS


def test_the_strategy_of_the_example_decides():
    names = {}
    code = re.search(r"```python\n(.*?)```", PARTS, re.DOTALL)
    exec(code[1], names)
    controller = Controller(names["strategy"], 512, Bounds.of(2), 2)
    measurement = Measurement.of([256, 256], [0.1, 0.3])
    decision = controller.decide(controller.observe(measurement))
    assert decision.plan.batch_sizes == (384, 128)
