"""Programming prompts from code that is at hand: functions of Python's standard library, cut after the docstring."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

REQUESTS: tuple[str, ...] = (
    "Complete this function.\n\n{code}",
    "Complete the code below:\n\n{code}",
    "Write the body of this Python function.\n\n```python\n{code}```",
    "Finish the implementation of the function.\n{code}",
    "{code}",
    "Implement the following Python function:\n\n{code}",
    "Here is the start of a function, write the rest.\n\n{code}\n",
)
NOT_LIBRARY = frozenset({"site-packages", "test", "tests", "testing", "idlelib", "lib2to3"})
_LONGEST_CHARACTERS = 420


def function_prompts(root: Path | None = None) -> list[str]:
    """User turns that ask for the body of a documented function, one per function, in a fixed order.

    The functions are those of the files below ``root``, tests left out; None: the standard library of the running
    Python (PSF licence).
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    codes: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not (NOT_LIBRARY - {"testing"}) & set(parts):
            codes.update(dict.fromkeys(_heads(path)))
    return [REQUESTS[i % len(REQUESTS)].format(code=code) for i, code in enumerate(codes)]


def _heads(path: Path) -> Iterator[str]:
    """Signature and docstring of every short enough function of a file, without indentation."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if (head := function_head(node, lines)) is not None:
            yield head


def function_head(node: ast.AST, lines: Sequence[str]) -> str | None:
    """Signature and docstring, without indentation, of a short enough documented function; None for anything else."""
    if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None or len(node.body) < 2:
        return None
    head = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.body[0].end_lineno]) + "\n"
    return head if 60 <= len(head) <= _LONGEST_CHARACTERS else None
