"""Two target models that share one pool of drafts, deployed declaratively on the tests' cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from ssd_cluster.model.cut import cut_checkpoint
from support.live_cluster import DEADLINE_S, Live, Reference, add_text, model_args, until

IMPORT_PATH = "ssd_cluster.serve.app:build"
DRAFTS = "pool-drafts"
HELLO = [{"role": "user", "content": "once upon a time"}]
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 0.8}


class Reader(threading.Thread):
    """Asks for the same stream again and again until it is told to stop: some session is always open.

    Attributes:
        rounds: the texts of every answer so far, the unfinished one last.
    """

    def __init__(self, live: Live, route: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.rounds: list[list[str]] = []
        self.failure: BaseException | None = None
        self._stop_asked = threading.Event()
        self._live, self._route, self._body = live, route, body
        self.start()

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self.rounds.append([""] * self._body.get("n", 1))
                with self._live.stream(self._body, f"{self._route}/v1/chat/completions") as chunks:
                    for chunk in chunks:
                        add_text(self.rounds[-1], chunk)
        except BaseException as error:
            self.failure = error

    def finish(self) -> list[list[str]]:
        """Let the running answer come to its end; the different answers there were."""
        self._stop_asked.set()
        self.join(DEADLINE_S)
        assert self.failure is None
        assert not self.is_alive()
        return [list(texts) for texts in dict.fromkeys(map(tuple, self.rounds))]


class Pool:
    """Applications ``big`` and ``small`` over the drafts; ``deploy`` does what ``serve deploy`` does."""

    def __init__(self, live: Live, folder: Path) -> None:
        self.live = live
        self.models = {
            "big": live.checkpoints.target,
            "small": cut_checkpoint(live.checkpoints.target, folder / "small", [0]),
        }

    def deploy(self, drafts: dict[str, Any], *, draft_args: dict[str, Any], **targets: dict[str, Any]) -> None:
        """``drafts``, ``targets``: options of the deployments; ``draft_args``: further arguments of the drafts."""
        from ray.serve._private.api import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        model = model_args(self.live.checkpoints.draft)
        args = {"draft": {"model": model, "k_max": 4, "row_credit": 32, **draft_args}}
        applications = [_application(DRAFTS, None, args, {"name": "draft", **drafts})]
        for name, path in self.models.items():
            target = {
                "model": model_args(path),
                "served_name": name,
                "draft_application": DRAFTS,
                "self_test": False,
                "speculation": {"k": 3, "rows": 4, "miss_policy": "always_wait"},
                "breaker": {"late_share": 1.0},
            }
            options = {"name": "target", **targets.get(name, {})}
            applications.append(_application(name, f"/{name}", {"target": target}, options))
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": applications}))

    def running(self, n_drafts: int) -> None:
        """Wait until everything runs and the pool has so many replicas."""
        until(lambda: self.states() == ["RUNNING"] * n_drafts, f"{n_drafts} drafts run")
        until(lambda: all(self.answers(name) for name in self.models), "the targets answer")

    def states(self, application: str = DRAFTS) -> list[str]:
        """States of the replicas of an application."""
        from ray import serve

        found = serve.status().applications.get(application)
        states = [d.replica_states for d in found.deployments.values()] if found is not None else []
        return sorted(state for counts in states for state, count in counts.items() for _ in range(count))

    def answers(self, name: str) -> bool:
        return self.live.http.get(f"/{name}/health").status_code == 200

    def read(self, name: str, **params: Any) -> Reader:
        body = {"messages": HELLO, **LONG, **params}
        return Reader(self.live, f"/{name}", body)

    def view(self) -> dict[str, Any]:
        answer = self.live.http.get("/big/v1/cluster")
        assert answer.status_code == 200, answer.text
        whole: dict[str, Any] = answer.json()
        return whole

    def drafts(self) -> dict[str, dict[str, Any]]:
        """The pool's replicas in the view, by name."""
        return {one["replica"]: one for one in self.view()["drafts"] if one["application"] == DRAFTS}

    def holders(self, model: str) -> dict[str, int]:
        """Sessions of a target model by draft replica, where there are any."""
        return {
            name: n
            for name, draft in self.drafts().items()
            if (n := sum(k for target, k in draft["targets"].items() if target.startswith(f"{model}-")))
        }

    def sessions(self, model: str) -> int:
        return sum(self.holders(model).values())

    def rows(self) -> int:
        return sum(draft["rows"] for draft in self.drafts().values())

    def lost_streams(self) -> float:
        """Streams that the targets have lost while they needed them."""
        text = "".join(self.live.http.get(f"/{name}/metrics").text for name in self.models)
        lines = [line for line in text.splitlines() if line.startswith("ssd:draft_failures_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if 'reason="stream"' in line)

    def leases(self) -> int:
        return sum(draft["leases"] for draft in self.drafts().values())


def expected(reference: Reference, **params: Any) -> list[str]:
    """What plain decoding says to ``HELLO``."""
    prompt = reference.tokenizer.apply_chat_template(HELLO)
    return reference.texts(prompt, **LONG, **params)


def _application(name: str, route: str | None, args: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "import_path": IMPORT_PATH,
        "route_prefix": route,
        "args": args,
        "deployments": [options],
    }
