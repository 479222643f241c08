"""A pair in ratio mode, and the exact law of what plain decoding would say: so few ids that texts can be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import Law, Message
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.types import Mode
from support.engine_pair import SteppedPair, draft_settings
from support.equality import last_logits
from support.target_rig import Client, Rig, request
from support.tiny import make_checkpoint, perturb

VOCABULARY = 4
PROMPT = (3, 2, 3, 3)
DOMAIN = "tests"


def tiny_pair(folder: Path, noise: float = 0.4, **shape: Any) -> tuple[Rig, Path]:
    """A target of ``VOCABULARY`` ids, and the folder of a draft that differs from it (total variation about 0.3)."""
    fields: dict[str, Any] = {"vocab": VOCABULARY, "layers": 1, "hidden": 16, "heads": 2, "kv_heads": 1} | shape
    target = make_checkpoint(folder / "target", max_context=64, **fields)
    return Rig.load(target), perturb(target, folder / "draft", noise)


def markov_pair(folder: Path, p: Sequence[Sequence[float]], q: Sequence[Sequence[float]]) -> tuple[Rig, Path]:
    """Target and draft whose next token depends on the last one only: row i of ``p`` and ``q`` follows token i."""
    return Rig.load(_markov(folder / "target", p)), _markov(folder / "draft", q)


def _markov(folder: Path, table: Sequence[Sequence[float]]) -> Path:
    ids = len(table)
    make_checkpoint(folder, vocab=ids, layers=1, hidden=16, heads=2, kv_heads=1, max_context=64)
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        tensors[name] = torch.zeros_like(tensors[name])
    tensors["model.norm.weight"] = torch.ones(16)
    tensors["model.embed_tokens.weight"] = torch.eye(ids, 16)  # the norm makes 4 e_i of e_i
    tensors["lm_head.weight"] = torch.zeros(ids, 16)
    tensors["lm_head.weight"][:, :ids] = torch.tensor(table).clamp(min=1e-9).log().T / 4
    save_file(tensors, folder / "model.safetensors")
    return folder


class RatioPair(SteppedPair):
    """Target and draft of one trust domain, stepped in turn; while the target waits, the draft is stepped.

    ``spoil`` sees every law that the draft sends and returns what arrives instead.
    """

    def __init__(
        self,
        rig: Rig,
        draft: Path | DraftSettings,
        speculation: dict[str, Any],
        *,
        mode: Mode = Mode.SSD,
        spoil: Callable[[Law], Law | None] | None = None,
        prompt: Sequence[int] = PROMPT,
        **settings: Any,
    ) -> None:
        self.rig = rig
        self.prompt = prompt
        self._spoil = spoil
        self.inboxes = [Inbox()]
        if isinstance(draft, Path):
            draft = draft_settings(draft, trust_domain=DOMAIN, session_credit=256, row_credit=4096, max_step_rows=2048)
        self.drafts = [load_draft(draft, self.inboxes[0])]
        fields = {
            "k": 3,
            "rows": 6,
            "miss_policy": "never_wait",
            "fallback": "none",
            "kind": "sparse",
            "wait_ms": 10_000.0,
        } | speculation
        settings = {"trust_domain": DOMAIN, "max_batch": 128} | settings
        self.engine = rig.engine(mode, [self._connect], speculation=fields, **settings)
        self.engine._inbox.wait = self._step_drafts  # type: ignore[method-assign]

    def _connect(self, target_inbox: Inbox) -> Stream:
        target_end, draft_end = pair(target_inbox, self.inboxes[0], codec=True)
        send, spoil = draft_end.send, self._spoil

        def send_spoilt(message: Message) -> None:
            spoilt = spoil(message) if spoil is not None and isinstance(message, Law) else message
            if spoilt is not None:
                send(spoilt)

        draft_end.send = send_spoilt  # type: ignore[method-assign]
        return target_end

    def _step_drafts(self, timeout_s: float) -> bool:
        return sum(draft.step() for draft in self.drafts) > 0

    def sample(self, n: int, length: int, *, first_seed: int = 0, **params: Any) -> list[tuple[int, ...]]:
        """``n`` continuations of the prompt of ``length`` tokens, each with a seed of its own."""
        return [tuple(client.choices[0].token_ids) for client in self.clients(n, length, first_seed, **params)]

    def clients(self, n: int, length: int, first_seed: int = 0, **params: Any) -> list[Client]:
        fields = {"temperature": 1.0, "max_tokens": length, "ignore_eos": True} | params
        requests = [request(f"s{first_seed + i}", self.prompt, seed=first_seed + i, **fields) for i in range(n)]
        return [client for i in range(0, n, 128) for client in self.run(requests[i : i + 128])]

    def laws(self) -> dict[str, float]:
        """What became of the laws so far."""
        return {result: self.value("ssd:laws_total", result=result) for result in ("used", "late", "refused")}


def plain_law(rig: Rig, length: int, prompt: Sequence[int] = PROMPT, **params: Any) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of a prompt under plain decoding, from the target's own rows."""
    row = RowParams(**({"temperature": 1.0} | params))
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for text, p in law.items():
            for token, q in enumerate(row_law(rig, [*prompt, *text], row)):
                if p * q > 0:
                    longer[(*text, token)] = p * q
        law = longer
    return law


def row_law(rig: Rig, tokens: Sequence[int], row: RowParams) -> list[float]:
    """The law of the token after ``tokens``."""
    return process(last_logits(rig.runner, tokens), [row], rig.tokenizer.vocabulary)[0].double().tolist()


def chi_square(samples: Sequence[tuple[int, ...]], law: dict[tuple[int, ...], float], least: float = 5.0) -> float:
    """p-value of Pearson's test; cells that expect fewer than ``least`` samples are pooled.

    A sample outside the support of the law has p-value 0.
    """
    counts, n = Counter(samples), len(samples)
    if any(text not in law for text in counts):
        return 0.0
    observed, expected, rest_observed, rest_expected = [], [], 0.0, 0.0
    for text, p in law.items():
        if n * p >= least:
            observed.append(float(counts[text]))
            expected.append(n * p)
        else:
            rest_observed += counts[text]
            rest_expected += n * p
    if rest_expected > 0:
        observed.append(rest_observed)
        expected.append(rest_expected)
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def part(law: dict[tuple[int, ...], float], which: slice) -> dict[tuple[int, ...], float]:
    """The law of some tokens of a text."""
    found: dict[tuple[int, ...], float] = {}
    for text, p in law.items():
        found[text[which]] = found.get(text[which], 0.0) + p
    return found
