"""The engine from outside: requests, ids, aborts, sinks, failures, its thread."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

import pytest
import torch
from support.scripted_draft import Garbage, HalfRight, Script, ScriptedDraft, Truth
from support.target_rig import Client, Rig, assert_clean, connect, drain, request, run, submit

from ssd_cluster.errors import ContextTooLong, EngineStopped, InvalidRequest, Overloaded
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest, SpeculativeOptions
from ssd_cluster.target.sequence import Choice, LiveRequest
from ssd_cluster.types import FinishReason, Mode

from .conftest import Reference

PROMPT = range(5, 40)
Plain = Callable[[list[GenerationRequest]], Reference]


def ignore(event: Event) -> None:
    """A sink for requests that are never run."""


# --- what a request may ask


def test_what_cannot_be_served_is_said_before_scheduling(rig: Rig) -> None:
    engine = rig.engine(Mode.SSD, blocks=8)
    wrong: list[tuple[type[Exception], GenerationRequest]] = [
        (InvalidRequest, request("a", ())),
        (InvalidRequest, request("a", (3, rig.tokenizer.vocabulary))),
        (InvalidRequest, request("a", (3, -1))),
        (InvalidRequest, request("a", PROMPT, speculative=SpeculativeOptions(num_speculative_tokens=-1))),
        (InvalidRequest, request("a", PROMPT, min_tokens=1, stop_token_ids=tuple(range(320)))),
        (ContextTooLong, request("a", PROMPT, max_tokens=rig.runner.max_context)),
        (ContextTooLong, request("a", PROMPT, max_tokens=8 * 8 - len(PROMPT) + 2)),
    ]
    for kind, one in wrong:
        with pytest.raises(kind):
            engine.submit(one, ignore)
    assert engine.snapshot().requests == 0
    assert engine.healthy()
    fits = request("a", PROMPT, temperature=0, max_tokens=8 * 8 - len(PROMPT) + 1, ignore_eos=True)
    assert len(run(engine, [fits])[0].choices[0].token_ids) == 30


def test_too_many_waiting_is_overload(rig: Rig) -> None:
    engine = rig.engine(Mode.AR, max_waiting=3)
    for index in range(3):
        engine.submit(request(f"r{index}", PROMPT), ignore)
    with pytest.raises(Overloaded):
        engine.submit(request("r3", PROMPT), ignore)
    engine.step()
    engine.submit(request("r3", PROMPT), ignore)
    drain(engine)
    assert_clean(engine)


def test_requests_are_counted_while_the_engine_takes_them(rig: Rig) -> None:
    engine = rig.engine(Mode.AR)
    taken: list[str] = []

    class Taking(list[Choice]):
        """A request's choices; whoever counts them finds that the engine has just taken the request behind."""

        def __len__(self) -> int:
            if not taken:
                taken.append(engine._submitted.pop().request.request_id)
            return super().__len__()

    for name in ("a", "b"):
        engine.submit(request(name, PROMPT), ignore)
    engine._submitted[0].choices = Taking(engine._submitted[0].choices)
    engine.submit(request("c", PROMPT), ignore)
    assert taken == ["b"]
    assert [live.request.request_id for live in engine._submitted] == ["a", "c"]


def test_an_id_may_be_reused_only_after_its_request_has_ended(rig: Rig, reference: Plain) -> None:
    one = request("same", PROMPT, temperature=1.0)
    known = reference([one])
    draft = ScriptedDraft(HalfRight(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    for turn in range(3):
        clients = submit(engine, [one])
        with pytest.raises(InvalidRequest):
            engine.submit(one, ignore)
        if turn == 1:
            for _ in range(3):
                engine.step()
            engine.abort("same")
        drain(engine)
        said = clients[0].choices[0]
        expected = known.clients[0].choices[0].token_ids
        assert said.token_ids == (expected if turn != 1 else expected[: len(said.token_ids)])
    sessions = [message.session for message in draft.received if type(message).__name__ == "Open"]
    assert len(set(sessions)) == 3
    assert_clean(engine, draft)
    engine.stop()


def test_a_sink_may_submit_the_same_id_again(rig: Rig) -> None:
    engine = rig.engine(Mode.AR)
    seen: list[Finished] = []

    def again(event: Event) -> None:
        if isinstance(event, Finished):
            seen.append(event)
            if len(seen) < 3:
                engine.submit(request("again", PROMPT, max_tokens=3), again)

    engine.submit(request("again", PROMPT, max_tokens=3), again)
    drain(engine)
    assert len(seen) == 3


# --- what comes out


def test_events_come_in_order_and_usage_is_exact(rig: Rig, reference: Plain) -> None:
    requests = [request(f"r{i}", PROMPT, n=i + 1, temperature=0.8, seed=i, max_tokens=10 + i) for i in range(3)]
    known = reference(requests)
    draft = ScriptedDraft(HalfRight(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    for client, plain in zip(run(engine, requests), known.clients, strict=True):
        finished = client.finished
        assert finished is not None
        assert client.tokens == plain.tokens
        assert finished.completion_tokens == sum(len(tokens) for tokens in client.tokens)
        assert finished.prompt_tokens == len(PROMPT)
        assert finished.prefill_s >= 0
        assert finished.decode_s >= 0
        for choice in client.choices:
            assert choice.reason is not None
            assert choice.text == rig.tokenizer.decode(
                choice.token_ids[:-1] if choice.reason is FinishReason.STOP else choice.token_ids
            )
            assert all(delta.token_ids for delta in choice.deltas), "one delta per round, never an empty one"
            assert max(len(delta.token_ids) for delta in choice.deltas) > 1, "kept tokens and t* come together"
    assert_clean(engine, draft)
    engine.stop()


def test_choice_c_of_n_is_the_single_choice_with_seed_plus_c(rig: Rig) -> None:
    many = run(rig.engine(Mode.AR), [request("n", PROMPT, temperature=1.0, n=4, seed=2**64 - 2)])[0]
    for index, seed in enumerate((2**64 - 2, -1, 0, 1)):
        alone = run(rig.engine(Mode.AR), [request("one", PROMPT, temperature=1.0, seed=seed)])[0]
        assert many.tokens[index] == alone.tokens[0]
    assert len({tuple(tokens) for tokens in many.tokens}) == 4


def test_seeded_output_does_not_depend_on_batch_mates(rig: Rig) -> None:
    one = request("one", PROMPT, temperature=1.0, seed=5)
    alone = run(rig.engine(Mode.AR), [one])[0].tokens
    rng = random.Random(0)
    for _ in range(4):
        mates = [
            request(f"m{i}", [rng.randrange(5, 300) for _ in range(rng.randrange(3, 60))], temperature=rng.random())
            for i in range(rng.randrange(1, 6))
        ]
        place = rng.randrange(len(mates) + 1)
        together = run(rig.engine(Mode.AR), [*mates[:place], one, *mates[place:]])
        assert together[place].tokens == alone


def test_requests_without_a_seed_differ(rig: Rig) -> None:
    said = run(rig.engine(Mode.AR), [request(f"r{i}", PROMPT, temperature=1.0, seed=None) for i in range(3)])
    assert len({tuple(client.tokens[0]) for client in said}) == 3


def test_a_warm_prefix_is_counted_and_changes_nothing(rig: Rig) -> None:
    engine = rig.engine(Mode.AR)
    cold, warm = (run(engine, [request("r", PROMPT, temperature=1.0)])[0] for _ in range(2))
    assert cold.finished is not None
    assert warm.finished is not None
    assert (cold.finished.cached_tokens, warm.finished.cached_tokens) == (0, 32)
    assert warm.tokens == cold.tokens
    value = engine.metrics.registry.get_sample_value
    assert value("vllm:prefix_cache_hits_total") == 32
    assert value("vllm:prompt_tokens_total") == 2 * len(PROMPT)


def test_speculation_can_be_switched_off_or_lowered_per_request(rig: Rig, reference: Plain) -> None:
    requests = [
        request("off", PROMPT, temperature=0, speculative=SpeculativeOptions(enabled=False)),
        request("two", PROMPT, temperature=0, speculative=SpeculativeOptions(num_speculative_tokens=2)),
        request("zero", PROMPT, temperature=0, speculative=SpeculativeOptions(num_speculative_tokens=0)),
        request("full", PROMPT, temperature=0),
    ]
    known = reference(requests)
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 4})
    connect(engine)
    off, two, zero, full = run(engine, requests)
    for plain in (off, zero):
        assert plain.finished is not None
        assert plain.finished.speculation.num_spec_steps == 0
        assert plain.finished.speculation.fallbacks == 0
        assert all(len(delta.token_ids) == 1 for delta in plain.choices[0].deltas)
    assert max(len(delta.token_ids) for delta in two.choices[0].deltas) == 3
    assert max(len(delta.token_ids) for delta in full.choices[0].deltas) == 5
    assert len([message for message in draft.received if type(message).__name__ == "Open"]) == 2
    engine.stop()


# --- aborts, sinks, failures


@pytest.mark.parametrize("mode", list(Mode))
def test_two_hundred_aborts_leave_nothing_behind(rig: Rig, mode: Mode) -> None:
    rng = random.Random(3)
    draft = ScriptedDraft(Garbage(Truth()))
    engine = rig.engine(mode, [draft.connect], blocks=48, speculation={"k": 3, "wait_ms": 0.2}, max_batch=4)
    if mode is not Mode.AR:
        connect(engine)
    clients: list[Client] = []
    for index in range(200):
        prompt = [rng.randrange(5, 300) for _ in range(rng.randrange(1, 40))]
        one = request(f"r{index}", prompt, temperature=rng.choice((0, 1)), n=rng.choice((1, 1, 2)), seed=index)
        clients += submit(engine, [one])
        for _ in range(rng.randrange(3)):
            engine.step()
        live = [client.request.request_id for client in clients if client.finished is None]
        while len(live) > 6:
            engine.abort(live.pop(rng.randrange(len(live))))
            if rng.random() < 0.3:
                engine.step()
    for client in clients:
        engine.abort(client.request.request_id)
    engine.abort("never heard of")
    drain(engine)
    reasons = [choice.reason for client in clients for choice in client.choices]
    assert None not in reasons
    assert reasons.count(FinishReason.ABORT) > 100
    assert_clean(engine, draft)
    engine.stop()


def test_a_sink_that_raises_aborts_its_own_request_only(rig: Rig) -> None:
    engine = rig.engine(Mode.AR)
    seen: list[Event] = []

    def broken(event: Event) -> None:
        seen.append(event)
        if len(seen) == 3:
            raise ValueError("client bug")

    engine.submit(request("broken", PROMPT, n=2), broken)
    good = submit(engine, [request("good", PROMPT, temperature=0)])[0]
    drain(engine)
    assert len(seen) == 3
    assert good.finished is not None
    assert good.finished.error is None
    assert engine.healthy()
    assert_clean(engine)


def test_a_failing_forward_fails_the_requests_and_the_engine(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = ScriptedDraft(Script(Truth()))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    clients = submit(engine, [request("a", PROMPT), request("b", PROMPT, n=2)])
    engine.step()

    def broken(batch: ForwardBatch) -> torch.Tensor:
        raise RuntimeError("device lost")

    monkeypatch.setattr(rig.runner, "forward", broken)
    engine.step()
    for client in clients:
        assert client.finished is not None
        assert client.finished.error is not None
        assert "RuntimeError" in client.finished.error
    assert not engine.healthy()
    with pytest.raises(EngineStopped):
        engine.submit(request("c", PROMPT), ignore)
    with pytest.raises(EngineStopped):
        engine.step()
    assert_clean(engine, draft)
    engine.stop()


def test_submitted_and_aborted_while_the_engine_takes_commands(rig: Rig) -> None:
    engine = rig.engine(Mode.AR)
    late = Client(request("late", PROMPT))

    class Interrupted(deque[LiveRequest]):
        """Another thread submits and aborts just when the engine has seen that nothing is submitted."""

        interrupted = False

        def __len__(self) -> int:
            found = super().__len__()
            if not found and not self.interrupted:
                self.interrupted = True
                engine.submit(late.request, late)
                engine.abort("late")
            return found

    engine._submitted = Interrupted()
    for _ in range(3):
        engine.step()
    assert late.finished is not None
    assert late.choices[0].reason is FinishReason.ABORT
    assert_clean(engine)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_leave_nothing_to_draw_end_their_request_alone(
    rig: Rig, reference: Plain, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    good = request("good", PROMPT, temperature=temperature)
    known = reference([good])
    draft = ScriptedDraft(HalfRight(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    clients = submit(engine, [request("bad", PROMPT[::-1], n=2, temperature=temperature), good])
    engine.step()
    broken = engine._live["bad"].choices[1]
    forward = rig.runner.forward

    def half_broken(batch: ForwardBatch) -> torch.Tensor:
        logits, row = forward(batch).clone(), 0
        for span in batch.spans:
            if span.block_table == broken.blocks.table:
                logits[row : row + span.n_logits] = torch.nan
            row += span.n_logits
        return logits

    monkeypatch.setattr(rig.runner, "forward", half_broken)
    drain(engine)
    bad, fine = clients
    assert bad.finished is not None
    assert "cannot be sampled from" in (bad.finished.error or "")
    assert fine.finished is not None
    assert fine.finished.error is None
    assert fine.tokens == known.clients[0].tokens
    assert engine.healthy()
    assert_clean(engine, draft)


def test_an_engine_that_makes_no_progress_with_work_is_unhealthy(rig: Rig) -> None:
    now = [0.0]
    engine = rig.engine(Mode.AR, clock=lambda: now[0], stall_s=5.0)
    now[0] = 100.0
    assert engine.healthy(), "idle is fine"
    engine.step()
    engine.submit(request("r", PROMPT), ignore)
    assert engine.healthy()
    now[0] = 106.0
    assert not engine.healthy()
    engine.step()
    assert engine.healthy()


def test_the_thread_serves_submissions_from_many_threads(rig: Rig, reference: Plain) -> None:
    requests = [request(f"r{i}", PROMPT, temperature=1.0, seed=i) for i in range(12)]
    known = reference(requests)
    draft = ScriptedDraft(HalfRight(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    engine.start()
    assert engine.wait_for_draft(5.0)
    clients = [Client(one) for one in requests]
    done = threading.Semaphore(0)

    def send(client: Client) -> None:
        def sink(event: Event) -> None:
            client(event)
            if isinstance(event, Finished):
                done.release()

        engine.submit(client.request, sink)

    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(done.acquire(timeout=30) for _ in clients)
    assert [client.tokens for client in clients] == [plain.tokens for plain in known.clients]
    engine.stop()
    assert_clean(engine, draft)


def test_stop_ends_live_requests_with_an_error_and_closes_the_links(rig: Rig) -> None:
    draft = ScriptedDraft(Script(Truth()))
    engine = rig.engine(Mode.SSD, [draft.connect])
    engine.start()
    assert engine.wait_for_draft(5.0)
    ended = threading.Event()
    events: list[Event] = []

    def sink(event: Event) -> None:
        events.append(event)
        if isinstance(event, Delta):
            time.sleep(0.01)
        else:
            ended.set()

    engine.submit(request("r", PROMPT, max_tokens=400, ignore_eos=True), sink)
    engine.stop(10.0)
    engine.stop(10.0)
    assert ended.is_set()
    assert isinstance(events[-1], Finished)
    assert events[-1].error is not None
    assert draft.stream is not None
    assert draft.stream.closed
    assert not engine.healthy()
    with pytest.raises(EngineStopped):
        engine.submit(request("late", PROMPT), ignore)
    assert_clean(engine, draft)
