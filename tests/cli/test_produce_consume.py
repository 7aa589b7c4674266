"""`kbroker produce` and `kbroker consume` against a broker: records survive the round trip; exit conditions."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Done, Run

START_MS = 1_700_000_000_000

_numbers = itertools.count()

Command = Callable[..., Done]
Group = Callable[[str], dict[str, Any]]


@pytest.fixture
def topic(run: Run, broker: str) -> str:
    """A new topic of two partitions."""
    name = f"records-{os.getpid()}-{next(_numbers)}"
    made = run("topic", "-b", broker, "--create", "--topic", name, "--partitions", 2, "--config", "retention.ms=-1")
    assert made.code == 0, made.err
    return name


@pytest.fixture
def produce(run: Run, broker: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`produce(b"lines", ...)`: write to the topic."""

    def produce(data: bytes, *words: object) -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return run("produce", "-b", broker, "-t", topic, *words)

    return produce


@pytest.fixture
def consume(run: Run, broker: str, topic: str) -> Command:
    """`consume(...)`: read the topic, by default to its end."""
    return lambda *words: run("consume", "-b", broker, "-t", topic, "--exit-at-end", *words)


@pytest.fixture
def group_of(run: Run, broker: str) -> Group:
    """`group_of(name)`: the description of a group."""

    def describe(name: str) -> dict[str, Any]:
        done = run("group", "-b", broker, "--describe", "--group", name, "--format", "json")
        (found,) = json.loads(done.out)
        assert isinstance(found, dict)
        return found

    return describe


@pytest.fixture
def timed(produce: Command) -> None:
    """Ten records in partition 0, one per second from START_MS on."""
    lines = [json.dumps({"value": str(n), "timestamp": START_MS + n * 1000, "partition": 0}) for n in range(10)]
    assert produce("\n".join(lines).encode(), "--format", "json").code == 0


def records(consume: Command, *words: object) -> list[dict[str, Any]]:
    done = consume("--format", "json", *words)
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.lines]


def values(done: Done) -> list[int]:
    assert done.code == 0, done.err
    return [int(line) for line in done.lines]


def test_lines_are_records(produce: Command, consume: Command) -> None:
    assert produce(b"one\n\nthree", "-p", 1) == (0, "", "")
    assert consume() == (0, "one\n\nthree\n", "")
    assert [(each["partition"], each["offset"], each["key"]) for each in records(consume)] == [
        (1, 0, None),
        (1, 1, None),
        (1, 2, None),
    ]


def test_keys_headers_and_nulls_are_read_from_lines(produce: Command, consume: Command) -> None:
    words = ["-K", r"\t", "-Z", "NIL", "-H", "a=1", "-H", "b=x=y", "--timestamp", START_MS, "-D", ";"]
    assert produce(b"k\tv\tw;d\tNIL;NIL\tx", "-p", 0, *words).code == 0
    found = records(consume)
    assert [(each["key"], each["value"]) for each in found] == [("k", "v\tw"), ("d", None), (None, "x")]
    assert {json.dumps(each["headers"]) for each in found} == {
        '[{"key": "a", "value": "1"}, {"key": "b", "value": "x=y"}]'
    }
    assert {each["timestamp"] for each in found} == {START_MS}
    assert consume("-K", "=", "-Z", "NIL", "-D", "|").out == "k=v\tw|d=NIL|NIL=x|"


def test_consumed_json_can_be_produced(produce: Command, consume: Command, run: Run, broker: str) -> None:
    given = [
        {"key": {"base64": "//4A"}, "value": "\u00fc\n", "partition": 1, "timestamp": START_MS},
        {"key": "k", "value": None, "partition": 0, "headers": [{"key": "h", "value": {"base64": "/w=="}}]},
    ]
    assert produce("\n".join(map(json.dumps, given)).encode(), "--format", "json").code == 0
    printed = consume("--format", "json")
    first = [json.loads(line) for line in printed.lines]
    assert produce(printed.out.encode(), "--format", "json").code == 0
    again = records(consume)
    assert len(again) == 2 * len(first)
    same = ("key", "value", "headers", "timestamp", "partition")
    for each in first:
        assert [{name: one[name] for name in same} for one in again].count({name: each[name] for name in same}) == 2


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_codec_and_acks_arrive(produce: Command, consume: Command, codec: str, acks: str) -> None:
    lines = b"".join(b"%d even even even\n" % number for number in range(50))
    assert produce(lines, "-p", 0, "-z", codec, "--acks", acks) == (0, "", "")
    assert consume("--count", 50).out.encode() == lines


def test_a_file_is_read_and_a_key_is_fixed(produce: Command, consume: Command, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n")
    assert produce(b"not this", "--file", path, "--key", "k", "--no-idempotence").code == 0
    found = records(consume)
    assert [(each["key"], each["value"]) for each in found] == [("k", "a"), ("k", "b")]
    assert len({each["partition"] for each in found}) == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], range(10)),
        (["-o", "beginning"], range(10)),
        (["--from-beginning"], range(10)),
        (["-o", "end"], []),
        (["-o", "4"], range(4, 10)),
        (["-o", "10"], []),
        (["-o", "-3"], range(7, 10)),
        (["-o", "-99"], range(10)),
        (["-o", f"s@{START_MS + 2500}"], range(3, 10)),
        (["-o", f"e@{START_MS + 2500}"], range(3)),
        (["-o", f"s@{START_MS + 2000}", "-o", f"e@{START_MS + 5000}"], range(2, 5)),
        (["-o", f"s@{START_MS + 99_000}"], []),
        (["-c", "4"], range(4)),
        (["-o", "-5", "--max-messages", "2"], range(5, 7)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_offset_flags_set_start_and_end(
    timed: None, consume: Command, topic: str, words: list[str], found: range | list[int]
) -> None:
    # The other partition is empty, and for a plain offset out of range.
    only = ["--partition", 0] if words[:1] == ["-o"] else []
    assert values(consume(*words, *only)) == list(found)


def test_an_end_timestamp_works_without_exit_at_end(timed: None, run: Run, broker: str, topic: str) -> None:
    words = ["consume", "-b", broker, "-t", f"{topic}:0", "-o", "beginning", "-o"]
    assert values(run(*words, f"e@{START_MS + 3000}")) == [0, 1, 2]


def test_an_offset_outside_the_log_is_an_error(timed: None, consume: Command, topic: str) -> None:
    done = consume("-o", 11, "-p", 0)
    assert done == (1, "", f"kbroker consume: offset 11 is not in {topic}-0, which has 0 to 10\n")


def test_reading_ends_when_no_record_arrives(timed: None, run: Run, broker: str, topic: str) -> None:
    done = run("consume", "-b", broker, "-t", topic, "--from-beginning", "--timeout-ms", 600)
    assert values(done) == list(range(10))


def test_several_topics_are_read_at_once(timed: None, run: Run, broker: str, topic: str, consume: Command) -> None:
    other = f"{topic}-other"
    run("topic", "-b", broker, "--create", "--topic", other)
    done = run("consume", "-b", broker, "-t", topic, "-t", other, "-e", "-f", r"%t %s\n")
    assert sorted(done.lines) == [f"{topic} {number}" for number in range(10)]


def test_a_group_continues_after_the_printed_records(timed: None, consume: Command, group_of: Group) -> None:
    name = f"readers-{next(_numbers)}-{os.getpid()}"
    assert values(consume("-g", name, "--from-beginning", "-c", 4)) == [0, 1, 2, 3]
    described = group_of(name)
    assert described["members"] == []
    assert [each["current_offset"] for each in described["offsets"] if each["partition"] == 0] == [4]
    assert values(consume("--group", name)) == list(range(4, 10))


def test_a_missing_topic_is_an_error_and_is_not_created(run: Run, broker: str) -> None:
    assert run("consume", "-b", broker, "-t", "nowhere", "-e") == (
        1,
        "",
        "kbroker consume: topic 'nowhere' does not exist\n",
    )
    assert "nowhere" not in run("topic", "-b", broker, "--list").lines


def test_a_partition_that_does_not_exist_is_an_error(consume: Command, produce: Command, topic: str) -> None:
    assert consume("-p", 7).err == f"kbroker consume: topic {topic!r} has no partition 7\n"
    assert produce(b"x\n", "-p", 7) == (1, "", f"kbroker produce: topic {topic!r} has no partition 7\n")
    done = produce(b'{"value": "x", "partition": 7}', "--format", "json")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("kbroker produce: line 1 cannot be sent: ")


def test_a_refused_record_fails_the_command_with_its_line(run: Run, broker: str, topic: str, produce: Command) -> None:
    assert run("config", "-b", broker, "--alter", "--topic", topic, "--add-config", "max.message.bytes=1000").code == 0
    done = produce(b"x" * 5_000 + b"\n", "-p", 0)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("kbroker produce: line 1 was not stored")
    assert len(done.err.splitlines()) == 1


def test_an_earlier_line_that_waits_for_another_partition_is_named_as_lost(
    run: Run, topic: str, produce: Command, consume: Command, broker: str
) -> None:
    run(
        "config",
        "-b",
        broker,
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--alter",
        "--add-config",
        "max.message.bytes=1000",
    )
    records = [(0, "waits"), (1, "x" * 5000), (1, "y"), (1, "z")]
    data = b"".join(json.dumps({"partition": at, "value": value}).encode() + b"\n" for at, value in records)
    words = ["--format", "json", "--command-property", "batch.size=50"]
    done = produce(data, *words, "--command-property", "max.in.flight.requests.per.connection=1")
    assert done.code == 1
    assert "line 2 was not stored, and lines from 1 on may be lost: " in done.err
    assert b"waits" not in consume().out.encode()


@pytest.mark.parametrize(
    ("data", "words", "reason"),
    [
        (b"a:b\nab\n", ["-K", ":"], "line 2: no key: ':' is missing"),
        (b'{"value":"a"}\n{"value":1}\n', ["--format", "json"], "line 2: value is neither text nor"),
        (b"\xff\n", ["--format", "json"], "line 1: not JSON"),
        (
            b'{"value":"a","headers":[{"key":"\\ud800","value":"x"}]}\n',
            ["--format", "json"],
            "line 1: the name of a header is not text",
        ),
        (b"NIL\n", ["-Z", "NIL"], "line 1 cannot be sent: "),
        (b"x\n", ["--file", "/nonexistent"], "cannot read /nonexistent: No such file or directory"),
        (b"x\n", ["--file", "/"], "cannot read /: Is a directory"),
    ],
)
def test_the_error_for_invalid_input_names_its_line(
    produce: Command, data: bytes, words: list[str], reason: str
) -> None:
    done = produce(data, *words)
    assert (done.code, done.out) == (1, "")
    assert reason in done.err
    assert len(done.err.splitlines()) == 1


def test_lines_before_an_invalid_one_are_stored(produce: Command, consume: Command) -> None:
    assert produce(b"a:b\nab\n", "-K", ":").code == 1
    assert consume().lines == ["b"]


@pytest.mark.parametrize(
    ("property_", "reason"),
    [
        ("linger.ms=soon", "linger.ms=soon is not a number"),
        ("allow.auto.create.topics=maybe", "allow.auto.create.topics=maybe is neither true nor false"),
        (
            "max.in.flight.requests.per.connection=0",
            "max.in.flight.requests.per.connection=0 is less than 1",
        ),
    ],
)
def test_an_invalid_client_setting_is_refused(produce: Command, property_: str, reason: str) -> None:
    assert produce(b"x\n", "--command-property", property_) == (1, "", f"kbroker produce: {reason}\n")


def test_settings_that_have_a_flag_are_ignored_with_a_warning(
    produce: Command, consume: Command, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text("acks=1\nisolation.level=read_committed\n")
    for done in (produce(b"x\n", "--command-config", path), consume("--command-config", path)):
        assert done.code == 0
        assert done.err.splitlines() == [
            f"kbroker: ignoring the client setting {name}, which has no effect here"
            for name in ("acks", "isolation.level")
        ]


def test_client_flags_override_the_file(produce: Command, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("linger.ms=soon\n")
    assert produce(b"x\n", "--command-config", path).code == 1
    assert produce(b"x\n", "--command-config", path, "--command-property", "linger.ms=1").code == 0


@pytest.fixture
def reader(broker: str, topic: str, timed: None) -> Iterator[subprocess.Popen[bytes]]:
    """A reader that has printed all records and waits for more."""
    words = ["consume", "-b", broker, "-t", topic, "--from-beginning", "--group", f"ended-{topic}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kbroker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    for number in range(10):
        assert process.stdout.readline() == b"%d\n" % number
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_members_share_partitions_and_take_over_from_each_other(
    run: Run, broker: str, topic: str, produce: Command
) -> None:
    def wait_for(assigned: list[int], lags: list[int] | None = None) -> None:
        """Wait for a number of partitions of each member, and for the group's lag in both."""
        deadline = time.monotonic() + 20
        while True:
            found = json.loads(run("group", "-b", broker, "--describe", "--group", topic, "--format", "json").out)
            partitions = [len(each["assignment"].get(topic, [])) for group in found for each in group["members"]]
            now = [each["lag"] for group in found for each in group["offsets"]]
            if sorted(partitions) == assigned and lags in (None, now):
                return
            assert time.monotonic() < deadline

    def fill(name: str) -> set[bytes]:
        lines = {b"%s-%d-%d" % (name.encode(), index, number) for index in (0, 1) for number in range(5)}
        for index in (b"0", b"1"):
            chosen = b"\n".join(sorted(line for line in lines if line.split(b"-")[1] == index))
            assert produce(chosen, "-p", int(index)).code == 0
        return lines

    words = [sys.executable, "-m", "kbroker", "consume", "-b", broker, "-t", topic, "-g", topic, "--from-beginning"]
    words += ["--command-property", "heartbeat.interval.ms=100"]
    with reading(words) as first:
        wait_for([2])
        with reading(words) as second:
            wait_for([1, 1])
            both = fill("both")
            assert {*lines_of(first, 5), *lines_of(second, 5)} == both
            wait_for([1, 1], lags=[0, 0])
            first.terminate()
            assert first.communicate(timeout=20) == (b"", None)
            wait_for([2])
            alone = fill("alone")
            assert {*lines_of(second, 10)} == alone


@contextmanager
def reading(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A reader, which is killed in the end."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_of(process: subprocess.Popen[bytes], number: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(number)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_reader_which_leaves_its_group(
    reader: subprocess.Popen[bytes], group_of: Group, topic: str, number: int, code: int
) -> None:
    reader.send_signal(number)
    assert reader.wait(20) == code
    assert reader.communicate() == (b"", b"")
    assert group_of(f"ended-{topic}")["members"] == []


def test_a_closed_pipe_stops_a_reader_without_error(broker: str, topic: str, produce: Command) -> None:
    assert produce(b"".join(b"%d-%s\n" % (number, b"x" * 200) for number in range(5_000)), "-p", 0).code == 0
    command = f"{sys.executable} -m kbroker consume -b {broker} -t {topic} -e | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"0-x")
    assert done.stderr == b""


def test_an_output_that_takes_no_more_is_an_error(broker: str, topic: str, produce: Command, tmp_path: Path) -> None:
    produce(b"a\n")
    words = f"ulimit -f 0; {sys.executable} -m kbroker consume -b {broker} -t {topic} --exit-at-end > {tmp_path}/out"
    done = subprocess.run(["bash", "-c", words], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "kbroker consume: cannot write the records: File too large\n")


def test_a_closed_input_is_an_error(broker: str, topic: str) -> None:
    words = f"{sys.executable} -m kbroker produce -b {broker} -t {topic} <&-"
    done = subprocess.run(["bash", "-c", words], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "kbroker produce: standard input is closed\n")


def test_lines_are_sent_as_they_arrive(broker: str, topic: str, consume: Command) -> None:
    words = ["produce", "-b", broker, "-t", topic, "-p", "0"]
    process = subprocess.Popen([sys.executable, "-m", "kbroker", *words], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"early\n")
    process.stdin.flush()
    deadline = time.monotonic() + 20
    while not consume().lines:
        assert time.monotonic() < deadline
    process.stdin.close()
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("command", "words", "reason"),
    [
        ("produce", [], "the following arguments are required: -t/--topic"),
        ("produce", ["-t", "a/b"], "'a/b' is not a valid topic name"),
        ("produce", ["-t", "a:0"], "names partitions; use --partition"),
        ("produce", ["-t", "a", "-p", "-1"], "-1 is not a partition"),
        ("produce", ["-t", "a", "-z", "brotli"], "invalid choice: 'brotli'"),
        ("produce", ["-t", "a", "--acks", "2"], "invalid choice: '2'"),
        ("produce", ["-t", "a", "--acks", "1", "--idempotence"], "--idempotence cannot be used with --acks 1"),
        ("produce", ["-t", "a", "-k", "x", "-K", ":"], "--key cannot be used with --key-separator"),
        ("produce", ["-t", "a", "-K", ""], "a separator cannot be empty"),
        ("produce", ["-t", "a", "-H", "x"], "not of the form name=value"),
        ("produce", ["-t", "a", "--timestamp", "-1"], "-1 is not a whole number between 0"),
        ("produce", ["-t", "a", "--format", "json", "-k", "x"], "--key cannot be used with --format json"),
        ("produce", ["-t", "a", "--command-property", "x"], "not of the form key=value"),
        ("consume", [], "the following arguments are required: -t/--topic"),
        ("consume", ["-t", "a:x"], "'x' is not a partition"),
        ("consume", ["-t", "a", "-o", "first"], "'first' is not an offset; use beginning, end"),
        ("consume", ["-t", "a", "-o", "1", "--from-beginning"], "more than one offset to start at"),
        ("consume", ["-t", "a", "-c", "0"], "0 is not a whole number between 1"),
        ("consume", ["-t", "a", "--timeout-ms", "0"], "0 is not a number of milliseconds between 1"),
        ("consume", ["-t", "a", "-f", "%x"], "%x is unknown"),
        ("consume", ["-t", "a", "-f", "%s", "--format", "json"], "--output-format cannot be used with --format json"),
        ("consume", ["-t", "a", "-f", "%s", "-K", ":"], "--key-separator cannot be used with"),
        ("consume", ["-t", "a", "-g", ""], "the name of the group is empty"),
        ("consume", ["-t", "a:0", "-g", "x"], "--group cannot be used with partitions"),
        ("consume", ["-t", "a", "-g", "x", "-o", "5"], "with --group, --offset can only be beginning or end"),
        ("consume", ["-t", "a", "-D", "\\q"], "the escape \\q is unknown"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_reason(run: Run, command: str, words: list[str], reason: str) -> None:
    done = run(command, *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err


def test_on_a_terminal_records_cannot_move_the_cursor(produce: Command, broker: str, topic: str) -> None:
    assert produce("gr\xfc\xdfe\x1b[2J\x9b".encode(), "--partition", 0).code == 0
    command = [sys.executable, "-m", "kbroker", "consume", "-b", broker, "-t", topic, "--exit-at-end"]
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, check=True, timeout=60)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        assert terminal.readline().decode().rstrip() == "gr\xfc\xdfe" + r"\x1b[2J\x9b"
    piped = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
    assert piped.stdout.decode() == "gr\xfc\xdfe\x1b[2J\x9b\n"
