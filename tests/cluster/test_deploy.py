"""``ssd-cluster deploy`` on real Serve: files are checked against real nodes, and ``user_config`` changes what runs.

Ray's dashboard is played by the test, with the calls that it makes itself: a real one takes too long to start.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.live_cluster import DEADLINE_S, Live, Reference, model_args, until
from support.pool_cluster import HELLO, Reader

from ssd_cluster.cli import main

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LONG = {"max_tokens": 2000, "ignore_eos": True, "temperature": 0.8, "seed": 11}
IMPORT_PATH = "ssd_cluster.serve.app:build"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        import ray
        from ray.serve._private.api import _get_global_client

        if self.path.startswith("/api/v0/nodes"):
            nodes = [
                {
                    "node_ip": one["NodeManagerAddress"],
                    "state": "ALIVE" if one["Alive"] else "DEAD",
                    "resources_total": one["Resources"],
                    "labels": one["Labels"],
                }
                for one in ray.nodes()
            ]
            self._say({"data": {"result": {"result": nodes}}})
        else:
            self._say(_get_global_client().get_serve_details())

    def do_PUT(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["content-length"])))
        serve_deploy(content)
        self._say({})

    def _say(self, content: Any) -> None:
        body = json.dumps(content, default=str).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def serve_deploy(content: dict[str, Any]) -> None:
    """What ``serve deploy`` does with a configuration file."""
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(content))


@pytest.fixture(scope="module")
def address(live: Live) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    serve_deploy({"applications": []})


@pytest.fixture(scope="module")
def content(live: Live) -> dict[str, Any]:
    draft = {"model": model_args(live.checkpoints.draft), "k_max": 6, "row_credit": 32}
    target = {
        "model": model_args(live.checkpoints.target),
        "served_name": "tuned",
        "draft_application": "tuned-drafts",
        "self_test": False,
        "speculation": {"k": 3, "rows": 4, "miss_policy": "always_wait"},
        "breaker": {"late_share": 1.0},
    }
    return {
        "http_options": {"host": "127.0.0.1", "port": live.checkpoints.port},
        "applications": [
            {"name": "tuned-drafts", "import_path": IMPORT_PATH, "route_prefix": None, "args": {"draft": draft}},
            {"name": "tuned", "import_path": IMPORT_PATH, "route_prefix": "/tuned", "args": {"target": target}},
        ],
    }


def tuned(content: dict[str, Any], user_config: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    changed["applications"][1]["deployments"] = [{"name": "target", "user_config": user_config}]
    return changed


def placed(content: dict[str, Any], selector: str) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    for app, kind in zip(changed["applications"], ("draft", "target"), strict=True):
        app["args"][kind]["placement"] = {"label_selector": {"ray.io/node-id": selector}}
    return changed


def deploy(address: str, folder: Path, content: dict[str, Any], *options: str) -> int:
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(content))
    return main(["deploy", str(path), "--address", address, "--deadline", str(4 * DEADLINE_S), *options])


def state(live: Live) -> dict[str, Any]:
    """The target in the view of the cluster."""
    answer = live.http.get("/tuned/v1/cluster")
    assert answer.status_code == 200
    (found,) = [one for one in answer.json()["targets"] if one["application"] == "tuned"]
    return dict(found)


def test_a_deployed_file_is_placed_by_labels_and_serves(
    live: Live, address: str, content: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    (node,) = [one["NodeID"] for one in ray.nodes()]
    assert deploy(address, tmp_path, placed(content, f"!{node}"), "--dry-run") == 2
    assert capsys.readouterr().err.count("no node has the labels ray.io/node-id=!") == 2
    assert deploy(address, tmp_path, placed(content, f"in({node}, another)")) == 0
    out = capsys.readouterr().out
    assert "tuned-drafts runs" in out
    assert "serving tuned on" in out
    until(lambda: live.http.get("/tuned/health").status_code == 200, "it answers")


def test_k_changes_with_a_stream_open(
    live: Live, reference: Reference, address: str, content: dict[str, Any], tmp_path: Path
) -> None:
    assert deploy(address, tmp_path, content) == 0
    until(lambda: live.http.get("/tuned/health").status_code == 200, "it answers")
    pid = live.status("tuned")["pid"]
    reader = Reader(live, "/tuned", {"messages": HELLO, **LONG})
    until(lambda: reader.rounds and len(reader.rounds[-1][0]) > 20, "the stream runs")
    seen = []
    for k in (1, 6, 0, 2):
        rounds = len(reader.rounds)
        assert deploy(address, tmp_path, tuned(content, {"speculation": {"k": k, "rows": 3 + k}})) == 0
        until(lambda k=k: state(live)["speculation"]["k"] == k, f"k = {k} is in force")
        seen.append((state(live)["speculation"]["rows"], len(reader.rounds) - rounds))
        assert live.status("tuned")["pid"] == pid
    assert [rows for rows, _ in seen] == [4, 9, 3, 5]
    assert 0 in [ended for _, ended in seen], "no change fell into one stream"
    prompt = reference.tokenizer.apply_chat_template(HELLO)
    assert reader.finish() == [reference.texts(prompt, **LONG)]


def test_a_wrong_one_harms_nothing_and_is_shown(
    live: Live, address: str, content: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(address, tmp_path, tuned(content, {"speculation": {"k": 2}})) == 0
    until(lambda: state(live)["speculation"]["k"] == 2, "k = 2 is in force")
    pid = live.status("tuned")["pid"]
    wrong = tuned(content, {"speculation": {"k": 4, "kind": "dense"}})
    capsys.readouterr()
    assert deploy(address, tmp_path, wrong) == 2
    assert "speculation.kind: cannot change in place" in capsys.readouterr().err
    serve_deploy(wrong)  # which does not look into it
    shown = until(lambda: state(live)["refused"], "the refusal is shown")
    assert "speculation.kind: cannot change in place" in shown
    assert state(live)["speculation"]["k"] == 2
    assert live.status("tuned")["pid"] == pid
    assert main(["status", "--url", f"http://127.0.0.1:{live.checkpoints.port}/tuned"]) == 0
    assert "keeps its settings: user_config.speculation.kind" in capsys.readouterr().out
    assert deploy(address, tmp_path, content) == 0
    until(lambda: state(live)["speculation"]["k"] == 3 and state(live)["refused"] is None, "all is as in args again")
    assert live.status("tuned")["pid"] == pid
