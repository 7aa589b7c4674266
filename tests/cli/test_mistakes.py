"""The mistakes of a beginner: each is answered at once, with what is wrong and what to do."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producing import Producer
from tests.broker_process import BrokerProcess
from tests.cli.conftest import Run
from wire.compression import Codec
from wire.errors import KafkaError


@pytest.fixture(scope="module", autouse=True)
def orders(broker: str) -> None:
    words = ["topic", "-b", broker, "--create", "--topic", "mistaken-orders"]
    subprocess.run([sys.executable, "-m", "kbroker", *words], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prodce"], "argument COMMAND: invalid choice: 'prodce' (choose from "),
        (["prodce"], "; did you mean produce?"),
        (["tier", "list"], "argument PART: invalid choice: 'list' (choose from "),
        (["-b", "localhost:9092", "topic", "--list"], "flags come after the command"),
        (
            ["topic", "--list", "--zookeeper", "localhost:2181"],
            "unknown flag --zookeeper; here it is --bootstrap-server",
        ),
        (["produce", "-t", "x", "--broker-list", "h:1"], "unknown flag --broker-list; here it is --bootstrap-server"),
        (["serve", "--port", "9092"], "unknown flag --port; here it is --listen"),
        (
            ["consume", "--topic", "t", "--from-begining"],
            "unknown flag --from-begining; did you mean --from-beginning?",
        ),
        (["consume", "-t", "orders.*"], "'orders.*' is not a valid topic name"),
        (["topic"], "one of the arguments --create --delete --alter --list --describe is required"),
    ],
)
def test_wrong_words_name_the_right_ones(run: Run, words: list[str], said: str) -> None:
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["consume", "-t", "Mistaken-Orders", "-e"],
            "'Mistaken-Orders' does not exist; did you mean mistaken-orders?",
        ),
        (["consume", "-t", "mistaken-orders", "-p", "7"], "topic 'mistaken-orders' has no partition 7"),
        (["produce", "-t", "mistaken-orders", "-p", "7"], "topic 'mistaken-orders' has no partition 7"),
        (
            ["topic", "--describe", "--topic", "mistaken-order"],
            "as expected; did you mean mistaken-orders?",
        ),
        (["config", "--describe", "--topic", "mistaken-ordres"], "does not exist; did you mean mistaken-orders?"),
        (["consume", "-t", "mistaken-orders", "-o", "5"], "offset 5 is not in mistaken-orders-0, which has 0 to 0"),
        (["produce", "-t", "mistaken-orders", "--file", "/nonexistent"], "cannot read /nonexistent: No such file"),
        (["group", "--describe", "--group", "no-such-group"], "group 'no-such-group' does not exist"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(run: Run, broker: str, words: list[str], said: str) -> None:
    done = run(words[0], "-b", broker, *words[1:])
    assert (done.code, done.out) == (1, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost:1", "no broker answers at localhost:1: Connection refused; `kbroker serve` starts a broker"),
        ("http://localhost:9644", "'http://localhost:9644' is the address of a page; a broker's is host:port"),
        ("localhost:99999", "'localhost:99999' is not of the form host:port"),
        ("no-such-host.invalid", "no broker answers at no-such-host.invalid:9092: "),
    ],
)
def test_wrong_addresses_are_named_at_once(run: Run, address: str, said: str) -> None:
    done = run("consume", "-b", address, "-t", "orders")
    assert done.code == 1
    assert said in done.err


def test_actions_may_be_written_as_words(run: Run, broker: str) -> None:
    assert run("topic", "create", "spoken", "-b", broker).out == "Created topic spoken.\n"
    assert "spoken" in run("topics", "list", "-b", broker).lines
    assert run("topic", "describe", "spoken", "-b", broker).out.startswith("Topic: spoken\t")
    assert run("topic", "delete", "spoken", "-b", broker) == (0, "", "")
    assert run("group", "describe", "unspoken", "-b", broker).err == "kbroker group: group 'unspoken' does not exist\n"


def test_a_topic_that_is_created_by_mistake_is_named(run: Run, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    said = "kbroker produce: topic 'mistaken-by-me' did not exist, so the broker has created it\n"
    assert run("produce", "-b", broker, "-t", "mistaken-by-me") == (0, "", said)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"y\n")))
    assert run("produce", "-b", broker, "-t", "mistaken-by-me") == (0, "", "")


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def serve(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kbroker", "serve", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_a_taken_port_of_the_pages_changes_nothing_on_the_disk(taken: str, tmp_path: Path) -> None:
    """The same for clients' ports is in tests/test_node.py."""
    words = ["--listen", "127.0.0.1:0", "--http", taken]
    done = serve("--data-dir", tmp_path / "new", *words)
    assert done.returncode == 1
    assert done.stderr.startswith("kbroker serve: cannot listen on ")
    assert f"{taken}: Address already in use" in done.stderr
    assert not (tmp_path / "new").exists()
    with BrokerProcess(tmp_path / "used"):
        pass
    before = contents(tmp_path)
    assert serve("--data-dir", tmp_path / "used", *words).returncode == 1
    assert contents(tmp_path) == before


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "used") as running:
        running.process.send_signal(signal.SIGSTOP)  # it writes checkpoints now and then
        before = contents(tmp_path)
        done = serve("--data-dir", tmp_path / "used", "--listen", "127.0.0.1:0")
        after = contents(tmp_path)
        running.process.send_signal(signal.SIGCONT)
    said = f"kbroker serve: another broker is running on {tmp_path / 'used'}\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert after == before


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = serve("--data-dir", tmp_path / "file" / "data", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert done.stderr == f"kbroker serve: cannot use {tmp_path / 'file' / 'data'}: Not a directory\n"


def test_an_advertised_address_that_nobody_reaches_is_named(tmp_path: Path) -> None:
    advertised = ["--override", "advertised.listeners=PLAINTEXT://127.0.0.1:1"]
    with BrokerProcess(tmp_path, "--profile", "test", *advertised) as started:
        settings = {"bootstrap_servers": [f"{started.host}:{started.port}"], "delivery_timeout_ms": 300}
        with Cluster(settings) as cluster:
            producer = Producer(cluster, "t", settings, acks=-1, codec=Codec.NONE, is_idempotent=False)
            assert producer.partition_count == 1
            with pytest.raises(KafkaError, match=r"at its advertised address 127\.0\.0\.1:1: Connection refused"):
                cluster.ask(object, 1)
    assert os.listdir(tmp_path)
