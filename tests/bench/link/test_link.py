"""``bench link``: the messages of a round, every backend as typed, and what is left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ssd_cluster.bench.link.lines import Backend, open_line, unfit
from ssd_cluster.bench.link.report import percentiles
from ssd_cluster.bench.link.shape import Payload, Shape
from ssd_cluster.cli import main
from ssd_cluster.errors import LinkError
from ssd_cluster.link.codec import FrameCodec, Side, encode
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.loop import LinkLoop


def shape(payload: Payload, **more: int) -> Shape:
    return Shape(payload=payload, **({"batch": 2, "k": 3, "rows": 4, "vocabulary": 500, "top_m": 8} | more))


@pytest.mark.parametrize("payload", list(Payload))
def test_messages_are_valid_frames(payload: Payload) -> None:
    made = shape(payload)
    target, draft = FrameCodec(Side.TARGET, Limits()), FrameCodec(Side.DRAFT, Limits())
    for message in (made.hello(), made.commit()):
        assert draft.decode(target.encode(message)) == message
    for message in (made.welcome(), made.blocks()):
        decoded: Any = target.decode(draft.encode(message))
        assert type(decoded) is type(message)
    assert len(made.commit().rows) == len(made.blocks().blocks) == 2
    assert [len(block.branches) for block in made.blocks().blocks] == [4, 4]
    laws = [law.packed() for law in made.laws()]
    assert [target.decode(draft.encode(law)) for law in laws] == laws
    assert [law.row_size for law in laws] == {
        Payload.BLOCKS: [], Payload.SPARSE: [(8,) * 3] * 2, Payload.DENSE: [(500,) * 3] * 2,
    }[payload]  # fmt: skip


def test_a_round_over_references_and_over_frames() -> None:
    loop = LinkLoop()
    for backend in (Backend.INPROCESS, Backend.CODEC):
        with open_line(backend, shape(Payload.SPARSE), loop, None, None) as line:
            line.warm_up(2)
            sent = line.stream.bytes_sent
            assert line.round_trip() > 0
            assert line.stream.bytes_sent - sent == backend.frames * len(encode(shape(Payload.SPARSE).commit()))
    with open_line(Backend.CODEC, shape(Payload.BLOCKS), loop, None, None) as line:
        line.stream.close()
        with pytest.raises(LinkError):
            line.round_trip()


def test_what_makes_no_sense_is_left_out() -> None:
    assert unfit(Backend.TENSOR, shape(Payload.BLOCKS)) == "only laws travel on it"
    large = shape(Payload.DENSE, vocabulary=600_000)
    assert "more than the" in (unfit(Backend.GRPC, large) or "")
    assert unfit(Backend.TENSOR, large) is None
    assert unfit(Backend.GRPC, shape(Payload.SPARSE, vocabulary=600_000)) is None


def test_percentiles_of_repetitions() -> None:
    p50, p99 = percentiles([[i / 1e6 for i in range(101)], [2 * i / 1e6 for i in range(101)]])
    assert (p50.min, p50.median, p50.max) == pytest.approx((50, 75, 100))
    assert (p99.min, p99.max) == pytest.approx((99, 198))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "out" / "link.json", tmp_path / "figures" / "link.png"
    sizes = ["--batch", "2", "--k", "3", "--rows", "4", "--vocabulary", "500", "--top-m", "8", "--round-trips", "5"]
    where = ["--target-cores", "0", "--draft-cores", "0", "--json", str(out), "--plot", str(plot)]
    command = ["bench", "link", *sizes, "--repetitions", "2", *where]
    assert main([*command, "--payloads", "dense", "--backends", "inprocess,codec,grpc-tls,tensor"]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    results = {r["backend"]: r for r in json.loads(out.read_text())["results"]}
    assert list(results) == ["inprocess", "codec", "grpc-tls", "tensor"]
    here, frames, remote, tensor = results.values()
    assert here["commit_bytes"] is here["law_bytes"] is None
    assert frames["commit_bytes"] == remote["commit_bytes"] == tensor["commit_bytes"] > 50
    assert frames["law_bytes"] == remote["law_bytes"] > 3 * 500 * 4 > tensor["law_bytes"]
    assert tensor["beside_bytes"] == (3 * 500 + 2) * 4
    assert all(0 < r["p50_us"]["min"] <= r["p50_us"]["max"] for r in results.values())
    assert "2 repetitions" in capsys.readouterr().out
    assert main([*command, "--payloads", "blocks", "--backends", "tensor"]) == 2
    assert main([*command, "--top-m", "501"]) == 2
    assert main([*command, "--backends", "pigeon"]) == 2
    error = capsys.readouterr().err
    assert "nothing is left to measure" in error
    assert "top_m (501) must not exceed the vocabulary (500)" in error
    assert "there is no pigeon" in error
