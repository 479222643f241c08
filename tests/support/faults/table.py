"""Outcomes as a Markdown table, and its place in a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.faults.trial import Outcome

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEAD = ("fault", "what the client sees", "detected after", "recovered after", "what the times are")


def table(outcomes: Sequence[Outcome]) -> str:
    """One row per fault."""
    rows = [HEAD, tuple("---" for _ in HEAD)]
    rows += [(o.fault, o.client, _seconds(o.detect_s), _seconds(o.recover_s), o.remark) for o in outcomes]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def write(document: Path, text: str) -> None:
    """Put ``text`` between the markers of a document.

    Raises:
        ValueError: it has not exactly one pair of them.
    """
    content = document.read_text(encoding="utf-8")
    if content.count(BEGIN) != 1 or content.count(END) != 1 or content.index(BEGIN) > content.index(END):
        raise ValueError(f"{document}: expected one line {BEGIN!r} and, behind it, one {END!r}")
    before, _, rest = content.partition(BEGIN)
    after = rest.partition(END)[2]
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
