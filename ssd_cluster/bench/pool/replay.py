"""A model runner without a model: after a given time its logits make the recorded token certain. For the benchmark.

The whole target engine runs on it: sessions, lookups, commits, waits, batches, prefix cache. Its forward alone is
replaced. What it "knows" of a sequence are the tokens that were written to the sequence's pages, as with real keys and
values, so that an engine which mixed up its pages, or emitted a wrong token, would be noticed at once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ssd_cluster.bench.pool.outcomes import Text
from ssd_cluster.bench.simulator.times import StepTime
from ssd_cluster.config import ModelSettings
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.kv import BlockPool
from ssd_cluster.model.paged import as_tensor, page_slots
from ssd_cluster.model.runner import ModelRunner

Ids = npt.NDArray[np.int64]
_CERTAIN = 1e4


class Recall:
    """Finds the recorded text that a sequence follows."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._texts: dict[int, dict[bytes, list[Ids]]] = defaultdict(lambda: defaultdict(list))
        for text in texts:
            prompt = np.array(text.prompt, dtype=np.int64)
            whole = np.array((*text.prompt, *text.output), dtype=np.int64)
            self._texts[len(prompt)][prompt.tobytes()].append(whole)

    def text(self, committed: Ids) -> Ids:
        """The text that starts with ``committed``, prompt and output.

        Raises:
            ValueError: there is none, so the engine has left the recorded text.
        """
        for length, by_prompt in self._texts.items():
            for whole in by_prompt.get(committed[:length].tobytes(), ()):
                if len(committed) < len(whole) and np.array_equal(committed, whole[: len(committed)]):
                    return whole
        raise ValueError(f"a sequence of {len(committed)} tokens follows no recorded text")


class ReplayRunner(ModelRunner):
    """Takes ``verify`` per forward and says what was recorded.

    Args:
        settings: KV capacity, context, cores; its path is not loaded.
        config: shape of the recorded model.
        recall: the texts. Two of them must not have the same prompt and different outputs.
        verify: T_v by tokens of the forward.
        clock, sleep: seconds.
    """

    def __init__(
        self,
        settings: ModelSettings,
        config: DecoderConfig,
        recall: Recall,
        verify: StepTime,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # Not ModelRunner's: there are no weights and no keys and values.
        self.config = config
        self.pool = BlockPool(settings.kv_tokens // settings.block_size, settings.block_size, settings.prefix_cache)
        positions = self.pool.n_total * self.pool.block_size
        self.max_context = min(config.max_context, positions)
        self.tails = self.output_ids = None
        self.model_hash = "replay"
        self.kernels = None
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self._settings = settings
        self._kv = self._decoder = None
        self._written = torch.full((positions,), -1, dtype=torch.int64)
        self._recall = recall
        self._verify = verify
        self._clock = clock
        self._sleep = sleep
        self._logits = torch.zeros((0, config.vocab_size))
        self._certain: list[int] = []

    def forward(self, batch: ForwardBatch) -> Tensor:
        """As ``ModelRunner.forward``; the result is valid until the next call.

        Raises:
            ValueError: a sequence has left the recorded text.
        """
        until = self._clock() + self._verify.seconds(batch.n_tokens)
        following: list[int] = []
        for span in batch.spans:
            if not isinstance(span, CausalSpan):
                raise ValueError("a replaying target runs causal spans only")
            following += self._run(span)
        logits = self._make_logits(following)
        self._sleep(max(0.0, until - self._clock()))
        return logits

    def _run(self, span: CausalSpan) -> list[int]:
        """Write a span; the recorded token behind each of its tokens that has logits.

        Behind a proposed token that is wrong, or behind the end of the text, no token matters.
        """
        end = span.start + len(span.tokens)
        slots = as_tensor(page_slots(span.block_table, 0, end, self.pool.block_size))
        self._written[slots[span.start :]] = torch.tensor(span.tokens)
        if not span.n_logits:
            return []
        committed = span.start + span.logits_from + 1
        text = self._recall.text(self._written[slots[:committed]].numpy())
        return [int(text[min(place, len(text) - 1)]) for place in range(committed, committed + span.n_logits)]

    def _make_logits(self, following: list[int]) -> Tensor:
        """One row per token, in which it is certain; rows are reused, since clearing them would take long."""
        if len(following) > len(self._logits):
            self._logits = torch.zeros((2 * len(following), self.config.vocab_size))
            self._certain = []
        for row, token in enumerate(self._certain):
            self._logits[row, token] = 0.0
        for row, token in enumerate(following):
            self._logits[row, token] = _CERTAIN
        self._certain = following
        return self._logits[: len(following)]
