"""`hvd-dbs simulate` through the command line's own runner."""

import errno
import json
import os
import subprocess
import sys

import pytest
from click import ClickException
from click.testing import CliRunner

from hvd_dbs.cli import standard_output
from hvd_dbs.cli.main import COMMANDS, main
from hvd_dbs.simulator.simulation import preset_names

SCENARIO = """
name = "two speeds"
global_batch_size = 64
steps = 60
steps_per_epoch = 10
strategy = "dbs"
[[ranks]]
curve = "affine"
per_sample_ms = 1.0
[[ranks]]
curve = "affine"
per_sample_ms = 3.0
[[disturbances]]
kind = "neighbour"
ranks = [0]
from_step = 30
slowdown = 2.0
"""

FIGURES = {
    "throughput_over_oracle": float,
    "second_half_over_oracle": float,
    "samples_per_second": float,
    "cold_start": dict,
    "recoveries": list,
    "num_plan_changes": int,
    "num_decisions": int,
    "largest_regret_seconds": float,
    "largest_regret_step": int,
    "largest_sum_error": int,
}


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def curves(tmp_path):
    path = tmp_path / "curves.csv"
    lines = [f"{d},{b},{s * (b + 3)}\n" for d, s in (("a", 1), ("b", 2)) for b in range(2, 60)]
    path.write_text("device,batch_size,milliseconds\n" + "".join(lines))
    return path


def call(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_table(scenario):
    result = call(scenario)
    assert result.exit_code == 0, result.output
    title, _, header, _, row = result.output.splitlines()
    assert title == "two speeds: 2 ranks, B = 64, 60 steps, seed 0"
    assert header.split("|")[2].strip() == "over oracle"
    assert row.split("|")[1].strip() == "dbs"


def test_same_seed_same_output(scenario):
    assert call(scenario, "--seed", 5).output == call(scenario, "--seed", 5).output
    assert call(scenario, "--seed", 5).output != call(scenario, "--seed", 6).output


def test_json(scenario, tmp_path):
    path = tmp_path / "out.json"
    result = call(scenario, "--strategy", "all", "--json", path)
    assert result.exit_code == 0, result.output
    data = json.loads(path.read_text())
    assert (data["format"], list(data)) == (1, ["format", "runs"])
    assert [run["strategy"] for run in data["runs"]] == list(preset_names())
    for run in data["runs"]:
        assert {name: type(value) for name, value in run["figures"].items()} == FIGURES
        for recovery in (run["figures"]["cold_start"], *run["figures"]["recoveries"]):
            assert set(recovery) == {"step", "steps", "seconds"}
        for name in ("true_seconds", "clock_seconds", "oracle_seconds"):
            assert len(run[name]) == run["steps"] == 60
        assert all(sum(plan["batch_sizes"]) == 64 for plan in run["plans"])
        assert {*run["plans"][0]} == {"step", "batch_sizes", "reason", "resized"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_picture(scenario, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture{suffix}"
    result = call(scenario, "--strategy", "even", "--strategy", "dbs", "--picture", path)
    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 10_000


def test_picture_of_many_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    case = tmp_path / "case.toml"
    case.write_text(SCENARIO.replace("[[ranks]]", "[[ranks]]\ncount = 10", 1))
    path = tmp_path / "picture.png"
    assert call(case, "--picture", path).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_curves_alone_are_a_cluster(curves):
    result = call("--curves", curves, "--strategy", "dbs", "--global-batch-size", 60)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("curves: 2 ranks, B = 60,")


def test_curves_in_all_combinations(curves, tmp_path):
    path = tmp_path / "out.json"
    result = call("--suite", "--curves", curves, "--strategy", "dbs", "--json", path)
    assert result.exit_code == 0, result.output
    entries = json.loads(path.read_text())["curves"]
    assert [entry["scenario"] for entry in entries] == [
        "a+b B=64",
        "a+b B=80",
        "a+b B=96",
        "a+b B=112",
    ]
    assert all(entry["over_optimum"] < 0.03 for entry in entries)


def test_cadence(scenario, tmp_path):
    path = tmp_path / "out.json"
    assert call(scenario, "--every", 5, "--json", path).exit_code == 0
    assert (
        json.loads(path.read_text())["runs"][0]["figures"]["num_decisions"] == 10
    )  # 54 steps are measured


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to simulate"),
        (("none.toml",), "none.toml"),
        (("{case}", "--suite"), "exclude each other"),
        (("--suite", "--picture", "x.png"), "Leave out --suite"),
        (("{case}", "--strategy", "best"), "--strategy best; expected all or one of even"),
        (("{case}", "--every", "0"), "--every 0; expected a whole number from 1 on"),
        (("{case}", "--every", "epoc"), 'from 1 on, "epoch" or "automatic".'),
        (("{case}", "--ranks", "8"), "--seeds and --jobs are for the built-in scenarios of"),
        (("{case}", "--seeds", "3"), "are for the built-in scenarios of --suite"),
        (("--suite", "--curves", "{curves}", "--jobs", "2"), "give --suite without --curves"),
        (("{case}", "--curves", "{curves}"), "but no group of ranks has curve = "),
        (("--suite", "--global-batch-size", "9"), "--global-batch-size goes with --curves alone"),
        (("--prediction", "--strategy", "dbs"), "--prediction takes --seed and --json alone"),
        (("--prediction", "--curves", "{curves}"), "--prediction takes --seed and --json alone"),
        (("{case}", "--seed", "-1"), "--seed"),
        (("{case}", "--global-batch-size", "9"), "--global-batch-size goes with --curves alone"),
        (("{case}", "--picture", "x.doc"), "unknown format 'doc'"),
        (("{case}", "--json", "/none/x.json"), "--json /none/x.json: there is no folder /none"),
        (("{case}", "--picture", "/none/x.png"), "--picture /none/x.png: there is no folder /none"),
        (("--suite", "--ranks", "4", "--json", "/none/x.json"), "there is no folder /none"),
        (("{bad}",), "bad.toml: strategy = 'fastest'; expected one of even"),
        (("--suite", "--ranks", "2"), "--ranks 2; expected a whole number from 4 on"),
        (("--suite", "--ranks", ""), '--ranks ""; expected a whole number from 4 on'),
        (("--suite", "--ranks", "4,100000000000"), "expected at most 1048576"),
        (("--suite", "--classes", ""), '--classes ""; expected some of static'),
        (("{case}", "--ranks", ""), "--ranks"),
        (("--suite", "--classes", "storms"), "--classes storms; expected some of static"),
        (("--curves", "{case}"), "no column device"),
        (("--frobnicate",), "No such option"),
    ],
)
def test_wrong_input_is_exit_code_2(scenario, curves, tmp_path, arguments, message):
    bad = tmp_path / "bad.toml"
    bad.write_text(SCENARIO.replace('"dbs"', '"fastest"'))
    result = call(*(text.format(case=scenario, bad=bad, curves=curves) for text in arguments))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("global_batch_size = 64", f"global_batch_size = {10**23}", "is more than 2147483648"),
        ("per_sample_ms = 1.0", f"per_sample_ms = 1.0\ncount = {10**11}", "from 1 to 1048576"),
        ("per_sample_ms = 1.0", "per_sample_ms = 1.0\ncount = 1048576", "count of all ranks="),
        ("steps = 60", f"steps = {10**11}", "from 1 to 10000000"),
    ],
)
def test_what_is_too_large_is_exit_code_2(scenario, before, after, message):
    scenario.write_text(SCENARIO.replace(before, after, 1))
    result = call(scenario)
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_a_link_stays_a_link(scenario, tmp_path):
    path, link = tmp_path / "out.json", tmp_path / "link.json"
    link.symlink_to(path.name)
    for _ in range(2):  # Where it leads to nothing yet, and to a file.
        assert call(scenario, "--json", link).exit_code == 0
        assert link.is_symlink() and json.loads(path.read_text())["format"] == 1
    assert {one.name for one in tmp_path.iterdir()} == {"case.toml", "out.json", "link.json"}


def test_a_pipe_is_written_into(scenario, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert call(scenario, "--json", pipe).exit_code == 0
        assert pipe.is_fifo() and json.loads(os.read(reader, 2**16))["format"] == 1
    finally:
        os.close(reader)


def test_a_full_disk_is_one_line(monkeypatch):
    def full(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(standard_output.click, "echo", full)
    monkeypatch.setattr(standard_output, "_forget_what_is_left", lambda: None)
    with pytest.raises(ClickException, match=r"^standard output cannot .*: No space left"):
        standard_output.say("a table")


def test_characters_that_the_output_lacks_are_escaped(scenario):
    scenario.write_text(SCENARIO.replace("two speeds", "zwei für → drei"))
    done = subprocess.run(
        [sys.executable, "-m", "hvd_dbs.cli.main", "simulate", str(scenario)],
        check=False,
        capture_output=True,
        encoding="latin-1",
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert done.stdout.startswith("zwei für \\u2192 drei: 2 ranks"), done.stderr


def test_help_lists_all_commands():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


def test_simulate_imports_light(scenario):
    """No TensorFlow, Horovod, MPI or plotting for a table."""
    program = (
        "import sys\n"
        "from hvd_dbs.cli.main import main\n"
        f"main(['simulate', {str(scenario)!r}], standalone_mode=False)\n"
        "heavy = {'tensorflow', 'keras', 'horovod', 'mpi4py', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
