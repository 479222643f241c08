"""Metrics of both engines. Each engine owns a registry, so that several can live in one process; exporters read it.

Names follow vLLM where it has the same quantity (``vllm:...``); the rest is ``ssd:...``.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class TargetMetrics:
    """Counters of one target replica. Token counters count emitted tokens only."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        r = self.registry
        self.requests_running = Gauge("vllm:num_requests_running", "Choices in the running batch.", registry=r)
        self.requests_waiting = Gauge("vllm:num_requests_waiting", "Choices waiting to be scheduled.", registry=r)
        self.kv_usage = Gauge("vllm:kv_cache_usage_perc", "Used share of the KV pool, 0 to 1.", registry=r)
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens.", registry=r)
        self.cached_tokens = Counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", registry=r)
        self.generation_tokens = Counter("vllm:generation_tokens", "Emitted tokens.", registry=r)
        self.preemptions = Counter("vllm:num_preemptions", "Preempted choices.", registry=r)
        self.finished = Counter("vllm:request_success", "Ended choices.", ["finished_reason"], registry=r)
        self.ttft = Histogram(
            "vllm:time_to_first_token_seconds", "Submission to first token.", buckets=_SECONDS, registry=r
        )
        self.drafts = Counter("vllm:spec_decode_num_drafts", "Verified proposals.", registry=r)
        self.draft_tokens = Counter("vllm:spec_decode_num_draft_tokens", "Verified proposed tokens.", registry=r)
        self.accepted_tokens = Counter(
            "vllm:spec_decode_num_accepted_tokens", "Proposed tokens that were emitted.", registry=r
        )
        self.accepted_per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Proposed tokens that were emitted, by position in the proposal.",
            ["position"],
            registry=r,
        )
        self.lookups = Counter(
            "ssd:cache_lookups", "Speculation cache lookups: hit, miss, late, stale.", ["result"], registry=r
        )
        self.fallbacks = Counter(
            "ssd:fallbacks", "Rounds without a cached proposal, by what stood in.", ["source"], registry=r
        )
        self.laws = Counter(
            "ssd:laws",
            "Proposals of ratio kinds by what became of their draft law: used, late, refused; without it they are "
            "verified as delta.",
            ["result"],
            registry=r,
        )
        self.phase_seconds = Counter(
            "ssd:round_phase_seconds",
            "Engine time by phase: forward, verify, draft_wait, link, other.",
            ["phase"],
            registry=r,
        )
        self.rounds = Counter("ssd:rounds", "Engine steps that ran a forward.", registry=r)
        self.link_bytes = Counter("ssd:link_bytes", "Bytes on draft links.", ["direction"], registry=r)
        self.link_dropped = Counter("ssd:link_dropped", "Received messages that did not fit.", ["reason"], registry=r)
        self.draft_failures = Counter(
            "ssd:draft_failures",
            "Lost streams, broken tensor channels and refused sessions.",
            ["reason"],
            registry=r,
        )
        self.self_test_acceptance = Gauge(
            "ssd:self_test_acceptance", "Kept share of proposed tokens in the start-up self-test.", registry=r
        )
        self.unauthorized = Counter("ssd:unauthorized_requests", "HTTP requests without a valid API key.", registry=r)
        self.speculating = Gauge(
            "ssd:speculating", "1: every request speculates, 0.5: one probes, 0: plain decoding.", registry=r
        )
        self.planned_k = Gauge("ssd:planned_k", "Most tokens proposed per row and round now.", registry=r)
        self.planned_rows = Gauge("ssd:planned_rows", "Most branches asked of a draft per row and round.", registry=r)
        self.predicted_speed = Gauge(
            "ssd:predicted_tokens_per_second",
            "What the controller expects of its plan, and of plain decoding, at the present batch.",
            ["of"],
            registry=r,
        )
        self.probes = Counter(
            "ssd:probes", "Probes of the controller: good started speculation, bad did not.", ["result"], registry=r
        )
        self.sessions = Gauge(
            "ssd:draft_sessions", "Sessions on drafts, by state of the handle.", ["state"], registry=r
        )


class DraftMetrics:
    """Counters of one draft replica."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        r = self.registry
        self.sessions = Gauge("ssd:draft_open_sessions", "Open sessions.", registry=r)
        self.kv_usage = Gauge("ssd:draft_kv_usage_perc", "Used share of the draft's KV pool, 0 to 1.", registry=r)
        self.steps = Counter("ssd:draft_steps", "Forward passes.", registry=r)
        self.row_steps = Counter(
            "ssd:draft_row_steps", "Rows run, by kind: prefill, glue, tree, jit.", ["kind"], registry=r
        )
        self.step_seconds = Counter("ssd:draft_step_seconds", "Time in forward passes.", registry=r)
        self.blocks = Counter(
            "ssd:draft_blocks", "Blocks pushed, by completeness: full, partial.", ["completeness"], registry=r
        )
        self.nacks = Counter("ssd:draft_nacks", "Refusals sent, by code.", ["code"], registry=r)
        self.laws = Counter(
            "ssd:draft_laws",
            "Laws asked for by a commit, by whether they could be given: sent, missing, too_large (for a frame).",
            ["result"],
            registry=r,
        )
        self.dropped = Counter("ssd:draft_dropped", "Received messages that did not fit.", ["reason"], registry=r)
        self.evictions = Counter("ssd:draft_evictions", "Sessions that lost their KV pages.", registry=r)
        self.link_bytes = Counter("ssd:draft_link_bytes", "Bytes on target links.", ["direction"], registry=r)
        self.limited = Counter(
            "ssd:draft_limited",
            "What a target asked for beyond its limits, by limit: opens, sessions, tokens, rows.",
            ["limit"],
            registry=r,
        )
        self.invalid_frames = Counter("ssd:draft_invalid_frames", "Frames that were no valid message.", registry=r)
        self.refused_streams = Counter(
            "ssd:draft_refused_streams", "Streams not taken: no_token, wrong_token, full.", ["reason"], registry=r
        )
