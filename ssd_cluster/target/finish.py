"""When a choice ends, decided token by token, and the text that its tokens make.

A burst may hold an end in its middle: tokens behind the end are cut before anything is committed. An end-of-sequence
or stop token counts in usage and stays in ``token_ids`` but is no text. The end depends on text only when stop strings
are watched; without them text is made after the commit has left (rule 8 of the draft link).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.text.detokenizer import IncrementalDetokenizer
from ssd_cluster.text.stops import StopMatcher
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import FinishReason


@dataclass(frozen=True, slots=True)
class FinishRules:
    """What ends the choices of one request.

    Attributes:
        eos_ids: end-of-sequence ids of the model; empty with ``ignore_eos``.
        stop_ids: further ids from the request.
        stops: stop strings.
        min_tokens: no stop token is drawn and no stop string is looked for in this many first tokens.
        max_tokens: upper limit of emitted tokens.
    """

    eos_ids: frozenset[int]
    stop_ids: frozenset[int]
    stops: tuple[str, ...]
    min_tokens: int
    max_tokens: int

    @classmethod
    def of(cls, params: SamplingParams, eos_ids: Sequence[int]) -> FinishRules:
        """Rules of a request against a model with the given end-of-sequence ids."""
        return cls(
            frozenset() if params.ignore_eos else frozenset(eos_ids),
            frozenset(params.stop_token_ids),
            params.stop,
            params.min_tokens,
            params.max_tokens,
        )

    @property
    def ending_ids(self) -> tuple[int, ...]:
        """Every id that ends the output, ascending: masked before ``min_tokens``, and told to the draft."""
        return tuple(sorted(self.eos_ids | self.stop_ids))


@dataclass(frozen=True, slots=True)
class Accepted:
    """How many tokens of a burst are emitted, and why the choice ends with the last of them, if it does."""

    count: int
    reason: FinishReason | None = None
    stop_reason: str | int | None = None


class OutputState:
    """Emitted tokens of one choice: counts them, finds the end, makes the text.

    ``accept`` and ``take_text`` alternate: every accepted burst is turned into text exactly once.
    """

    def __init__(self, rules: FinishRules, tokenizer: Tokenizer) -> None:
        self.rules = rules
        self.count = 0
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._matcher = StopMatcher(rules.stops) if rules.stops else None
        self._unread: list[int] = []
        self._text: list[str] = []
        self._ended = False

    def accept(self, tokens: Sequence[int]) -> Accepted:
        """Take tokens one by one until one of them ends the choice; call ``take_text`` before the next burst."""
        rules = self.rules
        for index, token in enumerate(tokens):
            self.count += 1
            if token in rules.eos_ids or token in rules.stop_ids:
                stop_reason = None if token in rules.eos_ids else token
                return self._end(Accepted(index + 1, FinishReason.STOP, stop_reason))
            if self._matcher is None:
                self._unread.append(token)
            else:
                stopped = self._watch(self._matcher, token)
                if stopped is not None:
                    return self._end(Accepted(index + 1, FinishReason.STOP, stopped), flush=False)
            if self.count >= rules.max_tokens:
                return self._end(Accepted(index + 1, FinishReason.LENGTH))
        return Accepted(len(tokens))

    def take_text(self) -> str:
        """Text that became final with the tokens accepted since the last call; held-back text comes with the end."""
        if self._unread:
            self._text.extend(self._detokenizer.push(token) for token in self._unread)
            self._unread.clear()
        if self._ended and self._matcher is None:
            self._text.append(self._detokenizer.flush())
            self._ended = False
        text = "".join(self._text)
        self._text.clear()
        return text

    def abandon(self) -> str:
        """End the choice from outside (abort); return the text that was held back."""
        if self._matcher is not None:
            self._end(Accepted(0, FinishReason.ABORT))
        self._ended = True
        return self.take_text()

    def _watch(self, matcher: StopMatcher, token: int) -> str | None:
        """Add the token's text; return the stop string that is complete with it."""
        text = self._detokenizer.push(token)
        if self.count <= self.rules.min_tokens:
            self._text.append(text)
            return None
        safe, stopped = matcher.push(text)
        self._text.append(safe)
        return stopped

    def _end(self, accepted: Accepted, flush: bool = True) -> Accepted:
        """Finish the text. Bytes that were held back may still complete a stop string."""
        self._ended = True
        if self._matcher is None or not flush:
            return accepted
        safe, stopped = self._matcher.push(self._detokenizer.flush())
        self._text.append(safe)
        if stopped is None:
            self._text.append(self._matcher.flush())
        elif accepted.reason is FinishReason.LENGTH:
            return Accepted(accepted.count, FinishReason.STOP, stopped)
        return accepted
