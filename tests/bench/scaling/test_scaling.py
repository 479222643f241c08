"""Profiles, what is taken from a view, and clients against a small HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ssd_cluster.bench.scaling.client import Answer, Endpoint, Question
from ssd_cluster.bench.scaling.load import Load, plain_answers
from ssd_cluster.bench.scaling.profile import Stage, parse_profile
from ssd_cluster.bench.scaling.report import as_json, draw, table
from ssd_cluster.bench.scaling.run import drive
from ssd_cluster.bench.scaling.watch import moment, require_pool
from ssd_cluster.errors import ConfigError, StartupError


def draft(application: str = "drafts", state: str = "RUNNING", **changes: Any) -> dict[str, Any]:
    entry = {"application": application, "state": state, "draining": False, "sessions": 2, "rows": 8, "row_credit": 32}
    return entry | {"lateness": 0.25} | changes


def view(*drafts: dict[str, Any], unreachable: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    links = [{"lookups": {"hit": 3, "miss": 1}}, {"lookups": {"hit": 1, "late": 4}}]
    return {"targets": [{"drafts": links}], "drafts": list(drafts), "unreachable": list(unreachable)}


class Server(ThreadingHTTPServer):
    """Answers with the seed; every request whose seed is in ``lie`` gets another text when it may be speculated."""

    lie: tuple[int, ...] = ()
    fail: tuple[int, ...] = ()
    gate = threading.Event()  # closed: answers wait
    open_now = most_open = 0
    lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._say(200, view(draft()))

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        speculates = body.get("speculative", {}).get("enabled", True)
        with server.lock:
            server.open_now += 1
            server.most_open = max(server.most_open, server.open_now)
        text = f"text {body['seed']}" + ("!" if speculates and body["seed"] in server.lie else "")
        with server.lock:
            server.open_now -= 1
        server.gate.wait(10.0)
        if speculates and body["seed"] in server.fail:
            self._say(503, {"error": {"message": "overloaded"}})
            return
        message = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": body["max_tokens"]}}
        self._say(200, message)

    def _say(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.gate.set()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def endpoint(server: Server) -> Iterator[Endpoint]:
    made = Endpoint(f"http://127.0.0.1:{server.server_port}/", None, 10.0)
    yield made
    made.close()


def test_profiles() -> None:
    assert parse_profile("1x20, 8x1.5,0x3") == (Stage(1, 20), Stage(8, 1.5), Stage(0, 3))
    for wrong in ("", "8", "x3", "3x", "1x0", "-1x3", "0x3", "1x20;2x3"):
        with pytest.raises(ConfigError, match="--profile"):
            parse_profile(wrong)


def test_a_moment_counts_what_serves_and_what_comes_and_goes() -> None:
    seen = view(
        draft(),
        draft(draining=True, sessions=1, lateness=0.9),
        draft(application="other"),
        unreachable=({"application": "drafts", "state": "STARTING"}, {"application": "drafts", "state": "RUNNING"}),
    )
    found = moment(seen, 4.0, "drafts")
    assert (found.drafts, found.coming, found.going, found.sessions) == (1, 1, 1, 3)
    assert (found.rows, found.row_credit, found.lateness) == (16, 32, 0.25)
    assert (found.hits, found.lookups) == (4, 9)
    assert moment(seen, 4.0, None).drafts == 2
    require_pool(seen, "other")
    with pytest.raises(ConfigError, match="drafts, other"):
        require_pool(seen, "mine")


def test_a_run_counts_answers_lost_requests_and_other_texts(server: Server, endpoint: Endpoint, tmp_path: Path) -> None:
    server.lie, server.fail = (1,), (2,)
    questions = [Question("hello", seed, 7, 0.0) for seed in range(3)]
    expected = plain_answers(endpoint, questions, lambda _: None)
    assert [answer.text for _, answer in expected] == ["text 0", "text 1", "text 2"]
    stages = parse_profile("1x0.2,3x0.2,0x0.1")
    results = drive(endpoint, expected, stages, pool=None, pace_s=0.02, drain_s=10.0, progress=lambda _: None)
    assert [one.stage for one in results] == list(stages)
    for one in results[:2]:
        outcome = one.outcome
        assert outcome.answers > 0
        assert outcome.tokens == 7 * outcome.answers
        assert 0 < outcome.different < outcome.answers
        assert outcome.failures
        assert "503" in outcome.failures[0]
        assert one.drafts == (1, 1)
    assert server.open_now == 0
    assert server.most_open <= 3
    assert len(table(results).splitlines()) == 2 + len(stages)
    assert as_json(results)[0]["moments"][0]["drafts"] == 1
    draw(results, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_stuck_request_is_counted_once(server: Server, endpoint: Endpoint) -> None:
    server.gate.clear()
    server.fail = (0,)
    load = Load(endpoint, [(Question("hello", 0, 7, 0.0), Answer("text 0", 7))])
    before = set(threading.enumerate())
    outcome = load.stage(2)
    clients = set(threading.enumerate()) - before
    load.finish(0.1)
    load.finish(0.1)
    server.gate.set()
    for thread in clients:
        thread.join(10.0)
    assert outcome.failures == ["a request did not end within 0.1 s"] * 2
    assert outcome.answers == 0


def test_nobody_there() -> None:
    endpoint = Endpoint("http://127.0.0.1:9", None, 1.0)
    with pytest.raises(StartupError, match="--url"):
        endpoint.require()
    endpoint.close()
