"""What a target writes, recorded once: from its texts follow the outcomes of all verifications of a lossless engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path

from ssd_cluster.bench.rules.plan import Prompt
from ssd_cluster.bench.store import Record, Store
from ssd_cluster.errors import ConfigError

_LEAST = 2


@dataclass(frozen=True, slots=True)
class Text:
    """One recorded answer.

    Attributes:
        prompt: token ids.
        output: what followed; it ends with an end token or after as many tokens as were asked for.
        seed: of its noise; the draft of a replaying target draws with the same.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The texts of one temperature and what they were drawn with.

    Attributes:
        target: whose texts, as it was named.
        tokenizer: hash of its tokenizer.
    """

    target: str
    tokenizer: str
    temperature: float
    top_p: float
    top_k: int
    ignore_eos: bool
    texts: tuple[Text, ...]


def text_key(temperature: float, prompt: Prompt) -> str:
    """Name of one text's record."""
    return f"T={temperature:g}|{prompt.key}"


def record_missing(
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    store: Store,
    start: Callable[[Prompt, float], Future[Record]],
    batch: int,
    progress: Callable[[str], None],
) -> int:
    """Record the texts that the store lacks, at most ``batch`` at a time, each kept as soon as it is there.

    Args:
        prompts, temperatures: every pair of them is one text.
        store: is continued.
        start: has the target write one text.
        batch: most at a time.
        progress: told one line per text.

    Returns:
        How many were recorded.
    """
    todo = [(p, t) for t in temperatures for p in prompts if text_key(t, p) not in store]
    running: dict[Future[Record], str] = {}
    done = 0
    for prompt, temperature in todo:
        running[start(prompt, temperature)] = text_key(temperature, prompt)
        while len(running) >= batch:
            done += _collect(running, store)
            progress(f"{done}/{len(todo)} texts recorded")
    while running:
        done += _collect(running, store)
        progress(f"{done}/{len(todo)} texts recorded")
    return done


def _collect(running: dict[Future[Record], str], store: Store) -> int:
    finished, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        store.add(running.pop(future), future.result())
    return len(finished)


def read_outcomes(path: Path, temperature: float) -> Outcomes:
    """The texts of one temperature in a file that ``--record`` wrote; those of a single token are left out.

    Raises:
        ConfigError: the file cannot be read, was not written by ``--record``, or has no texts of this temperature.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings, records = content["settings"], content["records"]
        texts = tuple(_text(record) for record in records.values() if record["temperature"] == temperature)
        found = Outcomes(
            target=str(settings["target"]),
            tokenizer=str(settings["tokenizer"]),
            temperature=temperature,
            top_p=float(settings["top_p"]),
            top_k=int(settings["top_k"]),
            ignore_eos=bool(settings["ignore_eos"]),
            texts=tuple(text for text in texts if len(text.output) >= _LEAST),
        )
        known = sorted({record["temperature"] for record in records.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} holds no recorded outcomes ({error!r}): make them with --record"
        raise ConfigError(message, param="outcomes") from error
    if not found.texts:
        raise ConfigError(f"{path} has texts of temperatures {known}, none of {temperature:g}", param="temperature")
    return found


def _text(record: Record) -> Text:
    return Text(_ids(record["prompt"]), _ids(record["output"]), int(record["seed"]))


def _ids(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
