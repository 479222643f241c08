"""Options that ``generate``, ``chat`` and ``check-pair`` share: which pair, which mode, how it is sampled."""

from __future__ import annotations

import argparse

from ssd_cluster.bench.kind_options import add_kind_arguments, speculation_of
from ssd_cluster.bench.options import add_int8, positive
from ssd_cluster.bench.spec import EngineSpec, LinkBackend, PairOptions, engine_spec
from ssd_cluster.config import DType, SpeculationSettings
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.types import Mode

_DEFAULTS = SpeculationSettings()
TARGET = "smollm2-135m-instruct"
DRAFT = "smollm2-135m-draft"


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the pair and its engine."""
    add = parser.add_argument
    add("--target", default=TARGET, help="folder, .gguf file, hub id or embedded name (default %(default)s)")
    add("--draft", default=DRAFT, help="the same, for the draft (default %(default)s)")
    add("--mode", choices=[mode.value for mode in Mode], default=Mode.SSD.value)
    add_speculation_arguments(parser)
    add("--link", choices=[link.value for link in LinkBackend], default=LinkBackend.INPROCESS.value)


def add_speculation_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of how a pair speculates and computes."""
    add = parser.add_argument
    add("--k", type=int, default=_DEFAULTS.k, help="tokens proposed per round (default %(default)s)")
    add("--rows", type=int, default=_DEFAULTS.rows, help="guessed outcomes per round (default %(default)s)")
    add_kind_arguments(parser)
    add(
        "--tensor-parallel",
        type=positive,
        default=1,
        metavar="N",
        help="ranks of the target, a process each (default 1)",
    )
    add("--dtype", choices=[dtype.value for dtype in DType], default=DType.AUTO.value)
    add_int8(parser)


def add_sampling_arguments(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Options of one request."""
    add = parser.add_argument
    add("--max-tokens", type=int, default=max_tokens)
    add("--temperature", type=float, default=0.0)
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--seed", type=int, default=None, help="fixes the text at temperature > 0")
    add("--stop", action="append", default=[], help="stop string; may be given several times")
    add("--ignore-eos", action="store_true")


def spec_of(arguments: argparse.Namespace) -> EngineSpec:
    """The engine that the arguments describe.

    Raises:
        ConfigError: an option is out of range.
    """
    return engine_spec(Mode(arguments.mode), pair_options(arguments), LinkBackend(arguments.link))


def pair_options(arguments: argparse.Namespace) -> PairOptions:
    """The pair and its speculation.

    Raises:
        ConfigError: an option is out of range.
    """
    speculation = speculation_of(arguments, k=arguments.k, rows=arguments.rows)
    return PairOptions(
        target=arguments.target,
        draft=arguments.draft,
        speculation=speculation,
        dtype=DType(arguments.dtype),
        tensor_parallel=arguments.tensor_parallel,
        int8=arguments.int8,
    )


def params_of(arguments: argparse.Namespace) -> SamplingParams:
    """The request's sampling parameters.

    Raises:
        InvalidRequest: one is out of range.
    """
    return SamplingParams(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        stop=tuple(arguments.stop),
        ignore_eos=arguments.ignore_eos,
    )
