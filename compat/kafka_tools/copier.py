"""TransactionalMessageCopier of Apache Kafka's system tests, in a process that can be killed and started again.

It copies one partition to the partition of the same number, and commits its offsets in the same transactions. At random
it aborts a transaction and reads its records again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from compat.brokers import end
from compat.kafka.jvm import java_command, java_environment


class Copier:
    """One process, from the group's committed offset to the end that the input has when it starts."""

    def __init__(
        self,
        servers: str,
        topic: str,
        output: str,
        *,
        transactional_id: str,
        group: str,
        partition: int = 0,
        transaction_size: int = 200,
        timeout_ms: int = 60_000,
        more: Sequence[str] = (),
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        arguments = ["--broker-list", servers, "--input-topic", topic, "--input-partition", str(partition)]
        arguments += ["--output-topic", output, "--transactional-id", transactional_id, "--consumer-group", group]
        arguments += ["--transaction-size", str(transaction_size), "--transaction-timeout", str(timeout_ms)]
        command = java_command(
            "org.apache.kafka.tools.TransactionalMessageCopier", *arguments, "--enable-random-aborts", *more
        )
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._complaints, text=True,
            env=java_environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                self.events.append(json.loads(line))

    def copied(self) -> int:
        """The records that it has copied in committed transactions so far."""
        return max((int(event.get("totalProcessed", 0)) for event in self.events), default=0)

    def wait(self, timeout_s: float) -> int:
        """Wait until it has copied everything; returns its exit status. Errors: subprocess.TimeoutExpired."""
        self.process.wait(timeout_s)
        self._reader.join()
        return self.process.returncode

    def kill(self) -> None:
        """`kill -9`."""
        end(self.process, signal_number=signal.SIGKILL)
        self._reader.join()

    def complaints(self) -> str:
        """The end of its log."""
        self._complaints.seek(0)
        return self._complaints.read()[-3000:].decode(errors="replace")
