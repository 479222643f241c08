"""The stages of a distillation in order. Each keeps what it finished in the work folder and is skipped when done."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssd_cluster.distill.collect import collect
from ssd_cluster.distill.initialise import check_start, frequent_ids, initialise
from ssd_cluster.distill.report import draw_report, measure_draft, write_report
from ssd_cluster.distill.score import score
from ssd_cluster.distill.settings import DistillSettings
from ssd_cluster.distill.shards import Document, read_shard
from ssd_cluster.distill.train import Trainer
from ssd_cluster.errors import SsdClusterError
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.packaged import pack_draft
from ssd_cluster.text.tokenizer import Tokenizer

Progress = Callable[[str], None]


@dataclass(slots=True)
class Distillation:
    """One run of ``ssd-cluster distill``.

    Attributes:
        settings: what to build.
        out: folder of the finished draft; appears whole, with its report, at the end.
        work: folder of shards, training state and timings.
        progress: receives one line per event.
        pack: folder for the int8 form without the target's embeddings, or None.
        data: folder of shards that other runs may share; None: inside ``work``.
    """

    settings: DistillSettings
    out: Path
    work: Path
    progress: Progress
    pack: Path | None = None
    data: Path | None = None
    minutes: dict[str, float] = field(default_factory=dict)

    def run(self) -> bool:
        """All stages; False if the training ran out of ``max_minutes`` and has to be called again.

        Raises:
            SsdClusterError: a stage failed; finished stages are kept.
        """
        if self.out.exists() and any(self.out.iterdir()):
            raise SsdClusterError(f"{self.out} is not empty; give a new folder or delete it")
        self._load_minutes()
        documents = self._collect()
        initial = self._timed("initialise", lambda: self._initialise(documents))
        trainer = Trainer(self.settings, initial, self.work / "train", documents, self.progress)
        if not self._timed("train", trainer.run):
            self.progress("train: out of time; run the command again to go on")
            return False
        self._timed("report", lambda: self._report(trainer))
        self._publish(trainer.best)
        if self.pack is not None:
            pack_draft(self.out, resolve_checkpoint(self.settings.target), self.pack)
            write_report(self.work / "report", self.pack)
        self.progress(f"done: {self.out}")
        return True

    def _collect(self) -> list[Document]:
        folder = self.data or self.work / "data"
        scored = self._timed("score", lambda: score(self.settings, folder, self.progress))
        written = self._timed("collect", lambda: collect(self.settings, folder, self.progress))
        own = [document for path in written for document in read_shard(path, self.settings.collect_key())]
        return own + [document for path in scored for document in read_shard(path, self.settings.score_key())]

    def _initialise(self, documents: list[Document]) -> Path:
        target = resolve_checkpoint(self.settings.target)
        if self.settings.shape.start is not None:
            return check_start(resolve_checkpoint(self.settings.shape.start), target, self.settings.shape)
        shape = self.settings.shape
        out = self.work / f"initial-{shape.key()}"
        if (out / "model.safetensors").exists():
            return out
        ids = None
        if shape.head is not None:
            vocabulary = int(open_checkpoint(target).config["vocab_size"])
            ids = frequent_ids(documents, vocabulary, shape.head, Tokenizer.load(target).eos_ids)
        self.progress(f"initialise: layers {list(shape.layers)}, head {shape.head or 'full'}")
        return initialise(target, out, shape, ids)

    def _report(self, trainer: Trainer) -> None:
        """Measure the best checkpoint and keep the result in the work folder."""
        report = {
            "settings": self.settings.model_dump(mode="json", exclude={"collect": {"prompts"}}),
            "minutes": dict(self.minutes),
            "held_out": trainer.measure_best(),
            "history": trainer.history,
        }
        report |= measure_draft(self.settings, trainer.best, self.progress)
        draw_report(report, self.work / "report")

    def _publish(self, best: Path) -> None:
        """The best checkpoint and its report become the output folder by one rename."""
        partial = self.out.with_name(self.out.name + ".part")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(best, partial)
            write_report(self.work / "report", partial)
            if self.out.exists():
                self.out.rmdir()
            partial.rename(self.out)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise SsdClusterError(
                f"cannot write {self.out}: {error}. Free space and run the command again: all stages are kept."
            ) from error

    def _timed(self, stage: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return work()
        finally:
            self.minutes[stage] = self.minutes.get(stage, 0.0) + (time.monotonic() - began) / 60
            self.work.mkdir(parents=True, exist_ok=True)
            (self.work / "minutes.json").write_text(json.dumps(self.minutes), encoding="utf-8")

    def _load_minutes(self) -> None:
        path = self.work / "minutes.json"
        if path.exists():
            self.minutes.update(json.loads(path.read_text(encoding="utf-8")))
