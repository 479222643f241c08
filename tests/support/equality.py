"""What the target says without an engine, and the comparison of two runs up to floating-point ties."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.runner import ModelRunner
from ssd_cluster.sampling.coupled import coupled_sample, coupled_scores
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from support.target_rig import Client, Rig

TIE = 1e-4


def last_logits(runner: ModelRunner, tokens: Sequence[int]) -> Tensor:
    """Logits [1, V] after ``tokens``, everything computed anew in the first blocks of the KV memory."""
    blocks = -(-len(tokens) // runner.pool.block_size)
    span = CausalSpan(list(tokens), 0, list(range(blocks)), logits_from=len(tokens) - 1)
    return runner.forward(ForwardBatch([span])).clone()


def naive(rig: Rig, client: Client, choice: int = 0) -> list[int]:
    """The request's output by one full forward per token; end tokens stop it, stop strings are not looked at."""
    params = client.request.params
    assert params.seed is not None
    noise = NoiseSource(params.choice_seed(params.seed, choice), rig.runner.config.vocab_size)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(rig.tokenizer.eos_ids))
    tokens, prompt = list(client.request.prompt_token_ids), len(client.request.prompt_token_ids)
    while len(tokens) - prompt < params.max_tokens:
        banned = tuple(sorted(ends)) if len(tokens) - prompt < params.min_tokens else ()
        row = RowParams.of(params, banned)
        probs = process(last_logits(rig.runner, tokens), [row], rig.tokenizer.vocabulary)
        drawn = coupled_sample(probs, [None if row.greedy else noise.row(len(tokens))])
        tokens.append(int(drawn[0]))
        if tokens[-1] in ends:
            break
    return tokens[prompt:]


def assert_same(rig: Rig, expected: Sequence[Client], got: Sequence[Client], what: str) -> None:
    """Equal tokens, text and reasons for every choice; a difference passes only at a near tie, and is printed."""
    for plain, other in zip(expected, got, strict=True):
        for index, (a, b) in enumerate(zip(plain.choices, other.choices, strict=True)):
            if a.token_ids == b.token_ids:
                assert (a.text, a.reason, a.stop_reason) == (b.text, b.reason, b.stop_reason), what
                continue
            at = next(
                (i for i, (x, y) in enumerate(zip(a.token_ids, b.token_ids, strict=False)) if x != y),
                min(len(a.token_ids), len(b.token_ids)),
            )
            assert at < min(len(a.token_ids), len(b.token_ids)), f"{what}: one output is a prefix of the other"
            gap = score_gap(rig, plain, index, at, a.token_ids[at], b.token_ids[at])
            print(f"tie: {what}, choice {index}, token {at}, gap {gap:.2e}")
            assert gap <= TIE, f"{what}: {a.token_ids[at]} != {b.token_ids[at]} at token {at}, scores {gap:.3g} apart"


def score_gap(rig: Rig, client: Client, choice: int, at: int, one: int, two: int) -> float:
    """Difference of the scores log p + g of two candidates for token ``at`` of a choice (logits when greedy)."""
    params = client.request.params
    prompt, said = client.request.prompt_token_ids, client.choices[choice].token_ids
    tokens = [*prompt, *said[:at]]
    logits = last_logits(rig.runner, tokens)
    if params.temperature == 0:
        return abs(float(logits[0, one] - logits[0, two]))
    assert params.seed is not None
    noise = NoiseSource(params.choice_seed(params.seed, choice), rig.runner.config.vocab_size)
    row = RowParams(temperature=params.temperature)  # without cuts: a tie may lie at the edge of a cut
    scores = coupled_scores(process(logits, [row], rig.tokenizer.vocabulary), noise.row(len(tokens)).unsqueeze(0))
    return float(torch.abs(scores[0, one] - scores[0, two]))
