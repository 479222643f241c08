"""A running endpoint as a contender: the closed loop that our engines get, through the client of ``bench serve``."""

from __future__ import annotations

import asyncio

from ssd_cluster.bench.endpoint.client import Answer, Client, Endpoint, ask_all
from ssd_cluster.bench.handle import RequestRecord, RunRecord, Workload
from ssd_cluster.errors import EngineStopped


class EndpointContender:
    """Answers workloads through HTTP.

    Args:
        endpoint: where.

    Raises:
        ConfigError: it does not answer, or lists no model.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._model = asyncio.run(self._find())

    async def _find(self) -> str:
        async with Client(self._endpoint) as client:
            return await client.model()

    def run(self, workload: Workload) -> RunRecord:
        """See ``Contender``."""
        answers = asyncio.run(self._ask(workload))
        requests = tuple(_record(index, answer) for index, answer in enumerate(answers))
        return RunRecord(requests=requests, rounds=0, phase_s={})

    async def _ask(self, workload: Workload) -> list[Answer]:
        async with Client(self._endpoint) as client:
            return await ask_all(client, self._model, workload)

    def close(self) -> None:
        """The server is not ours to stop."""


def _record(index: int, answer: Answer) -> RequestRecord:
    if not answer.parts_s:
        raise EngineStopped(f"prompt {index} was answered without text, so nothing can be timed")
    return RequestRecord(
        submitted_s=answer.asked_s,
        first_token_s=answer.parts_s[0],
        finished_s=answer.parts_s[-1],
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )
