"""Scenario files: what is read, and what is said about wrong ones."""

from pathlib import Path

import numpy as np
import pytest

from hvd_dbs.simulator import Conditions, read_scenario, simulate
from hvd_dbs.simulator.rank_groups import AffineRanks, MeasuredRanks
from hvd_dbs.simulator.scenario import HostLoad
from hvd_dbs.simulator.scenario_file import scenario_of_curves
from hvd_dbs.simulator.simulation import preset
from hvd_dbs.simulator.slowdowns import Neighbour

GOOD = """
global_batch_size = 64
steps = 40

[noise]
jitter = 0.02

[[ranks]]
count = 2
curve = "affine"
per_sample_ms = 1

[[ranks]]
curve = "saturating"
per_sample_ms = 2.5
saturation = 8

[[disturbances]]
kind = "neighbour"
ranks = [1]
from_step = 10
slowdown = 2
"""

CURVES = """device,batch_size,milliseconds
fast,2,4.0
fast,4,6.0
fast,40,60.0
slow,3,9.0
slow,20,70.0
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "case.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_good_file(write):
    scenario = read_scenario(write(GOOD))
    assert (scenario.name, scenario.size, scenario.steps) == ("case", 3, 40)
    assert scenario.ranks[0] == AffineRanks(count=2, per_sample_ms=1.0)
    assert scenario.disturbances == (Neighbour(ranks=(1,), from_step=10, slowdown=2.0),)
    assert scenario.host_load == HostLoad()
    assert isinstance(scenario.ranks[0].per_sample_ms, float)


def test_host_load_can_be_unknown(write):
    assert read_scenario(write("host_load = false\n" + GOOD)).host_load is None


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 3", r"is not TOML"),
        (changed("global_batch_size = 64", ""), "global_batch_size is missing; expected a whole"),
        (changed("= 64", '= "64"'), "global_batch_size = '64'; expected a whole number"),
        (changed("= 64", "= 64.0"), "global_batch_size = 64.0; expected a whole number"),
        (changed("= 64", "= true"), "global_batch_size = True; expected a whole number"),
        (changed("= 64", "= 0"), "global_batch_size=0; expected a whole number from 1 on"),
        (changed("= 64", "= 2"), "global_batch_size=2 is not one sample for each of the 3 ranks"),
        (
            changed("steps = 40", "stepps = 40"),
            r"stepps = 40 is unknown; expected one of .*name, .* Did you mean steps\?",
        ),
        (
            changed("[noise]", "[network]"),
            r"\[network\] is unknown; expected one of .*name, .*, \[communication\], \[\[ranks\]\]",
        ),
        (
            GOOD.replace("[[ranks]]", "[[rank]]"),
            r"\[\[rank\]\] is unknown; .* Did you mean \[\[ranks\]\]\?",
        ),
        (
            GOOD.replace("[[ranks]]", "[ranks]"),
            r"is not TOML: .* Each group begins with \[\[ranks\]\], in two brackets",
        ),
        (changed("steps = 40", "ratios = [1, 2]"), "expected one positive number for each of the"),
        (changed("steps = 40", "ratios = [1, 'a']"), "expected a list of numbers"),
        (changed("jitter = 0.02", "jitter = 3"), r"noise\.jitter=3\.0; expected a number from 0"),
        (changed("[noise]", "noise = 3\n[other]"), r"noise=3; expected a table, \[noise\]"),
        (changed("count = 2", "count = -2"), r"ranks\[0\]\.count=-2; expected a whole number"),
        (changed("affine", "afine"), r"ranks\[0\]\.curve = 'afine'; expected one of affine, sat"),
        (changed('curve = "affine"', ""), r"ranks\[0\]\.curve is missing; expected one of"),
        (changed("saturation = 8", ""), r"ranks\[1\]\.saturation is missing; expected a whole"),
        (changed("saturation = 8", "saturation = 0"), r"ranks\[1\]\.saturation=0"),
        (changed("per_sample_ms = 1", "per_sample_ms = 0"), r"ranks\[0\]\.per_sample_ms=0\.0"),
        (changed("per_sample_ms = 1", "per_sample_ms = nan"), r"ranks\[0\]\.per_sample_ms=nan"),
        (changed("neighbour", "visitor"), r"disturbances\[0\]\.kind = 'visitor'; expected one of"),
        (changed('"neighbour"', '["neighbour"]'), r"disturbances\[0\]\.kind = \['neighbour'\]"),
        (changed("slowdown = 2", "speed = 2"), r"disturbances\[0\]\.speed = 2 is unknown"),
        (changed("ranks = [1]", "ranks = [3]"), r"disturbances\[0\]: ranks=\(3,\).*has 3 ranks"),
        (changed("ranks = [1]", "ranks = 1"), r"disturbances\[0\]\.ranks = 1; expected a list"),
        (changed("ranks = [1]", "ranks = [1.5]"), r"disturbances\[0\]\.ranks = \[1\.5\]"),
        ("ranks = 4\nglobal_batch_size = 3", r"ranks=4; expected a list of tables, \[\[ranks\]\]"),
        ("global_batch_size = 3", "ranks=.*expected at least one group"),
        (
            changed('curve = "affine"\nper_sample_ms = 1', 'curve = "measured"\ndevice = "x"'),
            r"ranks\[0\]\.file is missing and no --curves is given",
        ),
    ],
)
def test_bad_files_say_which_field_and_what_was_expected(write, text, message):
    with pytest.raises(ValueError, match=r"case\.toml: .*" + message):
        read_scenario(write(text))


def test_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml: cannot be read"):
        read_scenario(tmp_path / "none.toml")


def test_measured_curves_are_lines_between_points_and_bounds_outside(write):
    scenario = scenario_of_curves(write(CURVES, "curves.csv"), 30)
    assert scenario.ranks == (MeasuredRanks(device="fast"), MeasuredRanks(device="slow"))
    assert scenario.bounds.minimum == (2, 3)
    assert scenario.bounds.maximum == (40, 20)
    conditions = Conditions.of(scenario)
    assert conditions.curves.seconds(np.asarray([3, 3])).tolist() == pytest.approx([0.005, 0.009])
    run = simulate(conditions, preset("dbs", conditions))
    assert all(2 <= change.batch_sizes[0] <= 40 for change in run.changes)


@pytest.mark.parametrize(
    "text", ["\ufeff" + CURVES.replace("\n", "\r\n"), CURVES.replace(",", ", ")]
)
def test_curves_as_spreadsheets_and_people_write_them(write, text):
    scenario = scenario_of_curves(write(text, "curves.csv"), 30)
    assert scenario.bounds == scenario_of_curves(write(CURVES, "plain.csv"), 30).bounds


def test_a_measured_range_that_is_too_small_is_said_to_be_one(write):
    curves = write(CURVES, "curves.csv")
    with pytest.raises(ValueError, match=r"global_batch_size=90(.|\n)*A measured curve is a bound"):
        scenario_of_curves(curves, 90)
    with pytest.raises(ValueError, match="global_batch_size=2") as caught:
        read_scenario(write(changed("= 64", "= 2")))
    assert "A measured curve" not in str(caught.value)


def test_curves_by_file_and_by_option(write):
    curves = write(CURVES, "curves.csv")
    text = """
global_batch_size = 20
[[ranks]]
curve = "measured"
device = "slow"
file = "curves.csv"
[[ranks]]
curve = "measured"
device = "fast"
max_batch_size = 12
"""
    scenario = read_scenario(write(text), curves)
    assert scenario.bounds.maximum == (20, 12)
    with pytest.raises(ValueError, match=r"device='fast2' is not in .*; it has fast, slow"):
        read_scenario(write(text.replace('"fast"', '"fast2"')), curves)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column device, batch_size, milliseconds"),
        ("device,batch_size\na,1\n", "no column milliseconds"),
        ("device,batch_size,milliseconds\n", "no measured point"),
        (CURVES + "slow,x,3\n", "line 7: batch_size='x', milliseconds='3'; expected a whole"),
        (CURVES + "slow,5\n", "line 7: batch_size='5', milliseconds=None"),
        (CURVES + "slow,5,-1\n", "expected a whole number from 1 on and a number above 0"),
        (CURVES + ",5,1\n", "line 7: device is empty"),
        (CURVES + "slow,3,10.0\n", "line 7: a second time for 'slow' at batch_size=3"),
    ],
)
def test_bad_curves_say_where(write, text, message):
    with pytest.raises(ValueError, match=r"curves\.csv.*" + message):
        scenario_of_curves(write(text, "curves.csv"))
