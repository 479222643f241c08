"""Show the targets and drafts of a running cluster: which draft holds whose sessions, free rows, hit rates."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ssd_cluster.credentials import read_keys
from ssd_cluster.errors import StartupError

_ANSWER_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="where a target is served (default %(default)s)")
    add("--api-keys-file", type=Path, default=None, help="file with an API key, where the target asks for one")
    add("--json", action="store_true", help="print the answer of /v1/cluster as it is")


def run(arguments: argparse.Namespace) -> int:
    """Print the tables.

    Raises:
        StartupError: no target answers at the URL.
        ConfigError: the file with the key cannot be used.
    """
    keys = arguments.api_keys_file
    view = fetch(arguments.url, read_keys(keys, "--api-keys-file")[0] if keys is not None else None)
    print(json.dumps(view, indent=2) if arguments.json else "\n".join(describe(view)))
    return 0


def fetch(url: str, key: str | None = None) -> dict[str, Any]:
    """The answer of ``/v1/cluster``.

    Raises:
        StartupError: nothing answers, or what answers is no target of a cluster.
    """
    place = f"{url.rstrip('/')}/v1/cluster"
    try:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        with urllib.request.urlopen(urllib.request.Request(place, headers=headers), timeout=_ANSWER_S) as answer:
            view: dict[str, Any] = json.load(answer)
    except (OSError, ValueError, HTTPException) as error:
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error)
        raise StartupError(f"{place}: {reason}; name a served target with --url") from None
    return view


def describe(view: dict[str, Any]) -> list[str]:
    """The view in lines for people."""
    targets = [["TARGET", "REPLICA", "STATE", "RUNNING", "LEASES", "WAITING", "DRAFT", "LINK", "SESSIONS", "HITS"]]
    for one in view["targets"]:
        mine = [one["model"], one["replica"], one["state"], one["running"], one["leases"]["held"]]
        mine.append(one["leases"]["waiting"])
        links = [[link["replica"], link["state"], link["sessions"], _share(link["hit_rate"])] for link in one["drafts"]]
        targets += [mine + link for link in links or [["-", "-", 0, "-"]]]
    drafts = [["DRAFTS", "REPLICA", "STATE", "SESSIONS", "LEASES", "FREE ROWS", "LATE", "TARGETS"]]
    for one in view["drafts"]:
        state = "DRAINING" if one["draining"] else one["state"]
        sessions = f"{one['sessions']}/{one['session_credit']}"
        rows = f"{one['free_rows']}/{one['row_credit']}"
        held = " ".join(f"{name}:{n}" for name, n in sorted(one["targets"].items())) or "-"
        late = _share(one["lateness"])
        drafts.append([one["application"], one["replica"], state, sessions, one["leases"], rows, late, held])
    lines = [*_table(targets), "", *_table(drafts)]
    refused = [one for one in (*view["targets"], *view["drafts"]) if one.get("refused")]
    lines += [f"{one['application']} {one['replica']} keeps its settings: {one['refused']}" for one in refused]
    return lines + [f"{one['application']} {one['replica']} does not answer" for one in view["unreachable"]]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _table(rows: Sequence[Sequence[Any]]) -> list[str]:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
