"""Record what transformers' own generate continues with: the oracle of the exactness tests.

Run as ``python tests/support/record_oracle.py OUT [--limit N] [--max-tokens M]``. Greedy, float32, eager attention, one
prompt at a time, the chat template applied.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).resolve().parent.parent / "data" / "prompts.jsonl"
MODEL = "smollm2-135m-instruct"


def read_prompts(path: Path = PROMPTS, limit: int | None = None) -> list[dict[str, str]]:
    """The project's prompts: objects with id, category, prompt."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:limit]]


def record(model_name: str, prompts: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
    """Greedy continuations: {"model", "checkpoint", "dtype", "max_tokens", "rows": [{"id", "prompt", "output"}]}.

    ``prompt`` and ``output`` are token ids; an output that is shorter than ``max_tokens`` ends with the EOS token.
    """
    import torch
    import transformers

    from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint

    folder = resolve_checkpoint(model_name, lambda line: print(line, file=sys.stderr))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rows = []
    for number, prompt in enumerate(prompts, start=1):
        messages = [{"role": "user", "content": prompt["prompt"]}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens
            )
        rows.append({"id": prompt["id"], "prompt": ids[0].tolist(), "output": output[0, ids.shape[1] :].tolist()})
        print(f"{number}/{len(prompts)} {prompt['id']}", file=sys.stderr)
    return {
        "model": model_name,
        "checkpoint": open_checkpoint(folder).hash,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "dtype": "float32",
        "max_tokens": max_tokens,
        "rows": rows,
    }


def write(oracle: dict[str, Any], out: Path) -> None:
    """One row per line, so that a change of one continuation is one line of difference."""
    head = {key: value for key, value in oracle.items() if key != "rows"}
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in oracle["rows"])
    out.write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=32)
    arguments = parser.parse_args()
    oracle = record(arguments.model, read_prompts(limit=arguments.limit), arguments.max_tokens)
    write(oracle, arguments.out)


if __name__ == "__main__":
    main()
