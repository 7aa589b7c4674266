"""Fixtures for every compat test: the broker under test, Apache Kafka, Kafka's tools and kcat.

    KBROKER_BOOTSTRAP_SERVERS=host:port   test that broker (with KBROKER_DATA_DIR, tests read its files too)
    KBROKER_COMPAT_BROKER=kafka           test Apache Kafka itself, to prove that a test is right
    (nothing)                             start `python -m kbroker serve` on a temporary directory

A missing program (java, Maven, kcat) skips the tests that need it, with a reason; with CI=true it fails them.
"""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.brokers import WITHOUT_RETENTION, Broker, ExternalBroker, KbrokerProcess, in_ci
from compat.kafka import KafkaNode, Unavailable, libraries, run_tool
from compat.kafka.libraries import executable, java

KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]
Kcat = Callable[..., bytes]

_MAIN_CLASSES = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleProducer": "org.apache.kafka.tools.ConsoleProducer",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


_IGNORED = (DeprecationWarning, ResourceWarning, pytest.PytestUnraisableExceptionWarning)


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of third-party clients on import and those raised by the garbage collector after the last
    test.
    """
    config.option.reportchars = "fEX"  # pytest_terminal_summary reports the skipped tests, a line for each reason
    for category in _IGNORED:
        warnings.simplefilter("ignore", category)
    for client in ("aiokafka.admin", "confluent_kafka.admin", "kafka"):
        importlib.import_module(client)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Third-party clients leave sockets to the garbage collector and use deprecated APIs; our own tests stay strict."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for category in _IGNORED:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category.__module__}.{category.__qualname__}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests were skipped for which reason."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} tests were skipped: {reason.removeprefix('Skipped: ')}")


def pytest_report_header() -> str:
    """Report the broker under test."""
    return f"compat: broker under test is {os.environ.get('KBROKER_BOOTSTRAP_SERVERS') or _kind()}"


def _kind() -> str:
    return os.environ.get("KBROKER_COMPAT_BROKER", "kbroker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Skip a test for which a program is missing, except in CI. Attach the end of the broker's log to a failed test."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, Unavailable) and not in_ci():
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, str(call.excinfo.value))
    if report.when == "call" and report.failed and hasattr(item, "funcargs"):
        started = item.funcargs.get("broker")
        if started is not None:
            lines = [line for line in started.log_tail().splitlines() if not line.startswith("\tat ")]
            report.sections.append((f"log of {started.name}", "\n".join(lines[-20:])))
    return report


@pytest.fixture(scope="session")
def kafka_libraries() -> Path:
    """The directory of Kafka's jars."""
    java()
    return libraries()


@pytest.fixture(scope="session")
def start_broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., KbrokerProcess | KafkaNode]]:
    """A function that starts another broker of the kind under test, with `key=value` overrides; all are stopped at the
    end.

    Retention is off unless the overrides enable it.
    """
    started: list[KbrokerProcess | KafkaNode] = []

    def start(*overrides: str) -> KbrokerProcess | KafkaNode:
        directory = tmp_path_factory.mktemp("broker")
        settings = WITHOUT_RETENTION | dict(override.split("=", 1) for override in overrides)
        broker: KbrokerProcess | KafkaNode
        if _kind() == "kafka":
            request.getfixturevalue("kafka_libraries")
            broker = KafkaNode(directory, overrides=settings)
        else:
            broker = KbrokerProcess(directory, overrides=[f"{key}={value}" for key, value in settings.items()])
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(scope="session")
def broker(start_broker: Callable[..., KbrokerProcess | KafkaNode]) -> Broker:
    """The broker under test, one for the whole session; `topic` makes names unique."""
    external = os.environ.get("KBROKER_BOOTSTRAP_SERVERS")
    if external:
        directory = os.environ.get("KBROKER_DATA_DIR")
        return ExternalBroker(external, Path(directory) if directory else None)
    return start_broker()


@pytest.fixture(scope="session")
def kafka(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """Apache Kafka 4.3.1, formatted and started: the oracle."""
    assert kafka_libraries.is_dir()
    node = KafkaNode(tmp_path_factory.mktemp("kafka"), overrides=WITHOUT_RETENTION)
    node.start()
    yield node
    node.discard()


@pytest.fixture(scope="session")
def log_directory(broker: Broker) -> Path:
    """The data directory of the broker under test, for Kafka's own tools."""
    if broker.log_directory is None:
        raise Unavailable("the data directory of the external broker is not known (set KBROKER_DATA_DIR)")
    return broker.log_directory


@pytest.fixture(scope="session")
def kafka_tool(kafka_libraries: Path) -> KafkaTool:
    """`kafka_tool("TopicCommand", "--list", ...)`: run one of Kafka's tools, assert that it ends with `status`."""
    assert kafka_libraries.is_dir()

    def run(
        tool: str, *arguments: str, input: str | None = None, status: int = 0, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        main_class = _MAIN_CLASSES.get(tool, tool if "." in tool else f"org.apache.kafka.tools.{tool}")
        done = run_tool(main_class, *arguments, input=input, timeout_s=timeout_s)
        assert done.returncode == status, f"{tool} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="session")
def kcat(broker: Broker) -> Kcat:
    """`kcat("-L")`: run kcat against the broker under test, assert success, return its standard output."""
    program = executable("kcat", hint="install kcat 1.7.1")

    def run(*arguments: str, input: bytes | None = None, timeout_s: float = 30) -> bytes:
        command = [program, "-b", broker.bootstrap_servers, *arguments]
        stdin = subprocess.DEVNULL if input is None else None
        done = subprocess.run(command, input=input, stdin=stdin, capture_output=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr.decode(errors='replace')}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def new_topic_name() -> Callable[[str], str]:
    """A function that returns a name that no other test uses."""
    counter = itertools.count()
    run = os.getpid()
    return lambda stem: f"{stem}-{run}-{next(counter)}"
