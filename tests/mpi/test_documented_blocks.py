"""Every Python block of README and docs runs as written, on 2 ranks under mpirun."""

from tests.mpi.checks import as_tests_of
from tests.mpi.documented_blocks import AROUND, blocks

BLOCKS = blocks()

test_two_ranks = as_tests_of(
    "tests.mpi.documented_blocks", [], [block.name for block in BLOCKS], ranks=2
)


def test_what_a_block_defines_is_used():
    uncalled = {block.name: block.uncalled() for block in BLOCKS if block.uncalled()}
    assert uncalled == {}, "let `after` of tests/mpi/*block_surroundings.py use them"


def test_what_runs_around_blocks_has_its_block():
    for one in AROUND:
        texts = [block.text for block in BLOCKS if one in block.around]
        assert texts, one
        assert all(given in text for given in one.instead for text in texts), one


def test_pages_have_blocks():
    assert len({block.page for block in BLOCKS}) > 12
