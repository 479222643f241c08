"""``ssd-cluster status`` against a small HTTP server: its tables, the key it sends, and its refusals."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ssd_cluster.cli import main

KEY = "a-key-of-more-than-sixteen-characters"
LINK = {"replica": "d1", "state": "ready", "sessions": 2, "hit_rate": 0.625}
VIEW: dict[str, Any] = {
    "targets": [
        {
            "model": "big",
            "replica": "t1",
            "state": "RUNNING",
            "running": 3,
            "leases": {"held": 2, "waiting": 1},
            "application": "big-app",
            "refused": "user_config.speculation.k: too large",
            "drafts": [LINK],
        },
        {
            "model": "small",
            "replica": "t2",
            "state": "RUNNING",
            "running": 0,
            "leases": {"held": 0, "waiting": 0},
            "drafts": [],
        },
    ],
    "drafts": [
        {
            "application": "drafts",
            "replica": "d1",
            "state": "RUNNING",
            "draining": True,
            "sessions": 2,
            "session_credit": 64,
            "leases": 2,
            "free_rows": 24,
            "row_credit": 32,
            "lateness": 0.1,
            "targets": {"big-1": 2},
        }
    ],
    "unreachable": [{"application": "drafts", "replica": "d9"}],
}


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["authorization"] == f"Bearer {KEY}"
            self.send_response((200 if known else 401) if self.path == "/v1/cluster" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(VIEW).encode() if known else b"{}")

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(KEY + "\n")
    path.chmod(0o600)
    return str(path)


def test_it_prints_tables(url: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url, "--api-keys-file", key]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["big", "t1", "RUNNING", "3", "2", "1", "d1", "ready", "2", "62", "%"]
    assert lines[2] == ["small", "t2", "RUNNING", "0", "0", "0", "-", "-", "0", "-"]
    assert lines[5] == ["drafts", "d1", "DRAINING", "2/64", "2", "24/32", "10", "%", "big-1:2"]
    assert " ".join(lines[6]) == "big-app t1 keeps its settings: user_config.speculation.k: too large"
    assert lines[7] == ["drafts", "d9", "does", "not", "answer"]
    assert main(["status", "--url", url, "--api-keys-file", key, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == VIEW


def test_refusals_say_where_and_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == 1
    assert "/v1/cluster: HTTP 401" in capsys.readouterr().err
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert main(["status", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert f"127.0.0.1:{port}/v1/cluster" in capsys.readouterr().err
    assert main(["status", "--url", "http://127.0.0.1:8000x"]) == 1
    assert "name a served target with --url" in capsys.readouterr().err
