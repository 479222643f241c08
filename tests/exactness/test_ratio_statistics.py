"""Chained rounds with the real noise: texts of three tokens against the target's law, by chi-square.

Sessions draw their proposals with ``DraftDraws`` and are verified with ``RoundDraws``, as in service; every round takes
a fresh round word. All tests together reject a correct rule with probability 1e-3 (Bonferroni); seeds are fixed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from ssd_kernels.philox import exponential_noise, noise_words, uniform_noise, words_to_uniform
from support.exact_code import dense_law, sparse_law
from torch import Tensor

from ssd_cluster.sampling.ratio_noise import (
    ACCEPT_DOMAIN,
    DRAFT_DOMAIN,
    RESIDUAL_DOMAIN,
    DraftDraws,
    RoundDraws,
    ratio_key,
)
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import (
    DraftLaw,
    TokenTree,
    VerifyBatch,
    block_core,
    multidraft_hsd,
    multidraft_tokenwise,
    naive_hsd,
    rules_for,
    tokenwise,
    traverse,
    verify,
)
from ssd_cluster.verify.chain import Chain

LEVEL = 1e-3
TESTS = 10
V, G, LENGTH, PROMPT = 3, 3, 3, 5
Text = tuple[int, ...]


def table(seed: int, sharpness: float) -> Tensor:
    """A law per last token; row V is the start."""
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(V + 1, V, generator=generator) * sharpness, -1)


P_TABLE, Q_TABLE = table(3, 1.0), table(4, 0.8)


def p_row(text: Text) -> Tensor:
    return P_TABLE[text[-1] if text else V]


def q_row(text: Text) -> Tensor:
    return Q_TABLE[text[-1] if text else V]


def p_value(texts: list[Text]) -> float:
    """Of the observed three-token texts under the target's law."""
    observed = Counter(text[:LENGTH] for text in texts)
    cells = list(itertools.product(range(V), repeat=LENGTH))
    expected = []
    for cell in cells:
        mass = 1.0
        for t, token in enumerate(cell):
            mass *= float(p_row(cell[:t])[token])
        expected.append(mass)
    scale = len(texts) / sum(expected)
    return float(stats.chisquare([observed[cell] for cell in cells], [e * scale for e in expected]).pvalue)


# --- session by session, through the objects that the engines use


def draw(weights: Tensor, noise: Tensor) -> int:
    return int((noise / weights).argmin())


class Session:
    def __init__(self, seed: int) -> None:
        self.draft = DraftDraws(seed, V)
        self.key = ratio_key(99, seed)
        self.text: Text = ()
        self.round = 0

    def begin(self) -> RoundDraws:
        self.round += 1
        return RoundDraws(self.key, self.round, PROMPT + len(self.text), V)

    def chain(self, salt: int = 0) -> Text:
        """A proposal; several of one round take distinct round words of the draft."""
        x: Text = ()
        for _ in range(G):
            noise = self.draft.row(PROMPT + len(self.text) + len(x), 10 * self.round + salt)
            x += (draw(q_row(self.text + x), noise),)
        return x

    def rows(self, x: Text) -> Tensor:
        return torch.stack([p_row(self.text + x[:t]) for t in range(len(x) + 1)])

    def laws(self, x: Text, make: Callable[..., DraftLaw] = dense_law) -> DraftLaw:
        return make([tuple(q_row(self.text + x[:t]).tolist()) for t in range(len(x))], V)


def chains_by(rule: str, kind: ProposalKind) -> Callable[[list[Session]], None]:
    """One round of many sessions in one batch."""

    def advance(sessions: list[Session]) -> None:
        draws = [session.begin() for session in sessions]
        proposed = [session.chain() for session in sessions]
        make = sparse_law if kind is ProposalKind.SPARSE else dense_law
        batch = VerifyBatch(
            [Proposal(d.base, x, kind) for d, x in zip(draws, proposed, strict=True)],
            torch.cat([s.rows(x) for s, x in zip(sessions, proposed, strict=True)]),
            [None] * (len(sessions) * (G + 1)),
            [s.laws(x, make) for s, x in zip(sessions, proposed, strict=True)],
            draws,
        )
        for session, x, outcome in zip(sessions, proposed, verify(batch, rules_for(kind, rule)), strict=True):
            session.text += (*x[: outcome.kept], outcome.next_token)

    return advance


def naive(sessions: list[Session]) -> None:
    for session in sessions:
        draws, x, text = session.begin(), session.chain(), session.text
        chain = Chain(session.rows(x), session.laws(x), torch.tensor(x), draws.accept(G))
        outcome = naive_hsd(
            chain,
            lambda prefix, text=text: dense_law([tuple(q_row(text + prefix).tolist())], V) if len(prefix) < G else None,
            lambda prefix, text=text: p_row(text + prefix),
            lambda t, draws=draws: draws.residual(draws.base + t),
        )
        session.text += (*x[: outcome.kept], *outcome.tokens)


def drafts_by(rule: Callable[..., object]) -> Callable[[list[Session]], None]:
    def advance(sessions: list[Session]) -> None:
        for session in sessions:
            draws = session.begin()
            chains = []
            for d in range(2):
                x = session.chain(d)
                chains.append(Chain(session.rows(x), session.laws(x), torch.tensor(x), draws.accept(G, d)))
            outcome = rule(chains, draws.residual(draws.base))
            session.text += (*outcome.tokens, outcome.next_token)  # type: ignore[attr-defined]

    return advance


def tree(sessions: list[Session]) -> None:
    """Two draws without replacement at the root, one below each."""
    for session in sessions:
        draws, q = session.begin(), q_row(session.text)
        base = PROMPT + len(session.text)
        a = draw(q, session.draft.row(base, 10 * session.round))
        left = torch.where(torch.arange(V) == a, 0.0, q)
        left = left / left.sum()
        b = draw(left, session.draft.row(base, 10 * session.round + 1))
        below = [session.draft.row(base + 1, 10 * session.round + i) for i in range(2)]
        a2, b2 = (draw(q_row((*session.text, x)), noise) for x, noise in zip((a, b), below, strict=True))
        shape = TokenTree((a, b, a2, b2), (0, 0, 1, 2))
        paths = [(), (a,), (b,), (a, a2), (b, b2)]
        rows = torch.stack([p_row(session.text + path) for path in paths])
        laws = [q, left, q_row((*session.text, a)), q_row((*session.text, b))]
        law = dense_law([tuple(row.tolist()) for row in laws], V)
        outcome = traverse(shape, rows, law, draws.accept(5), draws.residual(draws.base))
        session.text += (*outcome.tokens, outcome.next_token)


ADVANCE: dict[str, tuple[Callable[[list[Session]], None], int]] = {
    "token sparse": (chains_by("token", ProposalKind.SPARSE), 700),
    "block dense": (chains_by("block", ProposalKind.DENSE), 700),
    "hsd sparse": (chains_by("hsd", ProposalKind.SPARSE), 700),
    "naive_hsd": (naive, 400),
    "drafts token": (drafts_by(multidraft_tokenwise), 400),
    "drafts hsd": (drafts_by(multidraft_hsd), 400),
    "tree": (tree, 400),
}


@pytest.mark.parametrize("rule", ADVANCE)
def test_texts_of_chained_rounds_have_the_law_of_plain_decoding(rule: str) -> None:
    advance, count = ADVANCE[rule]
    sessions = [Session(seed) for seed in range(count)]
    while open_ := [session for session in sessions if len(session.text) < LENGTH]:
        advance(open_)
    assert p_value([session.text for session in sessions]) > LEVEL / TESTS


# --- many sessions at once, with and without the round word


def many_rows(seeds: Tensor, positions: Tensor, domain: int, rounds: Tensor) -> Tensor:
    """E ``[B, V]`` as ``DraftDraws`` and ``RoundDraws`` give it, row by row of a batch."""
    listed = (seeds.tolist(), positions.tolist(), V)
    return exponential_noise(*listed, domain=domain, rounds=rounds.tolist(), backend="torch")


def many_uniforms(seeds: Tensor, positions: Tensor, rounds: Tensor) -> Tensor:
    listed = (seeds.tolist(), positions.tolist(), 1)
    return words_to_uniform(noise_words(*listed, domain=ACCEPT_DOMAIN, rounds=rounds.tolist(), backend="torch"))[:, 0]


def simulate(core: Callable[..., tuple[Tensor, Tensor]], count: int, round_word: bool) -> list[Text]:
    """Texts of ``count`` sessions; without the round word, noise is a function of the position alone."""
    seeds, keys = torch.arange(count), torch.arange(count) + 10**6
    texts: list[Text] = [() for _ in range(count)]
    for number in range(LENGTH):
        lengths = torch.tensor([len(text) for text in texts])
        base, rounds = PROMPT + lengths, torch.full((count,), number + 1 if round_word else 0)
        states = [torch.tensor([text[-1] if text else V for text in texts])]
        u = torch.stack([many_uniforms(keys, base + t, rounds) for t in range(G)], 1)
        for t in range(G):
            states.append((many_rows(seeds, base + t, DRAFT_DOMAIN, rounds) / Q_TABLE[states[-1]]).argmin(-1))
        P, Q = torch.stack([P_TABLE[s] for s in states], 1), torch.stack([Q_TABLE[s] for s in states[:-1]], 1)
        E = many_rows(keys, base, RESIDUAL_DOMAIN, rounds)
        x = torch.stack(states[1:], 1)
        kept, following = core(P, Q, x, torch.full((count,), G), u, E)
        for b, (k, y, listed) in enumerate(zip(kept.tolist(), following.tolist(), x.tolist(), strict=True)):
            texts[b] += (*listed[:k], y)
    return texts


@pytest.mark.parametrize("core", [tokenwise, block_core])
def test_padded_cores_on_many_sessions(core: Callable[..., tuple[Tensor, Tensor]]) -> None:
    assert p_value(simulate(core, 20_000, round_word=True)) > LEVEL / TESTS


def test_noise_by_position_alone_is_biased_and_the_round_word_cures_it() -> None:
    """Behind the place where a block-rule round stops, uniforms and draft draws have been looked at.

    The token-wise rule reads nothing behind its stop; it would not show this.
    """
    assert p_value(simulate(block_core, 20_000, round_word=False)) < 1e-9
    assert p_value(simulate(block_core, 20_000, round_word=True)) > LEVEL / TESTS


def test_the_simulation_uses_the_noise_of_the_objects() -> None:
    draws, draft = RoundDraws(7, 3, 11, V), DraftDraws(7, V)
    seeds, at, rounds = torch.tensor([7]), torch.tensor([11]), torch.tensor([3])
    assert torch.equal(draws.residual(11), many_rows(seeds, at, RESIDUAL_DOMAIN, rounds)[0])
    assert torch.equal(draft.row(11, 3), many_rows(seeds, at, DRAFT_DOMAIN, rounds)[0])
    assert torch.equal(draws.accept(1), many_uniforms(seeds, at, rounds))
    assert torch.equal(draws.accept(4), uniform_noise(7, range(11, 15), domain=ACCEPT_DOMAIN, rounds=[3] * 4))
