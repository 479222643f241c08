"""Runs in pieces: what is stored, what is continued, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bench_pair import terms

from ssd_cluster.bench.rules.plan import Cell, Prompt, prompts_of, run_missing
from ssd_cluster.bench.store import Store
from ssd_cluster.errors import ConfigError

CELLS = [Cell("token T=1 K=3", "token", terms()), Cell("block T=1 K=3", "block", terms())]
PROMPTS = prompts_of(["one", "two", "three"], seed=5)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, made = tmp_path / "out" / "r.json", []
    seconds = [0.0]

    def run(cell: Cell, prompt: Prompt) -> dict[str, object]:
        made.append((prompt.text, cell.rule, prompt.seed))
        seconds[0] += 100
        return {"tokens": len(made)}

    def go_on(minutes: float | None) -> int:
        store = Store(path, {"seed": 5})
        return run_missing(CELLS, PROMPTS, store, run, minutes, lambda line: None, lambda: seconds[0])

    assert go_on(3) == 4
    assert made == [("one", "token", 5), ("one", "block", 5)], "prompt by prompt"
    assert go_on(None) == 0
    assert len(made) == len(set(made)) == 6
    store = Store(path, {"seed": 5})
    assert [r["tokens"] for r in store.all([CELLS[0].key(p) for p in PROMPTS])] == [1, 3, 5]
    changed = prompts_of(["one", "other"], seed=5)
    assert CELLS[0].key(changed[0]) in store
    assert CELLS[0].key(changed[1]) not in store, "another text in the same place is another prompt"
    assert [p.name for p in path.parent.iterdir()] == ["r.json"], "nothing half-made is left"


def test_other_settings_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Store(path, {"seed": 5, "top_p": 1.0}).add("a", {"tokens": 1})
    with pytest.raises(ConfigError, match=r"other settings \(seed, top_k\)"):
        Store(path, {"seed": 6, "top_p": 1.0, "top_k": 0})
    for content in ("[]", "{}", "nonsense", json.dumps({"settings": {}})):
        path.write_text(content)
        with pytest.raises(ConfigError, match="no results to continue"):
            Store(path, {})


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    store = Store(None, {})
    store.add("a", {"tokens": 1})
    assert store.get("a") == {"tokens": 1}
    assert not list(tmp_path.iterdir())
