"""Stage 3: fit the draft to the target's laws. Checkpoints let an interrupted run go on where it was."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ssd_cluster.distill.agreement import Agreement
from ssd_cluster.distill.data import Batch, Batches
from ssd_cluster.distill.settings import DistillSettings
from ssd_cluster.distill.shards import OWN, Document
from ssd_cluster.distill.student import Student
from ssd_cluster.errors import SsdClusterError
from ssd_cluster.model.device import resolve_device, resolve_dtype


class Trainer:
    """Trains one student on fixed documents. ``run`` may be called again after an interruption."""

    def __init__(
        self,
        settings: DistillSettings,
        initial: Path,
        folder: Path,
        documents: Sequence[Document],
        progress: Callable[[str], None],
    ) -> None:
        self._settings, self._s = settings, settings.train
        self._folder = folder
        self._progress = progress
        self._device = resolve_device(settings.device)
        self.student = Student(initial, resolve_dtype(settings.dtype, self._device)).to(self._device)
        ids = None if self.student.head_ids is None else self.student.head_ids.numpy()
        vocabulary = self.student.config.vocab_size
        held_out, training = split_documents(documents, self._s.held_out, settings.seed)
        self._own, self._bulk, self._held_out = (
            Batches(chosen, ids, vocabulary, self._s.batch_tokens)
            for chosen in (
                [d for d in training if d.source == OWN],
                [d for d in training if d.source != OWN],
                held_out,
            )
        )
        own, bulk = len(self._own.split()), len(self._bulk.split())
        self._total = max(1, round(self._s.passes * own) + self._s.bulk_passes * bulk)
        trained = [p for p in self.student.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(
            trained, lr=self._s.learning_rate, betas=(0.9, 0.95), weight_decay=self._s.weight_decay, fused=True
        )
        self._step, self._best, self._since_best = 0, math.inf, 0
        self.history: list[dict[str, Any]] = []

    @property
    def done(self) -> bool:
        return self._step >= self._total or self._since_best >= self._s.patience

    def run(self) -> bool:
        """Train until the end, the early stop, or ``max_minutes``; True if the training is finished."""
        self._resume()
        torch.set_num_threads(self._settings.threads)
        deadline = time.monotonic() + 60 * (self._s.max_minutes or math.inf)
        began, seen = time.monotonic(), 0
        for batches, group in itertools.islice(self._groups(), self._step, None):
            if self.done or time.monotonic() >= deadline:
                break
            batch = batches.of(group)
            self._train(batch)
            seen += int(batch.lengths.sum())
            if self._step % self._s.evaluate_every == 0 or self._step == self._total:
                self._evaluate(seen / (time.monotonic() - began))
        self._checkpoint()
        return self.done

    def _groups(self) -> Iterator[tuple[Batches, list[int]]]:
        """The batches of one pass after the other, without end; scored text is in the first ``bulk_passes``."""
        own = [(self._own, group) for group in self._own.split()]
        bulk = [(self._bulk, group) for group in self._bulk.split()]
        for number in itertools.count():
            groups = own + bulk if number < self._s.bulk_passes else list(own)
            random.Random(self._settings.seed + number).shuffle(groups)
            yield from groups

    def _train(self, batch: Batch) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = self._s.learning_rate * self._schedule()
        batch = batch.to(self._device)
        loss = self.student.loss(batch, self._s.cross_entropy)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimiser.step()
        self._step += 1

    def _schedule(self) -> float:
        """Linear warm-up, then cosine decay to a tenth."""
        if self._step < self._s.warmup_steps:
            return (self._step + 1) / self._s.warmup_steps
        done = (self._step - self._s.warmup_steps) / max(1, self._total - self._s.warmup_steps)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0)))

    @property
    def best(self) -> Path:
        """Folder of the checkpoint with the lowest held-out loss so far."""
        return self._folder / "best"

    def measure_best(self) -> dict[str, Any]:
        """Agreement of the best checkpoint with the target on the held-out documents."""
        return self._measure(Student(self.best, self.student.dtype).to(self._device))

    @torch.no_grad()
    def _measure(self, student: Student) -> dict[str, Any]:
        agreement = Agreement()
        for batch in self._held_out.epoch(0):
            batch = batch.to(self._device)
            agreement.add(student(batch), batch)
        return agreement.means()

    def _evaluate(self, rate: float) -> None:
        means = self._measure(self.student)
        self.history.append({"step": self._step, **means})
        self._progress(
            f"train: step {self._step}/{self._total}, held-out loss {means['loss']:.3f}, greedy match "
            f"{means['greedy_match']:.3f}, overlap {means['overlap']['1']:.3f}, {rate:.0f} tokens/s"
        )
        if means["loss"] < self._best:
            self._best, self._since_best = means["loss"], 0
            self.student.save(self.best)
        else:
            self._since_best += 1
        self._checkpoint()

    def _checkpoint(self) -> None:
        state: dict[str, Any] = {
            "student": self.student.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "step": self._step,
            "best": self._best,
            "since_best": self._since_best,
            "history": self.history,
            "settings": self._key(),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / "state.part"
        try:
            torch.save(state, partial)
            partial.replace(self._folder / "state.pt")
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise SsdClusterError(
                f"cannot write {self._folder}: {error}. Free space and run the command again: "
                "the last checkpoint is kept."
            ) from error

    def _resume(self) -> None:
        path = self._folder / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self._device, weights_only=True)
        if state["settings"] != self._key():
            raise SsdClusterError(f"{path} belongs to other settings; delete it or choose another folder")
        self.student.load_state_dict(state["student"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._step, self._best, self._since_best = state["step"], state["best"], state["since_best"]
        self.history = state["history"]
        self._progress(f"train: going on from step {self._step}")

    def _key(self) -> str:
        return json.dumps(
            [
                self._settings.shape.model_dump(mode="json"),
                self._s.model_dump(mode="json", exclude={"max_minutes", "patience", "evaluate_every"}),
                self._total,
            ]
        )


def split_documents(documents: Sequence[Document], held_out: float, seed: int) -> tuple[list[Document], list[Document]]:
    """(held-out, training) documents, about ``held_out`` of them and at least one held out.

    Only what the target wrote is held out. A document's side follows from the seed and its index alone, so it stays the
    same when more are collected.
    """
    generator = random.Random(seed)
    draws = [generator.random() for _ in documents]
    limit = max(
        held_out, min(d for d, document in zip(draws, documents, strict=True) if document.source == OWN) + 1e-12
    )
    sides = [draw < limit and document.source == OWN for draw, document in zip(draws, documents, strict=True)]
    return list(itertools.compress(documents, sides)), [d for d, held in zip(documents, sides, strict=True) if not held]
