"""Talk to the model in this terminal; an empty line or Ctrl-D ends."""

from __future__ import annotations

import argparse
import sys

from ssd_cluster.commands.engine_options import add_engine_arguments, add_sampling_arguments, params_of, spec_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    add_sampling_arguments(parser, max_tokens=512)
    parser.add_argument("--system", default=None, help="system message of the chat")


def run(arguments: argparse.Namespace) -> int:
    """Read turns from standard input, stream answers to standard output.

    Raises:
        SsdClusterError: the engine cannot start, or refuses or fails a turn.
    """
    from ssd_cluster.bench.local import LocalEngine

    params = params_of(arguments)
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    with LocalEngine(spec_of(arguments)) as local:
        while (turn := _read_turn()) is not None:
            messages.append({"role": "user", "content": turn})
            ids = local.tokenizer.apply_chat_template(messages)
            completion = local.complete(ids, params, on_text=_show)
            sys.stdout.write(f"\n[{completion.tokens_per_s:.1f} tokens/s, {completion.acceptance_text}]\n")
            messages.append({"role": "assistant", "content": completion.text})
    return 0


def _read_turn() -> str | None:
    try:
        turn = input("> ").strip()
    except EOFError:
        return None
    return turn or None


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
