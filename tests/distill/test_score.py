"""Text that is at hand: what may be used, and that the stored laws are the target's."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import make_checkpoint

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.distill.bulk import find_sources
from ssd_cluster.distill.licences import debian_licence, package_licence, permissive
from ssd_cluster.distill.score import score
from ssd_cluster.distill.settings import DistillSettings
from ssd_cluster.distill.shards import OWN, BadShard, read_shard
from ssd_cluster.distill.train import split_documents
from ssd_cluster.errors import ConfigError, SsdClusterError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.runner import load_runner

FUNCTION = '''def {name}(first, second):
    """Add two numbers that are given, slowly and with care."""
    total = first
    for _ in range(second):
        total += 1
    return total
'''


@pytest.mark.parametrize(
    ("expression", "free"),
    [
        ("MIT", True),
        ("Apache-2.0 OR BSD-2-Clause", True),
        ("Apache-2.0 WITH LLVM-exception AND (MIT and 0BSD)", True),
        ("BSD License", True),
        ("Python Software Foundation License", True),
        ("MIT AND GPL-3.0-or-later", False),
        ("MPL-2.0", False),
        ("LGPL-2.1+", False),
        ("", False),
        ("UNKNOWN", False),
    ],
)
def test_only_permissive_licences_count(expression: str, free: bool) -> None:
    assert permissive(expression) is free


def distribution(folder: Path, fields: str) -> Distribution:
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thing\nVersion: 1\n{fields}\n\nWhat it is.\n")
    return Distribution.at(folder)


def test_the_licence_of_a_package_is_what_it_states(tmp_path: Path) -> None:
    cases = {
        "License-Expression: MIT AND GPL-2.0\nLicense: MIT": "MIT AND GPL-2.0",
        "License: something\nClassifier: License :: OSI Approved\nClassifier: License :: OSI Approved :: BSD License": (
            "BSD License"
        ),
        "License: Apache 2.0": "Apache 2.0",
        "License: " + "Permission is hereby granted " * 9: "",
        "Summary: nothing said": "",
    }
    for number, (fields, licence) in enumerate(cases.items()):
        assert package_licence(distribution(tmp_path / f"{number}.dist-info", fields).metadata) == licence


def test_a_debian_copyright_file_must_be_machine_readable() -> None:
    text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: Expat\n"
    assert debian_licence(text) == "Expat"
    assert debian_licence(text + "\nFiles: d/*\nLicense: GPL-3+\n") == "Expat and GPL-3+"
    assert debian_licence("It is under the MIT licence.\nLicense: MIT\n") == ""


def test_every_refused_package_is_named() -> None:
    """The environment of the tests holds packages of both sorts."""
    lines: list[str] = []
    sources = find_sources(("packages", "debian"), (), lines.append)
    used = {name for name, _ in (*sources.code, *sources.prose)}
    refused = {line.split(" (")[0] for line in sources.refused}
    assert "torch" in used
    assert refused
    assert not used & refused
    assert all(name in lines[0] for name in refused)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("score") / "target", layers=2, tie=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "code.py").write_text("\n\n".join(FUNCTION.format(name=f"add_{i}") for i in range(6)) + "\n\nx = 1\n")
    (folder / "broken.py").write_text("def (")
    (folder / "notes.md").write_text("\n\n".join(f"The sea {i} was calm and the river ran on. " * 9 for i in range(8)))
    (folder / "table.md").write_text("| 1 | 2 | 3 |\n" * 90)
    return folder


def settings(target: Path, texts: Path, **changes: object) -> DistillSettings:
    chosen = {"tokens": 900, "sources": (), "folders": (str(texts),), "window": 48, "documents_per_shard": 5}
    return DistillSettings.model_validate(
        {"target": str(target), "dtype": "float32", "score": chosen | changes, "collect": {"top_m": 6}}
    )


def test_functions_and_paragraphs_in_an_order_that_the_seed_decides(texts: Path) -> None:
    sources = find_sources((), (str(texts),), lambda line: None)
    found = list(sources.texts(3))
    assert found == list(sources.texts(3))
    assert [t.answer for t in found] != [t.answer for t in sources.texts(4)]
    code = [t for t in found if t.answer.startswith("```python\ndef add_")]
    assert len(code) == 6
    assert all("slowly and with care" in t.request and "return total\n```" in t.answer for t in code)
    prose = [t for t in found if t not in code]
    assert len(prose) == 4, "two paragraphs each"
    assert all(t.answer.startswith("The sea") and t.request == "Write a text about texts." for t in prose)
    with pytest.raises(ConfigError, match="nowhere"):
        find_sources((), (str(texts / "nowhere"),), lambda line: None)


def test_stored_laws_are_those_of_the_target(target: Path, texts: Path, tmp_path: Path) -> None:
    paths = score(settings(target, texts), tmp_path / "data", lambda line: None)
    runner = load_runner(ModelSettings(path=str(target), dtype=DType.FLOAT32, kv_tokens=1024))
    documents = [d for path in paths for d in read_shard(path)]
    assert sum(map(len, documents)) >= 900
    for document in documents[:4]:
        assert document.source == "texts"
        tokens = document.tokens.tolist()
        table = runner.pool.allocate(-(-len(tokens) // runner.pool.block_size))
        law = torch.softmax(runner.forward(ForwardBatch([CausalSpan(tokens, 0, table)])), -1)
        forced = int(np.flatnonzero(document.has_law)[0])
        assert document.has_law.tolist() == [i >= forced for i in range(len(tokens))]
        expected = law[forced - 1 : -1].topk(6).values.numpy()
        np.testing.assert_allclose(document.law_p[forced:].astype(np.float32), expected, atol=2e-3)
        picked = law[forced - 1 : -1].gather(1, torch.from_numpy(document.law_ids[forced:].astype(np.int64)))
        np.testing.assert_allclose(picked.numpy(), expected, atol=2e-3)


def test_it_goes_on_where_it_stopped_and_tells_damage(target: Path, texts: Path, tmp_path: Path) -> None:
    folder, lines = tmp_path / "data", []
    paths = score(settings(target, texts), folder, lines.append)
    assert len(paths) > 1
    assert any("shard 0 written" in line and "of 900 tokens" in line for line in lines)
    before = [[d.tokens.tolist() for d in read_shard(path)] for path in paths]
    paths[-1].unlink()
    lines.clear()
    assert score(settings(target, texts), folder, lines.append) == paths
    assert len(lines) == 1
    assert [[d.tokens.tolist() for d in read_shard(path)] for path in paths] == before
    with pytest.raises(BadShard, match="other settings"):
        score(settings(target, texts, window=47), folder, lines.append)
    paths[0].write_bytes(paths[0].read_bytes()[:-9])
    with pytest.raises(BadShard, match="bulk-00000"):
        score(settings(target, texts), folder, lines.append)


def test_nothing_is_scored_unless_asked_and_too_little_text_is_said(target: Path, texts: Path, tmp_path: Path) -> None:
    assert score(settings(target, texts, tokens=0), tmp_path, lambda line: None) == []
    lines: list[str] = []
    score(settings(target, texts, tokens=100_000), tmp_path, lines.append)
    assert "the sources hold only" in lines[-1]
    (tmp_path / "file").write_text("")
    with pytest.raises(SsdClusterError, match="cannot write"):
        score(settings(target, texts), tmp_path / "file" / "data", lambda line: None)


def test_scored_text_is_never_held_out(target: Path, texts: Path, tmp_path: Path) -> None:
    documents = [d for path in score(settings(target, texts), tmp_path, lambda line: None) for d in read_shard(path)]
    own = [type(d)(d.tokens, d.law_ids, d.law_p, d.has_law) for d in documents]
    held_out, training = split_documents(own + documents, 0.4, 1)
    assert held_out
    assert {d.source for d in held_out} == {OWN}
    assert len(held_out) + len(training) == 2 * len(documents)
    assert [id(d) for d in held_out] == [id(d) for d in split_documents(own, 0.4, 1)[0]]
