"""``ssd-cluster deploy`` against a dashboard that a test plays: all checks, what is sent, and how waiting ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tiny import make_checkpoint

from ssd_cluster.cli import main
from ssd_cluster.errors import StartupError
from ssd_cluster.serve.args import ServeFile
from ssd_cluster.serve.cluster import RayCluster
from ssd_cluster.serve.deploy import wait_until_running
from ssd_cluster.serve.saying import reason

TOKEN = {"token_file": "/etc/ssd/drafts.token"}


class Dashboard:
    """Answers as Ray's dashboard does: its nodes, and applications that run as soon as they are deployed."""

    def __init__(self) -> None:
        self.nodes = [node("10.0.0.1", role="target"), node("10.0.0.2", role="draft")]
        self.http: dict[str, Any] | None = None
        self.status = "RUNNING"
        self.deployed: list[dict[str, Any]] = []
        self.refusal: tuple[int, str] | None = None
        board = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/api/v0/nodes"):
                    self._say(200, {"result": True, "data": {"result": {"result": board.nodes}}})
                elif self.path == "/api/serve/applications/":
                    self._say(200, board.details())
                else:
                    self._say(404, {})

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if board.refusal is not None:
                    self.send_response(board.refusal[0])
                    self.end_headers()
                    self.wfile.write(board.refusal[1].encode())
                    return
                board.deployed.append(body)
                self._say(200, None)

            def _say(self, code: int, content: Any) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(b"" if content is None else json.dumps(content).encode())

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def details(self) -> dict[str, Any]:
        if self.http is None and not self.deployed:
            return {"controller_info": {}, "proxies": {}, "applications": {}, "target_capacity": None}
        names = [app["name"] for app in self.deployed[-1]["applications"]] if self.deployed else []
        applications = {name: {"status": self.status, "message": "it is broken", "deployments": {}} for name in names}
        return {"controller_info": {"node_id": "x"}, "http_options": self.http, "applications": applications}


def node(address: str, state: str = "ALIVE", **labels: str) -> dict[str, Any]:
    return {
        "node_ip": address,
        "state": state,
        "labels": labels,
        "resources_total": {"CPU": 2.0, f"node:{address}": 1.0},
    }


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    board = Dashboard()
    yield board
    board.server.shutdown()
    board.server.server_close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    made = make_checkpoint(folder / "target")
    foreign = make_checkpoint(folder / "foreign", vocab=300)
    return {"target": str(made), "foreign": str(foreign)}


@pytest.fixture
def content(models: dict[str, str]) -> dict[str, Any]:
    """A draft and a target on two nodes, as they should be."""
    draft = {
        "model": {"path": models["target"]},
        "host": "0.0.0.0",
        "link": TOKEN,
        "placement": {"label_selector": {"role": "draft"}},
    }
    target = {
        "model": {"path": models["target"]},
        "served_name": "tiny",
        "draft_application": "drafts",
        "link": TOKEN,
        "placement": {"label_selector": {"role": "target"}},
    }
    return {
        "applications": [
            {
                "name": "drafts",
                "import_path": "ssd_cluster.serve.app:build",
                "route_prefix": None,
                "args": {"draft": draft},
            },
            {
                "name": "llama",
                "import_path": "ssd_cluster.serve.app:build",
                "route_prefix": "/",
                "args": {"target": target},
            },
        ]
    }


@pytest.fixture
def deploy(tmp_path: Path, dashboard: Dashboard) -> Callable[..., int]:
    def run(content: dict[str, Any], *options: str) -> int:
        path = tmp_path / "serve.yaml"
        path.write_text(yaml.safe_dump(content))
        return main(["deploy", str(path), "--address", dashboard.address, *options])

    return run


Deploy = Callable[..., int]
Said = pytest.CaptureFixture[str]


def test_a_file_is_deployed_as_it_stands(deploy: Deploy, dashboard: Dashboard, content: Any, capsys: Said) -> None:
    assert deploy(content) == 0
    assert dashboard.deployed == [content]
    out = capsys.readouterr().out
    for line in (
        "drafts: 1 fit on 10.0.0.2",
        "llama: 1 fit on 10.0.0.1",
        "drafts runs",
        "llama runs",
        "serving tiny on",
    ):
        assert line in out


def test_a_dry_run_changes_nothing(deploy: Deploy, dashboard: Dashboard, content: Any, capsys: Said) -> None:
    assert deploy(content, "--dry-run") == 0
    assert dashboard.deployed == []
    assert "nothing was deployed (--dry-run)" in capsys.readouterr().out


def test_every_mistake_has_a_line_and_nothing_is_sent(
    deploy: Deploy, dashboard: Dashboard, content: Any, models: dict[str, str], capsys: Said
) -> None:
    draft, target = (app["args"] for app in content["applications"])
    draft["draft"] |= {"model": {"path": models["foreign"]}, "row_credit": 4, "k_max": 2, "port": 8000}
    draft["draft"]["placement"] = {"resources": {"fast": 1}}
    target["target"] |= {"link": {}, "model": {"path": models["target"], "tensor_parallel": 3}}
    dashboard.http = {"host": "0.0.0.0", "port": 9999}
    assert deploy(content) == 2
    assert dashboard.deployed == []
    lines = capsys.readouterr().err.splitlines()
    for said in (
        "port 8000 is that of http_options",
        "speculation.rows = 16 is more than its share of the row_credit",
        "speculation.k = 5 is more than k_max = 2",
        "drafts sets link.token_file and llama does not",
        "cannot draft for",
        "runs on 1, 2, 4 ranks",
        "Serve listens on 0.0.0.0:9999 of this cluster already",
        "drafts: a replica takes 1 CPU, 1 fast, more than any node has",
        "llama: 0 of 1 replicas fit, each takes 3 ranks (PACK)",
    ):
        assert sum(said in line for line in lines) == 1, (said, lines)


def test_a_draft_on_loopback_must_share_its_node(deploy: Deploy, content: Any, capsys: Said) -> None:
    draft, target = (app["args"] for app in content["applications"])
    draft["draft"] |= {"host": "127.0.0.1"}
    assert deploy(content) == 2
    assert "drafts: host 127.0.0.1 is reached from its own node only" in capsys.readouterr().err
    draft["draft"]["placement"] = target["target"]["placement"]
    assert deploy(content, "--dry-run") == 0


def test_nodes_that_are_still_to_come(deploy: Deploy, dashboard: Dashboard, content: Any, capsys: Said) -> None:
    dashboard.nodes = [node("10.0.0.1", role="target"), node("10.0.0.2", "DEAD", role="draft")]
    assert deploy(content) == 2
    assert "drafts: no node has the labels role=draft" in capsys.readouterr().err
    assert deploy(content, "--nodes-may-come") == 0
    assert "note: drafts: no node has the labels role=draft" in capsys.readouterr().out


def test_a_model_that_is_not_here_is_a_note(deploy: Deploy, content: Any, capsys: Said) -> None:
    content["applications"][1]["args"]["target"]["model"]["path"] = "/models/elsewhere"
    assert deploy(content, "--dry-run") == 0
    assert "note: tokenizers of /models/elsewhere and" in capsys.readouterr().out


def test_an_application_that_does_not_run_ends_it(
    deploy: Deploy, dashboard: Dashboard, content: Any, capsys: Said
) -> None:
    dashboard.status = "DEPLOY_FAILED"
    assert deploy(content) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("ssd-cluster deploy: ") for line in lines] == [
        "drafts does not run: it is broken",
        "llama does not run: it is broken",
    ]


def test_refusals_of_the_cluster_are_said(deploy: Deploy, dashboard: Dashboard, content: Any, capsys: Said) -> None:
    dashboard.refusal = (400, "Deployment 'x' does not exist.\nmore")
    assert deploy(content) == 1
    assert "HTTP 400: Deployment 'x' does not exist." in capsys.readouterr().err
    dashboard.refusal = (401, "Unauthorized")
    assert deploy(content) == 1
    assert "RAY_AUTH_MODE=token" in capsys.readouterr().err
    assert deploy(content, "--deadline", "0") == 1


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "10.0.0.1:8265", "ray://10.0.0.1:10001"])
def test_no_cluster_there(address: str) -> None:
    with pytest.raises(StartupError, match="dashboard"):
        RayCluster(address).nodes()


def test_what_answers_is_no_dashboard(dashboard: Dashboard) -> None:
    dashboard.nodes = []
    cluster = RayCluster(dashboard.address + "/nothing")
    with pytest.raises(StartupError, match="HTTP 404"):
        cluster.details()


def two(content: dict[str, Any]) -> ServeFile:
    return ServeFile.model_validate(content)


def test_waiting_says_what_changes_and_ends_at_the_deadline(content: Any, capsys: Said) -> None:
    now = [0.0]
    starting = {"draft": {"message": "", "replicas": [{"state": "STARTING"}, {"state": "RUNNING"}]}}
    pending = {"target": {"message": "1 replicas that have taken more than 30s to be scheduled", "replicas": []}}
    states = {
        "drafts": {"status": "DEPLOYING", "message": "", "deployments": starting},
        "llama": {"status": "DEPLOYING", "message": "", "deployments": pending},
    }

    def details() -> dict[str, Any]:
        if now[0] > 20:
            states["drafts"]["status"] = "RUNNING"
        return {"applications": states}

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 0.1)

    with pytest.raises(StartupError) as caught:
        wait_until_running(two(content), details, 60.0, lambda: now[0], sleep)
    assert caught.value.message == (
        "llama does not run: it was not running in time: 1 replicas that have taken more than 30s to be scheduled"
    )
    lines = capsys.readouterr().out.splitlines()
    assert "[ssd-cluster] drafts: 1 RUNNING, 1 STARTING" in lines
    assert "[ssd-cluster] drafts runs" in lines
    heartbeats = [line for line in lines if "still waiting for" in line]
    assert 2 <= len(heartbeats) <= 4


def test_a_dashboard_that_does_not_answer_for_a_while_is_waited_for(content: Any, capsys: Said) -> None:
    now = [0.0]

    def details() -> dict[str, Any]:
        now[0] += 1.0
        if now[0] < 3.0 or now[0] > 10.0:
            raise StartupError("it is busy")
        return {"applications": {name: {"status": "RUNNING"} for name in ("drafts", "llama")}}

    wait_until_running(two(content), details, 5.0, lambda: now[0], lambda _: None)
    assert capsys.readouterr().out.count("note: it is busy") == 2
    now[0] = 10.0
    with pytest.raises(StartupError, match="it is busy"):
        wait_until_running(two(content), details, 10.0, lambda: now[0], lambda _: None)


def test_the_reason_is_our_own_error_where_there_is_one() -> None:
    trace = "Traceback\n  File x\nray.exceptions.RayTaskError: x\nssd_cluster.errors.ConfigError: no such model\nend"
    assert reason([trace]) == "no such model"
    assert reason(["ValueError: 3", ""]) == "ValueError: 3"
    assert reason(["", ""]) == "no reason given"
