"""Our modes beside transformers (generate, assisted generation, prompt lookup) and any OpenAI-compatible endpoints."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ssd_cluster.bench.contest.entries import Contender, Entry, engine_entry
from ssd_cluster.bench.contest.options import add_contest, add_cores, hold, open_store, pair_options, workloads_of
from ssd_cluster.bench.contest.run import Contest
from ssd_cluster.bench.endpoint.client import Endpoint, checked_url, read_api_key
from ssd_cluster.bench.engines import Worker
from ssd_cluster.bench.options import add_int8, add_workload, branches, cores, lookahead, positive
from ssd_cluster.bench.peers.report import draw, table
from ssd_cluster.bench.peers.settings import Method, PeerSettings
from ssd_cluster.bench.rules.command import ALL, named
from ssd_cluster.bench.spec import default_cores, engine_spec
from ssd_cluster.config import ControllerSettings, DType, SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode

OURS = ("ar", "sd", "ssd")
_DEFAULTS = SpeculationSettings()
_WORKER = "ssd_cluster.bench.peers.worker"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench peers``."""
    add = parser.add_argument
    methods = ", ".join(Method)
    add("--transformers", default=ALL, help=f"comma-separated of {methods}; all, or none (default %(default)s)")
    add("--endpoint", action="append", default=[], metavar="NAME=URL[,MODEL]", help="a server; may be given repeatedly")
    add("--api-key-file", type=Path, default=None, metavar="FILE", help="file with the key for the endpoints")
    add("--timeout-s", type=float, default=120.0, help="longest silence of an endpoint (default %(default)s)")
    add_workload(parser, max_tokens=128)
    add("--temperature", default="0", help="one or several, comma-separated (default %(default)s)")
    add("--k", type=lookahead, default=_DEFAULTS.k, help="tokens proposed per round in ssd (default %(default)s)")
    add("--sd-k", type=lookahead, default=None, help="the same in sd (default: --k)")
    add("--rows", type=branches, default=_DEFAULTS.rows, help="guessed outcomes per round (default %(default)s)")
    add(
        "--chain-k",
        type=positive,
        default=None,
        help="tokens of the chain that ssd waits for after a miss (default: --k)",
    )
    add("--controller", action="store_true", help="ssd chooses by itself: --k and --rows are then ceilings")
    add("--peer-cores", type=cores, default=None, help="CPU cores of peers, and of ar and sd once more (default: "
        "those of target and draft together)")  # fmt: skip
    add("--peer-tokens", type=lookahead, default=None, help="tokens proposed per round by assisted generation and "
        "prompt lookup (default: what transformers does, and 10)")  # fmt: skip
    add_int8(parser)
    add_cores(parser)
    add_contest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, print the table, write the files that are asked for.

    Raises:
        ConfigError: an option or the prompt file is wrong, or the JSON file holds results of other settings.
        SsdClusterError: an engine or a peer does not start or fails.
    """
    workloads = workloads_of(arguments, arguments.temperature, "1")
    entries = [*_ours(arguments), *_transformers(arguments), *_endpoints(arguments)]
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise ConfigError(f"--endpoint: every name may be used once, and not {', '.join(OURS)}", param="endpoint")
    more = ("k", "sd_k", "rows", "controller", "int8", "wait_ms", "chain_k", "peer_cores", "peer_tokens")
    store = open_store(arguments, workloads, more)
    return hold(arguments, Contest(entries, workloads, arguments.repetitions), store, ("ssd",), table, draw)


def _all_cores(arguments: argparse.Namespace) -> tuple[int, ...] | None:
    if arguments.peer_cores is not None:
        return tuple(arguments.peer_cores)
    own, other = default_cores()
    together = {*(arguments.target_cores or own or ()), *(arguments.draft_cores or other or ())}
    return tuple(sorted(together)) or None


def _ours(arguments: argparse.Namespace) -> list[Entry]:
    """Our modes on the target's cores, and the two that have no draft elsewhere on all cores too."""
    entries = []
    for mode in (Mode.AR, Mode.SD, Mode.SSD):
        k = arguments.sd_k if mode is Mode.SD and arguments.sd_k else arguments.k
        chosen = ControllerSettings(enabled=arguments.controller and mode is Mode.SSD)
        speculation = SpeculationSettings(
            k=k,
            rows=arguments.rows,
            wait_ms=arguments.wait_ms,
            chain_k=arguments.chain_k if mode is Mode.SSD else None,
            controller=chosen,
        )
        options = pair_options(arguments, speculation, int8=arguments.int8)
        entries.append(engine_entry(mode.value, engine_spec(mode, options)))
        everywhere = _all_cores(arguments)
        if mode is not Mode.SSD and everywhere not in (None, options.target_cores or default_cores()[0]):
            wide = engine_spec(mode, options.model_copy(update={"target_cores": everywhere}))
            entries.append(engine_entry(f"{mode.value} on all cores", wide))
    return entries


def _transformers(arguments: argparse.Namespace) -> list[Entry]:
    if arguments.transformers == "none":
        return []
    entries = []
    for name in named(arguments.transformers, tuple(Method), "transformers"):
        method = Method(name)
        tokens = arguments.peer_tokens
        settings = PeerSettings(
            method=method,
            target=arguments.target,
            draft=arguments.draft if method is Method.ASSISTED else None,
            dtype=DType(arguments.dtype),
            cores=_all_cores(arguments),
            tokens={Method.GENERATE: None, Method.ASSISTED: tokens, Method.LOOKUP: tokens or 10}[method],
        )
        entries.append(Entry(f"transformers {name}", _worker(f"transformers {name}", settings)))
    return entries


def _worker(name: str, settings: PeerSettings) -> Callable[[], Contender]:
    return lambda: Worker(_WORKER, name, settings.model_dump(mode="json"))


def _endpoints(arguments: argparse.Namespace) -> list[Entry]:
    key = read_api_key(arguments.api_key_file)
    entries = []
    for text in arguments.endpoint:
        name, equals, rest = text.partition("=")
        url, _, model = rest.partition(",")
        if not (name and equals):
            raise ConfigError(f"--endpoint takes NAME=URL or NAME=URL,MODEL, got {text!r}", param="endpoint")
        endpoint = Endpoint(checked_url(url), model or None, key, arguments.timeout_s)
        entries.append(Entry(name, _asked(endpoint)))
    return entries


def _asked(endpoint: Endpoint) -> Callable[[], Contender]:
    from ssd_cluster.bench.peers.endpoint import EndpointContender

    return lambda: EndpointContender(endpoint)
