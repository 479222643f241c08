"""Trace files: bounded, complete after close, readable when cut, refused when they are something else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgpack
import pytest

from ssd_cluster.errors import ConfigError
from ssd_cluster.tracefile import TraceWriter, read_records


def test_what_is_put_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    writer = TraceWriter(path, {"role": "test", "k": 5})
    for number in range(100):
        writer.put(("x", number, [(1, "two", 3.5)], None))
    writer.close()
    writer.close()
    header, records = read_records(path)
    assert (header["role"], header["k"], header["version"]) == ("test", 5, 1)
    found = list(records)
    assert found[:2] == [["x", 0, [[1, "two", 3.5]], None], ["x", 1, [[1, "two", 3.5]], None]]
    assert found[-1] == ["end", 0]
    assert len(found) == 101


def test_a_full_buffer_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    drain = TraceWriter._drain

    def slow(self: TraceWriter) -> None:
        held.wait(10)
        drain(self)

    monkeypatch.setattr(TraceWriter, "_drain", slow)
    writer = TraceWriter(tmp_path / "b.trace", {}, buffered=8)
    for number in range(20):
        writer.put(("x", number))
    assert writer.dropped == 12
    held.set()
    writer.close()
    found = list(read_records(tmp_path / "b.trace")[1])
    assert [record[1] for record in found] == [*range(8), 12]


def test_a_disk_that_fails_ends_the_trace_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with pytest.raises(ConfigError, match="cannot write the trace"):
        TraceWriter(Path("/dev/full"), {})
    writer = TraceWriter(tmp_path / "c.trace", {})
    writer._file.close()
    writer._file = open("/dev/full", "wb")  # noqa: SIM115
    writer.put(("x", 1))
    writer.close()
    assert "trace_failed" in caplog.text
    writer.put(("x", 2))
    assert writer.dropped == 1


def test_the_process_id_can_be_part_of_the_name(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t-{pid}.trace", {})
    writer.close()
    assert (tmp_path / f"t-{os.getpid()}.trace").exists()


def test_a_cut_file_is_readable_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "d.trace"
    writer = TraceWriter(path, {})
    for number in range(50):
        writer.put(("x", number, "some text"))
    writer.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 3])
    found = list(read_records(path)[1])
    assert 15 < len(found) < 30
    assert found[-1][1] == len(found) - 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no trace"),
        (b"{}", "is no trace"),
        (msgpack.packb({"format": "ssd-cluster trace", "version": 9}), "has version 9"),
        (msgpack.packb([1]), "is no trace"),
        (b"\xc1", "is no trace"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "e"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_records(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_records(tmp_path / "nothing")


@pytest.mark.parametrize("damage", [b"\xc1\xc1", msgpack.packb(7), msgpack.packb([])])
def test_damage_is_said(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "f"
    header = msgpack.packb({"format": "ssd-cluster trace", "version": 1})
    path.write_bytes(header + msgpack.packb(["x"]) + damage)
    with pytest.raises(ConfigError, match="damaged after record"):
        list(read_records(path)[1])
