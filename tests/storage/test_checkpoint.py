from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.checkpoint import format_offsets, parse_offsets, read_offsets, write_atomically
from tests.storage.logs import FailingDisk


def test_the_offset_checkpoint_has_kafkas_format() -> None:
    text = "0\n2\norders 0 25000\nre-turns.x_y 11 0\n"
    offsets = {("orders", 0): 25_000, ("re-turns.x_y", 11): 0}
    assert format_offsets(offsets) == text
    assert parse_offsets(text) == offsets
    assert parse_offsets("0\n0\n") == {}
    assert parse_offsets("") == {}


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\nx\n", "0\n1\n", "0\n1\na 0\n", "0\n1\na 0 1\nb 0 1\n", "0\n1\na x 1\n", "0\n2\na 0 1"]
)
def test_d3_malformed_offset_checkpoints_raise_value_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(ValueError, match="malformed"):
        read_offsets(FailingDisk(), str(path))


def test_d3_binary_offset_checkpoints_raise_value_error(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="malformed"):
        read_offsets(FailingDisk(), str(path))


def test_a_missing_checkpoint_has_no_offsets(tmp_path: Path) -> None:
    assert read_offsets(FailingDisk(), str(tmp_path / "none")) == {}


def test_d3_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    disk = FailingDisk()
    write_atomically(disk, str(path), b"newer")
    assert disk.done == [
        "open file.tmp",
        "truncate file.tmp",
        "pwrite file.tmp",
        "sync file.tmp",
        "rename file",
        f"sync_directory {tmp_path.name}",
    ]
    for kind in ("open", "truncate", "pwrite", "sync", "rename"):
        disk.fail(kind)
        with pytest.raises(OSError, match="Input/output"):
            write_atomically(disk, str(path), b"x" * 1_000)
        assert path.read_bytes() == b"newer"
    write_atomically(disk, str(path), b"short")
    assert path.read_bytes() == b"short"
