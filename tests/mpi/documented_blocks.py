"""The Python blocks of README and docs, run with what surrounds them.

`python -m tests.mpi.documented_blocks [PAGE...] REPORT` runs them on all ranks, one after the
other: each with names of its own, in a folder of its own. Before each, `COMMON` makes what the
pages take for granted; `AROUND` has what single blocks need besides (`*block_surroundings.py`).
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mpi import block_surroundings
from tests.mpi.block_surroundings import COMMON, INSTEAD, Around
from tests.mpi.data_block_surroundings import AROUND_DATA

ROOT = Path(__file__).resolve().parents[2]
AROUND = [*block_surroundings.AROUND, *AROUND_DATA]


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        page: The page, from the repository's root.
        line: Where it begins.
        text: Its code as it stands there; of a diff the code after the change.
    """

    page: str
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def around(self) -> list[Around]:
        return [one for one in AROUND if one.page == self.page and one.text in self.text]

    @property
    def code(self) -> str:
        """What runs, with the page's line numbers."""
        code = self.text
        for instead in (INSTEAD, *(one.instead for one in self.around)):
            for given, other in instead.items():
                code = code.replace(given, other)
        return "\n" * self.line + code

    def uncalled(self) -> set[str]:
        """What it defines, and neither it nor what comes after it uses."""
        tree = ast.parse(self.text)
        defined = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
        after = "\n".join(one.after for one in self.around)
        nodes = [*ast.walk(tree), *ast.walk(ast.parse(after))]
        return defined - {one.id for one in nodes if isinstance(one, ast.Name)}

    def run(self) -> None:
        """Runs it on this rank."""
        names: dict[str, object] = {"__name__": "documented"}
        home = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                exec(COMMON, names)
                for one in self.around:
                    exec(one.before, names)
                # By the page's name a traceback shows the page's line, and tf.function reads it.
                exec(compile(self.code, str(ROOT / self.page), "exec"), names)
                for one in self.around:
                    exec(one.after, names)
            finally:
                os.chdir(home)


def blocks() -> list[Block]:
    """Those of all pages; one that is on two pages counts on the first."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found_blocks = [
        Block(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, found.start()) + 1,
            textwrap.dedent(found[3]) if found[2] == "python" else _changed(found[3]),
        )
        for page in pages
        for text in [page.read_text()]
        for found in re.finditer(
            r"^( *)```(python|diff)\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL
        )
    ]
    return list({block.text: block for block in reversed(found_blocks)}.values())[::-1]


def _changed(diff: str) -> str:
    """The code after a change, on the lines of the diff."""
    return "\n".join("" if line.startswith("-") else line[1:] for line in diff.splitlines())


def _main(pages: Sequence[str], report: Path) -> None:
    import horovod.tensorflow as hvd

    from tests.mpi import checks

    hvd.init()
    chosen = [block for block in blocks() if not pages or block.page in pages]
    checks.run({block.name: functools.partial(Block.run, block) for block in chosen}, report)


if __name__ == "__main__":
    _main(sys.argv[1:-1], Path(sys.argv[-1]))
