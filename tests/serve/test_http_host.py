"""Where HTTP may be served without keys: decided on the file, and again by a replica on what Serve really does."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ssd_cluster.config import HttpAccess
from ssd_cluster.errors import ConfigError
from ssd_cluster.serve import http_host
from ssd_cluster.serve.args import TargetAppArgs
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.http_host import require_protected_http
from ssd_cluster.serve.saying import say_ready

LAPTOP = Path(__file__).parents[2] / "cluster_configs" / "laptop.yaml"
TOKEN = {"token_file": "/run/secrets/token"}
KEYS = {"api_keys_file": "/run/secrets/api-keys"}


def write(tmp_path: Path, host: str, http: dict[str, Any]) -> Path:
    content = yaml.safe_load(LAPTOP.read_text())
    content["http_options"]["host"] = host
    content["applications"][1]["args"]["target"]["http"] = http
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "llm.example.org"])
def test_a_file_that_opens_the_endpoint_is_refused_with_what_to_set(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_serve_file(write(tmp_path, host, {}))
    for word in (host, "smollm2-135m-instruct", "api_keys_file", "allow_open: true", "127.0.0.1"):
        assert word in caught.value.message


@pytest.mark.parametrize(("host", "http"), [("0.0.0.0", KEYS), ("0.0.0.0", {"allow_open": True}), ("::1", {})])
def test_files_that_are_fine(tmp_path: Path, host: str, http: dict[str, Any]) -> None:
    read_serve_file(write(tmp_path, host, http))


def test_open_and_keyed_at_once_is_a_mistake() -> None:
    with pytest.raises(ValidationError, match="remove it, or remove api_keys_file"):
        HttpAccess.model_validate(KEYS | {"allow_open": True})


class Proxy:
    """What Serve says of its HTTP options; None: no Serve, or one without HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def listens(self, host: str | None, *, running: bool = True) -> None:
        client = SimpleNamespace(http_config=SimpleNamespace(host=host)) if running else None
        self._patch.setattr(http_host, "_get_global_client", lambda raise_if_no_controller_running: client)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Proxy:
    return Proxy(monkeypatch)


def test_a_replica_refuses_what_nobody_checked(proxy: Proxy) -> None:
    proxy.listens("0.0.0.0")
    with pytest.raises(ConfigError, match=r"anybody could use the model; set target\.http\.api_keys_file"):
        require_protected_http(HttpAccess())


def test_a_replica_says_that_it_is_open(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    proxy.listens("0.0.0.0")
    require_protected_http(HttpAccess.model_validate(KEYS))
    proxy.listens("127.0.0.1")
    require_protected_http(HttpAccess())
    require_protected_http(HttpAccess(allow_open=True))
    proxy.listens(None)
    require_protected_http(HttpAccess())
    proxy.listens(None, running=False)
    require_protected_http(HttpAccess())
    assert caplog.text == ""
    proxy.listens("0.0.0.0")
    require_protected_http(HttpAccess(allow_open=True))
    assert "HTTP endpoint without API keys host=0.0.0.0 because=target.http.allow_open" in caplog.text


@pytest.mark.parametrize("draft", [None, {"model": {"path": "d"}}, {"model": {"path": "d"}, "link": TOKEN}])
def test_a_guarded_link_that_leads_nowhere_is_a_mistake(draft: dict[str, Any] | None) -> None:
    target = {"model": {"path": "t"}, "mode": "ar" if draft is None else "sd", "in_process_draft": draft}
    link = {} if draft is not None and "link" in draft else TOKEN
    with pytest.raises(ValidationError, match="need draft_application"):
        TargetAppArgs.model_validate(target | {"link": link})


def test_serving_openly_is_said_where_it_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for http, said in (({"allow_open": True}, True), (KEYS, False)):
        file = read_serve_file(write(tmp_path, "0.0.0.0", http))
        say_ready(file, file.http_options)
        shown = capsys.readouterr().out
        assert ("asks for no API key" in shown) is said
        assert ("authorization: Bearer KEY" in shown) is not said
