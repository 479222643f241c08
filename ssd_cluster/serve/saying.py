"""What commands that serve tell their user: progress, the reason of a failure, and where to ask the first question."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from ssd_cluster.config import HttpSettings
from ssd_cluster.config_link import is_loopback
from ssd_cluster.serve.args import Application, ServeFile


def say(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(f"[ssd-cluster] {line}\n")
    sys.stdout.flush()


def reason(messages: Iterable[str]) -> str:
    """The line of Serve's messages, tracebacks among them, that says what was wrong."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("ssd_cluster.errors.")]
    errors = ours or [line for line in lines if "Error: " in line or "Exception: " in line]
    chosen = (errors or lines or ["no reason given"])[-1]
    return chosen.split(": ", 1)[1] if ours else chosen


def base_url(http: HttpSettings, app: Application, host: str | None = None) -> str:
    """Where an application is asked; ``host`` instead of the address that it listens on."""
    host = host or {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(http.host, http.host)
    return f"http://{host}:{http.port}{(app.route_prefix or '').rstrip('/')}"


def say_ready(file: ServeFile, http: HttpSettings, host: str | None = None, ends: str = "") -> None:
    """Every target's address, and a command that asks it something.

    Args:
        file: what is served.
        http: where.
        host: as for ``base_url``.
        ends: what to add about how to stop it.
    """
    for app in file.targets:
        target = app.args.target
        if target is None:
            continue
        base = base_url(http, app, host)
        question = [{"role": "user", "content": "Why is the sky blue?"}]
        body = json.dumps({"model": target.name, "messages": question, "max_tokens": 128, "stream": True})
        key = "" if target.http.api_keys_file is None else " -H 'authorization: Bearer KEY'"
        say(f"serving {target.name} on {base}/v1{ends}; try:")
        if target.http.allow_open and not is_loopback(http.host):
            say(f"warning: {base} asks for no API key (target.http.allow_open): whoever reaches it may use the model")
        command = f"curl -N {base}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'"
        sys.stdout.write(f"\n  {command}\n\n")
    sys.stdout.flush()
