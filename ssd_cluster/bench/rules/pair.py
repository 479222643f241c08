"""Both models of a pair in this process, on the same cores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.text.pairs import require_same_ids
from ssd_cluster.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A target and a draft with one tokenizer.

    Attributes:
        names: target id of each usable column of the draft's logits; None: a column is its id.
        columns: usable columns of the draft's logits.
        vocabulary: ids that the tokenizer knows.
    """

    target: ModelRunner
    draft: ModelRunner
    tokenizer: Tokenizer
    names: Tensor | None
    columns: int
    vocabulary: int

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.eos_ids)

    @property
    def max_context(self) -> int:
        """Positions that both models have."""
        return min(self.target.max_context, self.draft.max_context)

    @property
    def draft_ids(self) -> int:
        """Number of ids that the draft's noise covers."""
        return self.columns if self.names is None else self.vocabulary

    def encode(self, prompt: str, raw: bool) -> list[int]:
        """Ids of a user's turn in the chat template, or of plain text."""
        if raw:
            return self.tokenizer.encode_prompt(prompt)
        return self.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])

    def close(self) -> None:
        """Drop both models."""
        self.target.close()
        self.draft.close()


def load_pair(target: str, draft: str, dtype: DType, cores: tuple[int, ...] | None) -> LoadedPair:
    """Load both models and give the calling thread ``cores`` (None: leave it where it is).

    Raises:
        PairMismatch: the tokenizers differ.
        CheckpointError: a model is missing or broken.
    """
    require_same_ids(target, draft)
    tokenizer = Tokenizer.load(resolve_checkpoint(target))
    big, small = (load_runner(ModelSettings(path=path, dtype=dtype, cores=cores)) for path in (target, draft))
    big.pin()
    vocabulary = min(tokenizer.vocabulary, big.config.vocab_size)
    names = small.output_ids
    if names is not None:
        names = names[names < vocabulary].cpu()
    columns = min(small.config.vocab_size, vocabulary) if names is None else len(names)
    return LoadedPair(big, small, tokenizer, names, columns, vocabulary)
