"""The table of benchmarks/memory.py."""

from benchmarks.memory import table


def one(seconds, faults=0.0):
    return {"seconds": seconds, "faults": faults, "system_seconds": 0.001, "peak_mib": 700.0}


def test_ratios_are_those_within_a_round():
    """In a slow round both are slow: medians are equal, and each round has 1.5."""
    ways = {
        "by default": [one(0.15, 90), one(0.3, 100), one(0.6, 110)],
        "kept": [one(0.1), one(0.2), one(0.4)],
    }
    lines = table({"digits": ways}).splitlines()
    assert lines[2] == "| digits | by default | 300.0 (225.0 - 450.0) | 100 | 1.0 | 700 |"
    assert lines[3].startswith("| digits | kept | 200.0 (150.0 - 300.0) | 0 |")
    assert "1.50 (1.50 - 1.50)" in lines[4]
