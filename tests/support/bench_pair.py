"""A tiny pair in one process for the benchmarks of rules, and what its target says alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ssd_cluster.bench.rules.decoding import Continuation, Terms, continue_prompt
from ssd_cluster.bench.rules.pair import LoadedPair, load_pair
from ssd_cluster.bench.rules.rounds import RULES
from ssd_cluster.config import DType
from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import process
from support.model import run_whole
from support.tiny import make_checkpoint, perturb


def tiny_pair(folder: Path, noise: float, **shape: Any) -> LoadedPair:
    """A random target and a draft that resembles it."""
    target = make_checkpoint(folder / "target", **shape)
    return load_pair(str(target), str(perturb(target, folder / "draft", noise)), DType.FLOAT32, None)


def terms(**more: Any) -> Terms:
    """Terms with temperature 1, three drafted tokens, three drafts."""
    return Terms(**({"temperature": 1.0, "k": 3, "drafts": 3, "max_tokens": 12, "ignore_eos": True} | more))


def continued(pair: LoadedPair, prompt: list[int], rule: str, seed: int = 0, **more: Any) -> Continuation:
    """A continuation under a rule of the table."""
    return continue_prompt(pair, prompt, seed, terms(**more), RULES[rule].round)


def next_law(pair: LoadedPair, tokens: list[int], chosen: Terms) -> Tensor:
    """The target's law of the token behind ``tokens``, [1, V]."""
    return process(run_whole(pair.target, tokens)[-1:], [chosen.params], pair.vocabulary)


def plain(pair: LoadedPair, prompt: list[int], seed: int = 0, **more: Any) -> list[int]:
    """What plain decoding says for a seed."""
    chosen = terms(**more)
    noise = None if chosen.params.greedy else NoiseSource(seed, pair.target.config.vocab_size)
    tokens = list(prompt)
    for _ in range(chosen.max_tokens):
        row = None if noise is None else noise.row(len(tokens))
        tokens.append(int(coupled_sample(next_law(pair, tokens, chosen), [row])))
    return tokens[len(prompt) :]
