"""Creates the archive of `compat.kafka.archive`: `python -m compat.kafka.rehearsal`, half a minute, once.

A node of Kafka and its tools run once as in the tests, and record which classes they load.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from compat.brokers import StartFailed
from compat.kafka.archive import archive_path
from compat.kafka.libraries import Unavailable, java
from compat.kafka.node import KafkaNode
from compat.kafka.tools import java_environment, run_tool

TIMEOUT_S = 120
KEPT_S = 7 * 86_400
"""Other checkouts may use other archives in the same cache; archives older than this are removed."""
TOPIC = "rehearsed"
RECORDS = 10


def make() -> Path:
    """The archive, created if necessary.

    Errors: Unavailable without Java or the jars, or if this JVM creates no archive; StartFailed.
    """
    target = archive_path()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="kafka-classes-") as directory:
        listed, archive = Path(directory) / "classes", Path(directory) / "archive"
        listed.write_text("".join(loaded_classes(Path(directory) / "node")))
        done = subprocess.run(
            [java(), "-Xshare:dump", f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={archive}"],
            env=java_environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0 or not archive.exists():
            raise Unavailable(f"this JVM creates no archive of classes: {(done.stdout + done.stderr)[-1000:]}")
        archive.rename(target)
    for old in target.parent.glob("kafka-classes-*.jsa"):
        if old.stat().st_mtime < time.time() - KEPT_S:
            old.unlink()
    return target


def loaded_classes(directory: Path) -> list[str]:
    """The lines of the JVM's lists of loaded classes, without duplicates; the node's files go below `directory`.

    Errors: StartFailed if the node does not start, Unavailable if a tool fails.
    """
    lists = directory / "lists"
    lists.mkdir(parents=True)
    node = KafkaNode(directory, options=_listing(lists / "node"), tier=directory / "tier")
    node.start(timeout_s=TIMEOUT_S)
    try:
        for number, (tool, *words) in enumerate(_tools(node.bootstrap_servers)):
            options = _listing(lists / str(number))
            done = run_tool(tool, *words, input="key\n" * RECORDS, timeout_s=TIMEOUT_S, options=options)
            if done.returncode != 0:
                raise Unavailable(f"{tool} ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
    finally:
        node.stop()
    return list(dict.fromkeys(line for each in lists.iterdir() for line in each.read_text().splitlines(keepends=True)))


def _listing(path: Path) -> tuple[str, ...]:
    return ("-Xshare:off", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-XX:DumpLoadedClassList={path}")


def _tools(servers: str) -> Iterator[tuple[str, ...]]:
    tools = "org.apache.kafka.tools"
    broker = ("--bootstrap-server", servers)
    limit = ("--max-messages", str(RECORDS))
    yield f"{tools}.TopicCommand", *broker, "--create", "--topic", TOPIC, "--config", "remote.storage.enable=true"
    yield f"{tools}.TopicCommand", *broker, "--describe"
    yield f"{tools}.ConsoleProducer", *broker, "--topic", TOPIC
    yield f"{tools}.consumer.ConsoleConsumer", *broker, "--topic", TOPIC, "--group", TOPIC, "--from-beginning", *limit
    yield f"{tools}.VerifiableProducer", *broker, "--topic", TOPIC, *limit
    yield f"{tools}.VerifiableConsumer", *broker, "--topic", TOPIC, "--group-id", "verified", *limit
    yield f"{tools}.consumer.group.ConsumerGroupCommand", *broker, "--describe", "--all-groups"
    yield "kafka.admin.ConfigCommand", *broker, "--describe", "--entity-type", "topics"
    yield f"{tools}.GetOffsetShell", *broker


if __name__ == "__main__":
    try:
        print(make())
    except (Unavailable, StartFailed) as error:
        sys.exit(str(error))
