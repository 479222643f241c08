"""From a request to its choices: everything that can be wrong with a request is said here, before scheduling."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from ssd_cluster.config import TargetSettings
from ssd_cluster.errors import ConfigError, ContextTooLong, InvalidRequest, Overloaded
from ssd_cluster.link.laws import law_bytes
from ssd_cluster.model.kv import SequenceBlocks
from ssd_cluster.model.runner import ModelRunner
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams
from ssd_cluster.sampling.ratio_noise import ratio_key
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.finish import FinishRules, OutputState
from ssd_cluster.target.laws import ChoiceDraws
from ssd_cluster.target.request import GenerationRequest, Sink, SpeculationStats
from ssd_cluster.target.sequence import Choice, LiveRequest, noise_rows
from ssd_cluster.target.session import SessionTerms
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import Mode, Proposal, ProposalKind


class Admission:
    """Validates requests against a model and builds their choices; thread-safe.

    Args:
        runner: the target model.
        tokenizer: of the model.
        settings: of the target.
        drafts: makes session handles.
        rng: seeds of requests without one.

    Raises:
        ConfigError: the model has a reduced output vocabulary and cannot be a target, or the laws of its vocabulary do
            not fit a frame.
    """

    def __init__(
        self, runner: ModelRunner, tokenizer: Tokenizer, settings: TargetSettings, drafts: DraftPool, rng: random.Random
    ) -> None:
        if runner.output_ids is not None:
            raise ConfigError("a checkpoint with a reduced output vocabulary can only be a draft", param="model.path")
        check_frame(settings, tokenizer.vocabulary)
        self._runner = runner
        self._tokenizer = tokenizer
        self._settings = settings
        self._drafts = drafts
        self._rng = rng
        self._secret = rng.getrandbits(128)
        self._arrivals = itertools.count()

    def retune(self, settings: TargetSettings) -> None:
        """Admit new requests by these settings."""
        self._settings = settings

    def admit(self, live: LiveRequest, others: Mapping[str, LiveRequest], queued: int) -> None:
        """Last check before a request is queued.

        Raises:
            InvalidRequest: its id belongs to a live request.
            Overloaded: ``queued`` choices wait already.
        """
        request_id = live.request.request_id
        if request_id in others:
            raise InvalidRequest(f"request id {request_id!r} is in use", param="request_id")
        if queued >= self._settings.max_waiting:
            raise Overloaded(f"{queued} choices are waiting already")

    def build(self, request: GenerationRequest, sink: Sink, now: float) -> LiveRequest:
        """Check a request and make its choices.

        Raises:
            InvalidRequest: the prompt is empty or holds unknown ids, or nothing could ever be drawn.
            ContextTooLong: it does not fit.
        """
        self._check(request)
        params = request.params
        rules = FinishRules.of(params, self._tokenizer.eos_ids)
        k = self.lookahead(request)
        seed = params.seed if params.seed is not None else self._rng.getrandbits(64)
        plain = RowParams.of(params)
        masked = RowParams.of(params, self._known(rules.ending_ids)) if params.min_tokens else plain
        live = LiveRequest(request, sink, now, stats=SpeculationStats(num_spec_tokens=k), unfinished=params.n)
        arrival = next(self._arrivals)
        for index in range(params.n):
            choice_seed = params.choice_seed(seed, index)
            choice = Choice(
                live=live,
                index=index,
                arrival=arrival,
                tokens=list(request.prompt_token_ids),
                blocks=SequenceBlocks(self._runner.pool),
                output=OutputState(rules, self._tokenizer),
                rows=(masked, plain),
                noise=None if plain.greedy else self._noise(choice_seed),
                draws=None if plain.greedy else self._draws(choice_seed, k),
                k=k,
                proposal=Proposal(len(request.prompt_token_ids)),
            )
            if k and self._drafts.usable:
                choice.session = self._drafts.session(self._terms(choice, choice_seed, rules))
            live.choices.append(choice)
        return live

    def _check(self, request: GenerationRequest) -> None:
        params, prompt = request.params, request.prompt_token_ids
        if not prompt:
            raise InvalidRequest("the prompt must hold at least one token", param="prompt")
        vocabulary = self._tokenizer.vocabulary
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise InvalidRequest(f"the prompt holds token ids outside [0, {vocabulary})", param="prompt")
        asked = request.speculative.num_speculative_tokens
        if asked is not None and asked < 0:
            raise InvalidRequest("num_speculative_tokens must not be negative", param="num_speculative_tokens")
        total, limit = len(prompt) + params.max_tokens, self._runner.max_context
        if total > limit:
            raise ContextTooLong(
                f"{len(prompt)} prompt tokens and max_tokens {params.max_tokens} exceed the context of {limit} tokens",
                param="max_tokens" if len(prompt) < limit else "prompt",
            )
        pool = self._runner.pool
        if total - 1 > pool.n_total * pool.block_size:
            raise ContextTooLong(f"{total} tokens do not fit the KV cache of {pool.n_total * pool.block_size} tokens")
        if params.min_tokens:
            rules = FinishRules.of(params, self._tokenizer.eos_ids)
            if len(self._known(rules.ending_ids)) >= vocabulary:
                raise InvalidRequest("min_tokens and stop_token_ids together forbid every token", param="min_tokens")

    def _known(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token for token in ids if token < self._tokenizer.vocabulary)

    def lookahead(self, request: GenerationRequest) -> int:
        """Most tokens proposed per round for this request."""
        options = request.speculative
        if self._settings.mode is Mode.AR or not options.enabled:
            return 0
        k = self._settings.speculation.k
        return k if options.num_speculative_tokens is None else min(k, options.num_speculative_tokens)

    def _noise(self, seed: int) -> NoiseSource:
        rows = noise_rows(self._settings.speculation.k)
        runner = self._runner
        return NoiseSource(seed, runner.config.vocab_size, runner.device, capacity=rows, kernels=runner.kernels)

    def _draws(self, seed: int, k: int) -> ChoiceDraws | None:
        if not k or not self._settings.uses_laws:
            return None
        key = ratio_key(self._secret, seed)
        return ChoiceDraws(key, k, self._runner.config.vocab_size, self._runner.device, self._runner.kernels)

    def _terms(self, choice: Choice, seed: int, rules: FinishRules) -> SessionTerms:
        params, speculation = choice.live.request.params, self._settings.speculation
        return SessionTerms(
            tokens=choice.tokens,
            k=choice.k,
            temperature=params.temperature,
            seed=seed,
            top_k=params.top_k,
            top_p=params.top_p,
            stop_ids=self._known(rules.ending_ids),
            max_len=choice.max_len,
            priority=choice.live.request.priority,
            # A greedy law is a point mass: its tokens say all there is to know.
            kind=ProposalKind.DELTA if speculation.ratio and choice.draws is None else speculation.kind,
            top_m=speculation.top_m if speculation.kind is ProposalKind.SPARSE else 0,
            saguaro_c=speculation.saguaro.c,
            saguaro_f=speculation.saguaro.f if speculation.saguaro.c < 1 else 0,
        )


def check_frame(settings: TargetSettings, vocabulary: int) -> None:
    """The largest law must fit a frame, or it would be missing every time.

    Raises:
        ConfigError: it does not.
    """
    speculation, most = settings.speculation, settings.link.law_limit
    if not settings.uses_laws or most is None:
        return
    size = law_bytes(speculation.kind, speculation.k, vocabulary, speculation.top_m)
    if size > most:
        raise ConfigError(
            f"laws of kind {speculation.kind.value!r} for k = {speculation.k} take {size} bytes, more than link."
            f"frame_bytes = {most}: raise it on both sides, lower k, use kind 'sparse', or link.laws = 'tensor'",
            param="link.frame_bytes",
        )
