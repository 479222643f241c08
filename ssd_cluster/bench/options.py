"""Options that the benchmarks share, and what they say about the machine."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ssd_cluster import __version__
from ssd_cluster.bench.handle import Workload
from ssd_cluster.config import DType
from ssd_cluster.errors import ConfigError

T = TypeVar("T", int, float)


def add_workload(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """The pair, the prompts, and how answers are drawn."""
    add_prompts(parser, max_tokens)
    add = parser.add_argument
    add("--target", default="smollm2-135m-instruct", help="folder, .gguf file, hub id or embedded name")
    add("--draft", default="smollm2-135m-draft", help="the same, for the draft")
    add("--dtype", choices=[dtype.value for dtype in DType], default=DType.AUTO.value)


def add_int8(parser: argparse.ArgumentParser) -> None:
    """Whose weights are rounded."""
    parser.add_argument(
        "--int8", choices=["target", "draft", "both"], default=None, help="round the linear layers of these to 8 bits"
    )


def add_prompts(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """The prompts, and how answers are drawn."""
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help='.jsonl file, one object with a string "prompt" per line')
    add("--limit", type=positive, default=None, help="use the first N prompts only")
    add("--max-tokens", type=positive, default=max_tokens, help="tokens per answer (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of the first prompt; the next has the next seed")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--raw", action="store_true", help="prompts are text to continue, not turns of a chat")
    add("--ignore-eos", action="store_true", help="always generate --max-tokens tokens")


def workload_grid(
    arguments: argparse.Namespace, prompts: tuple[str, ...], temperatures: Sequence[float], batches: Sequence[int]
) -> list[Workload]:
    """What ``add_workload`` asks for, once per temperature and batch size."""
    return [
        Workload(
            prompts=prompts,
            max_tokens=arguments.max_tokens,
            temperature=temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            seed=arguments.seed,
            batch=batch,
            raw=arguments.raw,
            ignore_eos=arguments.ignore_eos,
        )
        for temperature in temperatures
        for batch in batches
    ]


def machine() -> dict[str, str]:
    """What a result should say about where it was measured."""
    return {
        "cpu": cpu_name(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "version": __version__,
    }


def cpu_name() -> str:
    """The CPU's model name, or what the platform calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        line = ""
    return line.partition(":")[2].strip() or platform.processor() or platform.machine()


def progress(line: str) -> None:
    """A line for who waits; results go to stdout."""
    print(line, file=sys.stderr, flush=True)


def within(text: str, most: int) -> int:
    """A whole number from 1 to ``most``."""
    value = int(text)
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {most}")
    return value


def positive(text: str) -> int:
    """At least 1."""
    return within(text, 1_000_000)


def lookahead(text: str) -> int:
    """Proposed tokens: 1 to 64."""
    return within(text, 64)


def branches(text: str) -> int:
    """Guessed outcomes: 1 to 256."""
    return within(text, 256)


def milliseconds(text: str) -> float:
    """A wait: above 0, at most 10 000."""
    value = float(text)
    if not 0 < value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10000")
    return value


def cores(text: str) -> tuple[int, ...]:
    """``"0,1"`` -> core numbers."""
    return tuple(int(core) for core in text.split(","))


def numbers(text: str, kind: Callable[[str], T], name: str) -> list[T]:
    """``"1,2"`` -> numbers of a kind.

    Raises:
        ConfigError: one is not of the kind.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"--{name} takes a number or a comma-separated list, got {text!r}", param=name) from error
