"""The recorded oracle belongs to the prompts, the model and the tokenizer of this project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.record_oracle import PROMPTS, read_prompts, record, write

from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.text import Tokenizer

ORACLE = PROMPTS.parent / "oracle_smollm2.json"


def test_prompts_are_a_hundred_varied_ones() -> None:
    prompts = read_prompts()
    assert len(prompts) == 100
    assert len({prompt["id"] for prompt in prompts}) == len({prompt["prompt"] for prompt in prompts}) == 100
    assert len({prompt["category"] for prompt in prompts[:8]}) == 8
    assert all(prompt.keys() == {"id", "category", "prompt"} for prompt in prompts)


def test_oracle_has_one_row_per_prompt() -> None:
    oracle = json.loads(ORACLE.read_text())
    assert [row["id"] for row in oracle["rows"]] == [prompt["id"] for prompt in read_prompts()]
    for row in oracle["rows"]:
        ended = row["output"][-1] in (0, 2)
        assert len(row["output"]) == oracle["max_tokens"] or (ended and len(row["output"]) < oracle["max_tokens"])
        assert not {0, 2} & set(row["output"][:-1])


@pytest.mark.real
def test_chat_template_gives_the_recorded_prompt_ids() -> None:
    tokenizer = Tokenizer.load(resolve_checkpoint("smollm2-135m-instruct"))
    oracle = json.loads(ORACLE.read_text())
    for prompt, row in zip(read_prompts(), oracle["rows"], strict=True):
        assert tokenizer.apply_chat_template([{"role": "user", "content": prompt["prompt"]}]) == row["prompt"]


@pytest.mark.real
def test_recording_again_gives_the_committed_rows(tmp_path: Path) -> None:
    committed = json.loads(ORACLE.read_text())
    again = record("smollm2-135m-instruct", read_prompts(limit=2), 4)
    assert again["checkpoint"] == committed["checkpoint"]
    assert again["checkpoint"] == open_checkpoint(resolve_checkpoint("smollm2-135m-instruct")).hash
    for row, known in zip(again["rows"], committed["rows"], strict=False):
        assert row["prompt"] == known["prompt"]
        assert row["output"] == known["output"][:4]
    write(again, tmp_path / "oracle.json")
    assert json.loads((tmp_path / "oracle.json").read_text()) == again
