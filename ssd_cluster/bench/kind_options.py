"""Command-line options of how drafted tokens are drawn and verified, shared by the commands that start an engine."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from ssd_cluster.config import DEFAULT_TOP_M, SaguaroSettings, SpeculationSettings, VerifyRule
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import RATIO_KINDS, ProposalKind

_SAGUARO = SaguaroSettings()


def add_kind_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kind``, ``--rule`` and what belongs to them."""
    add = parser.add_argument
    kinds = [ProposalKind.COUPLED.value, *sorted(kind.value for kind in RATIO_KINDS)]
    add("--kind", choices=kinds, default=kinds[0], help="how drafted tokens are drawn (default %(default)s)")
    rules = [rule.value for rule in VerifyRule]
    add("--rule", choices=rules, default=None, help="default: equality for kind coupled, block for the others")
    add("--top-m", type=int, default=None, help=f"entries of a sparse law (default {DEFAULT_TOP_M})")
    add("--saguaro-c", type=float, default=_SAGUARO.c, help="weight of the draft's likeliest tokens (default 1: off)")
    add("--saguaro-f", type=int, default=_SAGUARO.f, help="how many tokens that is (default %(default)s)")


def speculation_of(arguments: argparse.Namespace, **others: Any) -> SpeculationSettings:
    """Settings of the options above and ``others``.

    Raises:
        ConfigError: a value is out of range, or the rule cannot verify the kind.
    """
    fields = others | {
        "kind": arguments.kind,
        "rule": arguments.rule,
        "saguaro": {"c": arguments.saguaro_c, "f": arguments.saguaro_f},
    }
    if arguments.top_m is not None:
        fields["top_m"] = arguments.top_m
    try:
        return SpeculationSettings.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = "-".join(str(part).replace("_", "-") for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"--{name}: {reason}" if name else reason, param=name or None) from error
