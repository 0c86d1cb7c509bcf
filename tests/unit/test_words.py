"""Plain technical words in code, messages and documentation: those of the glossary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("hvd_dbs", "benchmarks", "docs", "examples", "scripts", "tests")
SUFFIXES = (".cc", ".h", ".md", ".py", ".sh", ".toml")
PATHS = [*ROOT.glob("*.md"), *(one for name in FOLDERS for one in (ROOT / name).rglob("*"))]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in sorted(PATHS)
    if path.suffix in SUFFIXES and path != Path(__file__).resolve()
}

INSTEAD = {
    r"\b(for ?ever)\b": "deadlocks, without end",
    r"\b(guilty|blam(e|ed|es|ing))\b": "blocking, responsible rank",
    r"\b(twins?)\b": "reference implementation",
    r"\b(spells?)\b": "slow period",
    r"\b(usual pace|usual_pace|UsualPace)\b": "baseline speed",
    r"\b(own time(?! (curve|model))|own_time|OwnTime)\b": "overhead, busy time",
    r"\b(in the midst)\b": "during",
    r"\b(whatever else)\b": "any other",
    r"\b(has (all the|a) say)\b": "has full weight, is weighted by",
    r"(?<!saw-)\b(teeth)\b": "jumps; saw-teeth of curves in the simulator",
    r"\b(news)\b": "change signal",
    r"\b(excerpts?)\b": "fingerprint",
    r"\b(fill(s|ed|ing)? in)\b": "padding samples",
    r"\b(tak(e|es|ing|en) (its|their) place)\b": "replaces",
    r"\b(in front of)\b": "before, upstream of",
    r"(?<!leave\s)(?<!leaves\s)(?<!nothing\s)(?<!leaves\sone\s)\b(behind)\b": "after",
}
"""What a text must not hold, in any case, and what says it plainly."""


@pytest.mark.parametrize("word", INSTEAD)
def test_words_are_plain(word):
    pattern = re.compile(word.replace(" ", r"[\s#/]+"), re.IGNORECASE)  # Also across lines.
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[1]!r}: {INSTEAD[word]}"
        for name, text in TEXTS.items()
        for match in pattern.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_no_text_installs_by_a_name_that_no_index_has():
    found = [
        name for name, text in TEXTS.items() if re.search(r"pip install[^|\n`]*\bhvd_dbs", text)
    ]
    assert not found
