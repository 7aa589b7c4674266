"""`kbroker verify`: sound directories have no findings, every changed byte is found, and verify changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kbroker.cli.verify import _no_broker
from tests.broker_process import BrokerProcess, serve_and_fail
from tests.cli.conftest import Run, Verify
from tests.cli.directories import Sound, findings, flip, logs, partition, starts
from wire.record_batch import RecordBatch

# Every byte of these files is covered by a check.
VOUCHED_FOR = [
    "*.log", "*.index", "*.timeindex", "*.snapshot", "*.checkpoint", "leader-epoch-checkpoint", "partition.metadata",
]  # fmt: skip


def test_a_sound_directory_has_no_findings(verify: Verify, sound: Sound) -> None:
    done = verify(sound.stopped)
    assert (done.code, findings(done)) == (0, [])
    assert len(done.lines) == 1
    assert "/gone-0." in done.out
    assert done.err.startswith("kbroker verify: nothing found, ")
    assert f"logs in {sound.stopped}" in done.err


def test_a_killed_brokers_directory_has_only_notes(verify: Verify, sound: Sound) -> None:
    done = verify(sound.killed)
    assert done.code == 0
    assert ".kafka_cleanshutdown: note: is missing: the shutdown was unclean" in done.out
    assert all(": note: " in line for line in done.lines)


def test_json_output_has_one_object_per_finding(run: Run, stopped: Path) -> None:
    position = starts(logs(stopped)[0])[3]
    flip(logs(stopped)[0], position + 70)
    done = run("verify", "--data-dir", stopped, "--format", "json")
    assert done.code == 3
    *found, summary = (json.loads(line) for line in done.lines)
    assert [(each["kind"], each["file"], each["position"]) for each in found if each["kind"] == "finding"] == [
        ("finding", str(logs(stopped)[0]), position)
    ]
    assert summary["kind"] == "summary"
    assert (summary["findings"], summary["partitions"]) == (1, 5)
    assert done.err == ""


def test_a_wrong_crc_is_found_at_its_place(verify: Verify, stopped: Path) -> None:
    path = logs(stopped)[1]
    position = starts(path)[2]
    flip(path, position + 100)
    done = verify(stopped)
    offset = RecordBatch(path.read_bytes(), position).base_offset
    assert done.code == 3
    assert findings(done) == [f"{path}: at byte {position}: the batch at offset {offset} has a wrong CRC"]
    assert "1 finding, " in done.err


def vouched_for(directory: Path) -> list[Path]:
    files = [path for pattern in VOUCHED_FOR for path in directory.rglob(pattern)]
    return sorted(path for path in files if path.stat().st_size and "-delete" not in str(path))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_flipped_bit_is_found(run: Run, stopped: Path, data: st.DataObject) -> None:
    """Verify finds every changed bit of records and of the files that locate them."""
    path = data.draw(st.sampled_from(vouched_for(stopped)))
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    mask = 1 << data.draw(st.integers(0, 7))
    whole = path.read_bytes()
    try:
        flip(path, position, mask)
        if path.name == "partition.metadata" and path.read_text(errors="replace").split() == whole.decode().split():
            return  # one blank for another
        assert run("verify", "--data-dir", stopped).code == 3, (path, position, mask)
    finally:
        path.write_bytes(whole)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_cut_file_is_found(run: Run, stopped: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(vouched_for(stopped)))
    size = data.draw(st.integers(0, path.stat().st_size - 1))
    # An offset index is sparse, so missing entries may never have been written.
    assume(path.suffix != ".index" or size % 8)
    # So is the time index of the last segment, whose end a start reads anyway.
    is_last = path.with_suffix(".log") in sorted(path.parent.glob("*.log"))[-1:]
    assume(path.suffix != ".timeindex" or not is_last or size % 12)
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:size])
        if path.name == "partition.metadata" and path.read_text().split() == whole.decode().split():
            return  # all but its last line's end
        assert run("verify", "--data-dir", stopped).code == 3, (path, size)
    finally:
        path.write_bytes(whole)


def test_a_directory_with_a_running_broker_is_refused(run: Run, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data"):
        done = run("verify", "--data-dir", tmp_path / "data")
    assert done == (1, "", f"kbroker verify: a broker is running on {tmp_path / 'data'}; stop it first\n")


def test_no_broker_starts_while_a_directory_is_checked(stopped: Path) -> None:
    with _no_broker(str(stopped)):
        code, said = serve_and_fail(stopped)
    assert code == 1
    assert "another broker is running" in said


def test_a_directory_that_cannot_be_checked_is_an_error(run: Run, tmp_path: Path) -> None:
    assert run("verify", "--data-dir", tmp_path / "none") == (
        1,
        "",
        f"kbroker verify: there is no directory {tmp_path / 'none'}\n",
    )
    file = tmp_path / "file"
    file.touch()
    done = run("verify", "--data-dir", file)
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1


def test_an_unreadable_file_is_an_error(run: Run, stopped: Path) -> None:
    (partition(stopped) / "00000000000000099999.log").mkdir()
    done = run("verify", "--data-dir", stopped)
    assert done.code == 1
    assert "cannot check " in done.err
    assert "Is a directory" in done.err


def test_wrong_usage_exits_with_2(run: Run) -> None:
    assert run("verify", "extra").code == 2
    assert run("verify", "--format", "xml").code == 2
