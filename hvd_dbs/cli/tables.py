"""Plain tables: the same text on a terminal, in a pipe and in the docs."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Lines of a table in Markdown, its columns aligned.

    Args:
        header: Titles of the columns.
        rows: Cells, one per column.
        num_left: Columns from the left whose cells are aligned to the left.

    Example:
        >>> print(table(["who", "ms"], [["even", "9.5"], ["dbs", "12.0"]]))
        | who  |   ms |
        |------|-----:|
        | even |  9.5 |
        | dbs  | 12.0 |
    """
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [
        "-" * (width + 2) if column < num_left else "-" * (width + 1) + ":"
        for column, width in enumerate(widths)
    ]
    return "\n".join([line(header), f"|{'|'.join(rule)}|", *(line(row) for row in rows)])
