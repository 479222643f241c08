"""Whether a target and a draft fit together, decided from Hello and Welcome; both ends call ``check_pair``.

The padding of a model's output layer does not matter: ``vocabulary`` counts the ids that the tokenizer knows.
"""

from __future__ import annotations

from ssd_cluster.errors import PairMismatch
from ssd_cluster.link.messages import Hello, Welcome
from ssd_cluster.types import RATIO_KINDS


def first_difference(hello: Hello, welcome: Welcome) -> str | None:
    """What does not fit, as a sentence, or None.

    Compared in this order: protocol, vocabulary, tokenizer hash, and the trust domain if the target uses the draft's
    laws: a wrong law changes the text, so it is taken from inside one domain only.
    """
    comparisons = (
        ("protocol version", hello.protocol, welcome.protocol, "run the same release of ssd-cluster on both sides"),
        ("vocabulary", hello.vocabulary, welcome.vocabulary, "use a draft with the target's tokenizer"),
        ("tokenizer hash", hello.tokenizer_hash, welcome.tokenizer_hash, "use a draft with the target's tokenizer"),
    )
    for name, target, draft, advice in comparisons:
        if target != draft:
            return (
                f"{name} differs: target {hello.target_id!r} has {target}, draft {welcome.draft_id!r} {draft}; {advice}"
            )
    return _distrust(hello, welcome)


def _distrust(hello: Hello, welcome: Welcome) -> str | None:
    kinds = ", ".join(kind.value for kind in hello.kinds if kind in RATIO_KINDS)
    if not kinds or (hello.trust_domain and hello.trust_domain == welcome.trust_domain):
        return None
    return (
        f"trust domain differs: target {hello.target_id!r} has {hello.trust_domain!r}, draft {welcome.draft_id!r} "
        f"{welcome.trust_domain!r}; kind {kinds} takes the draft's laws on trust: set the same trust_domain on both, "
        "or use kind coupled"
    )


def check_pair(hello: Hello, welcome: Welcome) -> None:
    """Accept a pair or refuse it; the target calls it with its own Hello, the draft with its own Welcome.

    Raises:
        PairMismatch: the message names the first difference.
    """
    difference = first_difference(hello, welcome)
    if difference is not None:
        raise PairMismatch(difference)
