"""What this machine can find out about the models of a file: whether tokenizers agree, whether they can be split."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ssd_cluster.errors import CheckpointError, PairMismatch, StartupError
from ssd_cluster.serve.agreement import Findings
from ssd_cluster.serve.args import ServeFile
from ssd_cluster.serve.checks import models_of, pairs_of, require_split


def models_here(file: ServeFile) -> Findings:
    """Check every pair and every split model; a note where a model is out of reach from here.

    Of hub models no weights are fetched. The nodes need not share this machine's folders; a target compares tokenizers
    with its draft once more when they connect.
    """
    found = Findings()
    for target, draft in dict.fromkeys(pairs_of(file)):
        unknown = f"tokenizers of {target} and {draft} were not compared"
        found += _tried(partial(_compare, target, draft), unknown)
    for app in file.applications:
        for place, model in models_of(app):
            if model.tensor_parallel > 1:
                unknown = f"{place}: whether it runs on {model.tensor_parallel} ranks was not checked"
                found += _tried(partial(require_split, place, model), unknown)
    return found


def _compare(target: str, draft: str) -> None:
    from ssd_cluster.text.pairs import require_same_ids

    require_same_ids(target, draft)


def _tried(check: Callable[[], None], unknown: str) -> Findings:
    try:
        check()
    except (PairMismatch, StartupError) as error:
        return Findings(mistakes=(error.message,))
    except CheckpointError as error:
        return Findings(notes=(f"{unknown}: {error.message}",))
    return Findings()
