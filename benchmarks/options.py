"""What a benchmark is and which options it has, from its source: nothing has to be set up for that.

python3 benchmarks/options.py op
python3 benchmarks/options.py papers dbs
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def source_of(words: list[str]) -> Path:
    """The file of a benchmark, such as `["op"]` or `["papers", "dbs"]`; options may follow."""
    path = _FOLDER / words[0]
    for word in words[1:2]:
        if (path / f"{word}.py").exists():
            return path / f"{word}.py"
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def help_of(source: str) -> str:
    """Its docstring, and a line for each option that it gives to argparse."""
    tree = ast.parse(source)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        and isinstance(node.args[0], ast.Constant)
    ]
    calls.sort(key=lambda call: call.lineno)
    lines = [ast.get_docstring(tree) or "", "", "options:"]
    values = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for call in calls:
        known = {keyword.arg: keyword.value for keyword in call.keywords}
        text = known.get("help")
        parts = [str(text.value)] if isinstance(text, ast.Constant) else []
        for name in ("choices", "default"):
            value = known.get(name)
            # Names from other modules would say nothing.
            value = values.get(value.id) if isinstance(value, ast.Name) else value
            if value is not None:
                parts.append(f"{name}: {ast.unparse(value)}")
        lines.append(f"  {ast.literal_eval(call.args[0]):<22}{'; '.join(parts)}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    print(help_of(source_of(sys.argv[1:]).read_text()))
