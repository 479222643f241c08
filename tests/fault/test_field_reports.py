"""docs/field-reports.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_named_in_the_document_exists() -> None:
    text = (ROOT / "docs" / "field-reports.md").read_text(encoding="utf-8")
    references = set(re.findall(r"`(tests/[^`]+)`", text))
    assert len(references) > 50
    for reference in sorted(references):
        path, _, name = reference.partition("::")
        assert (ROOT / path).is_file(), reference
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in functions, reference
