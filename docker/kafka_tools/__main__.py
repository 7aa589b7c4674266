"""Kafka's command-line tools for the image, on kbroker's commands: `kafka-topics --bootstrap-server b:9092 --list`.

Compose files call these tools in health checks and init containers, so flags, the important lines of the output and
exit codes are those of Kafka: 0, or 1 for failures, wrong usage and --help. `link-tools` makes a link to
`kafka-tool` for each name that `kafka-tool` prints. One of them is `cub`, with which scripts for Confluent's images
wait for brokers. A tool that kbroker cannot replace fails with a reason.

Source  the tools of Apache Kafka 4.3.1, and tests that run them beside these
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final

from kbroker import __version__, build, cli
from kbroker.cli import _admin, _table
from kbroker.cli._say import say

EXIT_FAILED: Final = 1
# Kafka's admin client retries for default.api.timeout.ms. Init containers rely on it: `kafka-topics --list` is their
# usual way to wait for a broker.
BROKER_WAIT_MS: Final = 60_000
_FAILS_AT_ONCE: Final = "kafka-broker-api-versions"


def _command(command: str, words: Sequence[str]) -> int:
    """Run the command of kbroker that has the flags of the tool."""
    return cli.main([command, *words])


def _unasked(words: Sequence[str]) -> list[str]:
    """The flags, with agreement to a deletion: Kafka's tools do not ask."""
    return [*words, "--yes"] if "--delete" in words else list(words)


def _topics(words: Sequence[str]) -> int:
    """kafka-topics."""
    return _command("topic", _unasked(words))


def _groups(words: Sequence[str]) -> int:
    """kafka-consumer-groups: Kafka's tool succeeds even if it prints an error, and scripts rely on that."""
    _command("group", _unasked(words))
    return 0


def _own(module: str, function: str, words: Sequence[str]) -> int:
    """Run a tool of this directory; a health check should not import the others."""
    code: int = getattr(import_module(module), function)(words)
    return code


TOOLS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "kafka-broker-api-versions": partial(_own, "administration", "api_versions"),
    "kafka-acls": partial(_command, "acl"),
    "kafka-cluster": partial(_own, "administration", "cluster"),
    "kafka-configs": partial(_own, "entities", "configs"),
    "kafka-console-consumer": partial(_own, "console", "consume"),
    "kafka-console-producer": partial(_own, "console", "produce"),
    "kafka-consumer-groups": _groups,
    "kafka-delete-records": partial(_own, "administration", "delete_records"),
    "kafka-dump-log": partial(_command, "dump-log"),
    "kafka-features": partial(_own, "administration", "features"),
    "kafka-get-offsets": partial(_command, "offset"),
    "kafka-groups": partial(_own, "listings", "groups"),
    "kafka-leader-election": partial(_own, "administration", "elect_leaders"),
    "kafka-log-dirs": partial(_own, "listings", "log_directories"),
    "kafka-metadata-quorum": partial(_own, "administration", "quorum"),
    "kafka-reassign-partitions": partial(_own, "reassignments", "reassign"),
    "kafka-server-start": partial(_own, "server", "start"),
    "kafka-server-stop": partial(_own, "server", "stop"),
    "kafka-storage": partial(_own, "storage", "storage"),
    "kafka-topics": _topics,
    "kafka-transactions": partial(_own, "transactions", "transactions"),
    "cub": partial(_own, "administration", "cub"),
}
_NOT_HERE: Final = "kbroker has no replacement for it; run Apache Kafka's tool against this broker"
MISSING: Final[Mapping[str, str]] = {
    "kafka-delegation-tokens": "kbroker has no delegation tokens",
    **dict.fromkeys(
        (
            "kafka-client-metrics",
            "kafka-consumer-perf-test",
            "kafka-producer-perf-test",
            "kafka-replica-verification",
            "kafka-verifiable-consumer",
            "kafka-verifiable-producer",
        ),
        _NOT_HERE,
    ),
    "kafka-share-groups": "kbroker has no share groups",
    "kafka-streams-groups": "kbroker has no streams groups",
}


def main(tool: str, words: Sequence[str]) -> int:
    """Run a tool; return its exit code."""
    if tool == "kafka-tool":
        print("\n".join([*TOOLS, *MISSING]))
        return 0
    if "--version" in words:
        print(f"kbroker {__version__} ({build()})")
        return 0
    if reason := MISSING.get(tool):
        print(f"{tool}: {reason}", file=sys.stderr)
        return EXIT_FAILED
    # Programs read these tools; even on a terminal the output is Kafka's.
    _table.draws = False
    _admin.broker_wait_ms = None if tool == _FAILS_AT_ONCE else BROKER_WAIT_MS
    try:
        code = TOOLS[tool](words)
        sys.stdout.flush()
        return code
    except cli.CommandFailed as failure:
        say(f"{tool}: {failure}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # the reader has enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return cli.EXIT_INTERRUPTED
    except SystemExit as end:
        # argparse ends with 2 after wrong usage, and with 0 after --help; Kafka's tools end with 1.
        return end.code if isinstance(end.code, int) and end.code > 2 else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
