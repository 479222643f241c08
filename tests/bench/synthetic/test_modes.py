"""``bench modes`` with a synthetic draft: the same text, rounds as the script says, and a table that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.here import HereEngine, here
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import LinkBackend, PairOptions, engine_spec
from ssd_cluster.bench.summary import ModeResult, Spread
from ssd_cluster.bench.synthetic.options import draft_ms, recorded, round_check
from ssd_cluster.bench.synthetic.script import Script, ScriptFile, Scripts
from ssd_cluster.cli import main
from ssd_cluster.config import DraftSettings, DType, SpeculationSettings, TargetSettings
from ssd_cluster.types import Mode

K = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    return str(target), str(perturb(target, folder / "draft", noise=0.2))


def options(pair: tuple[str, str], folder: Path) -> list[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "the river ran"}\n{"prompt": "a right guess"}\n')
    return [
        "bench", "modes", "--prompts", str(prompts), "--max-tokens", "40", "--ignore-eos", "--repetitions", "1",
        "--target", pair[0], "--draft", pair[1], "--dtype", "float32", "--k", str(K), "--wait-ms", "5000",
        "--target-cores", "0", "--draft-cores", "0",
    ]  # fmt: skip


def rounds(script: Script, first: int, n: int, k: int, plain: int) -> tuple[int, int]:
    """(drafted rounds, accepted tokens) for n tokens: one of the prefill, ``plain`` ones, then drafted rounds."""
    done, steps, accepted = 1 + plain, 0, 0
    while done < n:
        proposed = min(k, n - done - 1)
        kept = 0
        while kept < proposed and script.line(first + done + kept).drafted:  # type: ignore[union-attr]
            kept += 1
        steps += proposed > 0
        accepted += kept
        done += kept + 1
    return steps, accepted


def test_rounds_are_those_of_the_script(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = here(monkeypatch)
    seen: list[tuple[ScriptFile, float, list[object]]] = []
    run = HereEngine.run

    def watched(self: HereEngine, workload: Workload) -> object:
        record = run(self, workload)
        if self.mode is Mode.SD and len(workload.prompts) == 2 and not workload.keep_text:
            assert self.spec.script is not None
            file = ScriptFile.model_validate_json(self.spec.script.read_text())
            seen.append((file, workload.temperature, [*record.requests]))
        return record

    monkeypatch.setattr(HereEngine, "run", watched)
    out, plot = tmp_path / "out.json", tmp_path / "frontier.png"
    more = ["--synthetic-acceptance", "0.8", "--synthetic-hit", "0.85", "--temperature", "1"]
    files = ["--json", str(out), "--plot", str(plot)]
    assert main([*options(pair, tmp_path), *more, *files, "--also-cores", "0", "--sd-k", "2"]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert HereEngine.running == 0
    for file, temperature, requests in seen:
        assert (file.acceptance, file.hit, len(file.texts)) == (0.8, 0.85, 2)
        texts = [text for text in file.texts if text.temperature == temperature]
        for text, request in zip(texts, requests, strict=True):
            script = Script(text, file)
            # Rounds before the session is open are plain: on a busy machine some of them.
            fitting = [rounds(script, len(text.prompt), 40, 2, plain) for plain in range(12)]
            assert (request.spec_steps, request.accepted_tokens) in fitting  # type: ignore[attr-defined]
    assert len(seen) == 2, "sd, and sd on other cores"
    content = json.loads(out.read_text())
    assert content["config"]["different_outputs"] == {"ar": 0, "ar on 0": 0, "sd": 0, "sd on 0": 0, "ssd": 0}
    assert (content["config"]["synthetic_acceptance"], content["config"]["synthetic_hit"]) == (0.8, 0.85)
    assert [(spec.mode, spec.target.speculation.k, spec.script is not None) for spec in started] == [
        (Mode.AR, K, False), (Mode.SD, 2, True), (Mode.SD, K, True),  # recorded
        (Mode.AR, K, False), (Mode.AR, K, False), (Mode.SD, 2, True), (Mode.SD, 2, True), (Mode.SSD, K, True),
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.startswith("SYNTHETIC draft in sd and ssd")
    assert "sd on 0 (synthetic)" in printed
    assert "ar (synthetic)" not in printed


def test_a_draft_process_follows_the_script(pair: tuple[str, str], tmp_path: Path) -> None:
    speculation = SpeculationSettings(k=K, rows=4, wait_ms=5000)
    chosen = PairOptions(target=pair[0], draft=pair[1], speculation=speculation, dtype=DType.FLOAT32,
                         target_cores=(0,), draft_cores=(0,))  # fmt: skip
    work = Workload(prompts=("the river ran",), max_tokens=21, ignore_eos=True, keep_text=True)
    with LocalEngine(engine_spec(Mode.AR, chosen)) as plain:
        told = plain.driver.run(work)
    script = tmp_path / "script.json"
    script.write_text(ScriptFile(acceptance=1, hit=1, texts=tuple(recorded(work, told))).model_dump_json())
    spec = engine_spec(Mode.SSD, chosen, LinkBackend.GRPC).model_copy(update={"script": script})
    with LocalEngine(spec) as local:
        (request,) = local.driver.run(work).requests
    assert request.text == told.requests[0].text
    assert request.draft_tokens > 0
    drafted = request.draft_tokens - request.accepted_tokens
    assert drafted <= K * (20 - request.accepted_tokens), "only n-grams may fail, where the draft was late"


def test_recorded_seeds_are_those_of_sessions(pair: tuple[str, str]) -> None:
    chosen = PairOptions(target=pair[0], draft=pair[1], speculation=SpeculationSettings(k=K, rows=4),
                         dtype=DType.FLOAT32, target_cores=(0,))  # fmt: skip
    work = Workload(prompts=("a", "b"), max_tokens=4, temperature=1.0, seed=-3, ignore_eos=True, keep_text=True)
    with LocalEngine(engine_spec(Mode.AR, chosen)) as plain:
        texts = recorded(work, plain.driver.run(work))
    assert len({text.seed for text in texts}) == 2
    assert all(text.temperature == 1.0 and len(text.tokens) == 4 for text in texts)
    scripts = Scripts(ScriptFile(acceptance=1, hit=1, texts=tuple(texts)))
    assert [s.tokens for s in scripts.find(texts[0].prompt, 1.0, texts[0].seed)] == [texts[0].prompt + texts[0].tokens]
    with pytest.raises(ValueError, match="did not keep"):
        recorded(work, told_without_text(work))


def told_without_text(work: Workload):
    from ssd_cluster.bench.handle import RequestRecord, RunRecord

    request = RequestRecord(first_token_s=0, finished_s=1, prompt_tokens=1, completion_tokens=1)
    return RunRecord(requests=(request,) * len(work.prompts), rounds=0, phase_s={})


def test_the_check_of_a_round() -> None:
    phases = {"target_forward": 18.0, "noise": 0.0, "process": 1.0, "verify": 1.0, "total": 24.0, "hit_path": 2.0}
    speed = Spread(1.0, 1.0, 1.0)
    ssd = ModeResult(Mode.SSD, 0.0, 1, speed, 3.0, 0.8, 0.85, phases, hit_round_ms=23.1)
    step = {"base_us": 2000.0, "per_row_us": 50.0}
    assert draft_ms(step, 5, 16, 1) == pytest.approx(2.3 + 5 * 2.8)
    line = round_check(ssd, {"draft_step_time": step}, 5, 16)
    assert line is not None
    assert "max(T_v 20.00, T_draft 16.30) + hit path 2.00 = 22.00 ms (+5.0 %)" in line
    slow = round_check(ssd, {"draft_step_time": step}, 8, 32)
    assert slow is not None
    assert "max(T_v 20.00, T_draft 31.25) + hit path 2.00 = 33.25 ms (-30.5 %)" in slow
    assert round_check(ssd, {}, 5, 16) is None
    assert (
        round_check(ModeResult(Mode.SD, 0.0, 1, speed, 3.0, 0.8, None, phases), {"draft_step_time": step}, 5, 16)
        is None
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--synthetic-acceptance", "0.8"], "belong together"),
        (["--synthetic-hit", "0.8"], "belong together"),
        (["--synthetic-acceptance", "1", "--synthetic-hit", "1", "--kind", "sparse"], "kind coupled"),
        (["--synthetic-acceptance", "1", "--synthetic-hit", "1", "--modes", "ar"], "needs mode sd or ssd"),
    ],
)
def test_wrong_options_are_one_line(
    pair: tuple[str, str], tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(pair, tmp_path), *more]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_no_server_can_be_told_to_be_synthetic() -> None:
    for settings, part in (
        (TargetSettings, {"speculation": {"synthetic_acceptance": 0.8}}),
        (DraftSettings, {"script": "x"}),
    ):
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            settings.model_validate({"model": {"path": "x"}} | part)
