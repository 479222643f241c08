"""Requests that arrive by a clock of their own, whether or not earlier ones are answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from ssd_cluster.bench.endpoint.client import Answer
from ssd_cluster.bench.handle import Workload

Ask = Callable[[int], Awaitable[Answer]]
"""Index of a request -> its answer."""


def arrivals(rate: float, n: int, seed: str) -> list[float]:
    """Times of ``n`` arrivals of a Poisson process, seconds from its start; the same for the same seed.

    Args:
        rate: arrivals per second.
        n: number of them.
        seed: of the gaps.
    """
    rng = random.Random(seed)
    times, now = [], 0.0
    for _ in range(n):
        now += rng.expovariate(rate)
        times.append(now)
    return times


def spread_out(workload: Workload, n: int) -> Workload:
    """A workload of ``n`` requests: the prompts in turn, again and again."""
    prompts = tuple(workload.prompts[i % len(workload.prompts)] for i in range(n))
    return workload.model_copy(update={"prompts": prompts})


async def offer(ask: Ask, times: list[float]) -> dict[str, Any]:
    """Send request i at ``times[i]`` and wait for all answers.

    Returns:
        The record of a run, times in seconds from its start: ``requests`` with ``due``, ``asked``, ``parts`` and usage
        each, ``seconds`` until the last answer.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[Answer]] = []
    began = loop.time()
    for index, at in enumerate(times):
        await asyncio.sleep(max(0.0, began + at - loop.time()))
        tasks.append(asyncio.ensure_future(ask(index)))
    answers = await asyncio.gather(*tasks)
    seconds = loop.time() - began
    start = _start(answers, times)
    return {"seconds": seconds, "requests": [_entry(a, at, start) for a, at in zip(answers, times, strict=True)]}


def _start(answers: list[Answer], times: list[float]) -> float:
    """The start of the run on the clock of the answers: no request leaves before it is due."""
    return min(answer.asked_s - at for answer, at in zip(answers, times, strict=True))


def _entry(answer: Answer, due: float, start: float) -> dict[str, Any]:
    return {
        "due": round(due, 6),
        "asked": round(answer.asked_s - start, 6),
        "parts": [round(at - start, 6) for at in answer.parts_s],
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "error": answer.error,
        "detail": answer.detail,
    }
