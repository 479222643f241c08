"""Continuous batching: which choices run in the next forward, and with how many tokens.

Running choices come first, prompts are prefilled in chunks beside them, new ones are admitted while blocks are free.
When blocks run out, the last in order (lowest priority, youngest) gives its blocks back and waits at its old place in
the queue; its output stays output.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from ssd_cluster.errors import OutOfBlocks
from ssd_cluster.model.batch import CausalSpan
from ssd_cluster.model.kv import BlockPool
from ssd_cluster.target.sequence import Choice


@dataclass(slots=True)
class Row:
    """What one choice runs in a forward.

    Attributes:
        choice: whose tokens.
        n_run: committed tokens to run.
        n_proposed: proposed tokens after them; 0 unless the row decides.
        decides: the last committed token is among them, so the forward yields new tokens.
    """

    choice: Choice
    n_run: int
    n_proposed: int
    decides: bool

    @property
    def n_tokens(self) -> int:
        return self.n_run + self.n_proposed

    @property
    def proposed(self) -> tuple[int, ...]:
        """The proposed tokens that are verified."""
        return self.choice.proposal.tokens[: self.n_proposed]

    def span(self) -> CausalSpan:
        """The row's part of the forward; logits for the last committed token and every proposed one."""
        choice, start = self.choice, self.choice.blocks.length
        tokens = choice.tokens[start : start + self.n_run]
        tokens.extend(self.proposed)
        return CausalSpan(tokens, start, choice.blocks.table, self.n_run - 1 if self.decides else len(tokens))


class Scheduler:
    """Queues of one engine.

    Args:
        pool: KV blocks.
        max_batch: most running choices.
        step_tokens: most tokens per forward; running choices get one each in any case.
        prefill_chunk: most prompt tokens of one choice per forward.
        share_prompts: choices of one request wait until the first has prefilled their prompt.
    """

    def __init__(
        self, pool: BlockPool, *, max_batch: int, step_tokens: int, prefill_chunk: int, share_prompts: bool
    ) -> None:
        self._pool = pool
        self._max_batch = max_batch
        self._step_tokens = step_tokens
        self._prefill_chunk = prefill_chunk
        self._share_prompts = share_prompts
        self.waiting: list[Choice] = []
        self.running: list[Choice] = []
        self._n_preempted = 0

    def add(self, choice: Choice) -> None:
        """Queue a choice at its place."""
        bisect.insort(self.waiting, choice, key=_order)

    def remove(self, choice: Choice) -> None:
        """Take an ended choice out and free its blocks."""
        for queue in (self.running, self.waiting):
            if choice in queue:
                queue.remove(choice)
        choice.blocks.release()

    def take_preemptions(self) -> int:
        """Preemptions since the last call."""
        count, self._n_preempted = self._n_preempted, 0
        return count

    def plan(self) -> list[Row]:
        """Rows of the next forward, each with its blocks; empty if there is nothing to run.

        Side effects: choices are admitted and preempted.
        """
        budget = self._step_tokens - sum(1 for choice in self.running if choice.pending == 1)
        rows: dict[int, Row] = {}
        for choice in list(self.running):
            if choice.pending == 1:
                n_proposed = max(0, min(len(choice.proposal.tokens), budget))
                budget -= n_proposed
                self._place(Row(choice, 1, n_proposed, True), rows)
        for choice in list(self.running):
            if choice.pending > 1 and budget > 0:
                budget -= self._place(self._prefill(choice, budget), rows)
        while budget > 0 and (admitted := self._admit()) is not None:
            budget -= self._place(self._prefill(admitted, budget), rows)
        return list(rows.values())

    def _prefill(self, choice: Choice, budget: int) -> Row:
        n_run = min(choice.pending, self._prefill_chunk, budget)
        decides = n_run == choice.pending
        room = min(len(choice.proposal.tokens), budget - n_run) if decides else 0
        return Row(choice, n_run, room, decides)

    def _place(self, row: Row, rows: dict[int, Row]) -> int:
        """Get the row's blocks, by preempting if need be, and add it; returns the tokens it takes.

        A proposal is given up before anyone is preempted.
        """
        choice = row.choice
        while choice in self.running:
            try:
                choice.blocks.ensure(choice.blocks.length + row.n_tokens)
            except OutOfBlocks:
                if row.n_proposed:
                    row.n_proposed = 0
                    continue
                victim = self.running[-1]
                self._preempt(victim)
                rows.pop(id(victim), None)
            else:
                rows[id(choice)] = row
                return row.n_tokens
        return 0

    def _preempt(self, choice: Choice) -> None:
        self._n_preempted += 1
        self.running.remove(choice)
        choice.blocks.release()
        self.add(choice)

    def _admit(self) -> Choice | None:
        """Move the first waiting choice that fits into the batch, with its cached prefix attached."""
        if len(self.running) >= self._max_batch:
            return None
        for choice in self.waiting:
            if self._share_prompts and self._sibling_prefills(choice):
                continue
            if not self._fits(choice):
                return None
            self.waiting.remove(choice)
            bisect.insort(self.running, choice, key=_order)
            return choice
        return None

    def _fits(self, choice: Choice) -> bool:
        """Attach the cached prefix and see whether the rest fits, one spare block per running choice included."""
        cached = choice.blocks.attach_prefix(choice.tokens)
        needed = -(-len(choice.tokens) // self._pool.block_size) - len(choice.blocks.table)
        if self.running and needed + len(self.running) > self._pool.n_free:
            choice.blocks.release()
            return False
        if not choice.admitted:
            choice.admitted = True
            if choice.index == 0:
                choice.live.cached_tokens = cached
        return True

    def _sibling_prefills(self, choice: Choice) -> bool:
        """Whether the prompt is being prefilled for a choice of the same request, and for none of them is done."""
        siblings = [other for other in self.running if other.live is choice.live]
        return bool(siblings) and all(other.blocks.length < other.prompt_len - 1 for other in siblings)


def _order(choice: Choice) -> tuple[int, int, int]:
    return choice.order
