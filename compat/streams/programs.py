"""Programs with Kafka Streams, Connect and quixstreams, as processes that are killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat.brokers import CHECKOUT, end
from compat.kafka.jvm import java_command
from compat.kafka.libraries import KAFKA_VERSION, Unavailable, cache_directory, class_path, executable, fetched

_HERE = Path(__file__).parent
MOST_REVIVED = 3
OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")


def streams_jars() -> list[str]:
    """The jars in addition to Kafka's own. Fetches them on first use. Errors: Unavailable."""
    target = fetched(_HERE / "pom.xml", cache_directory() / f"kafka-streams-{KAFKA_VERSION}" / "libs")
    return sorted(str(jar) for jar in target.glob("*.jar"))


def environment(*more: str) -> dict[str, str]:
    """The environment with all jars on the class path."""
    return {**os.environ, "CLASSPATH": os.pathsep.join([*more, *streams_jars(), class_path()])}


def compiled(directory: Path) -> Path:
    """Compile the sources of this folder into a directory. Errors: Unavailable without a compiler."""
    command = [executable("javac", hint="install a JDK of version 17 or later"), "-d", str(directory)]
    sources = [str(source) for source in _HERE.glob("*.java")]
    done = subprocess.run([*command, *sources], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def java_program(log: Path, main_class: str, *arguments: str, classes: Sequence[Path] = ()) -> Program:
    """A main class of the jars, or of the directories `classes`."""
    return Program(log, java_command(main_class, *arguments, options=OPTIONS), environment(*map(str, classes)))


def quix_program(log: Path, *arguments: str) -> Program:
    """`quix_words.py` with quixstreams. Errors: Unavailable without its environment."""
    python = CHECKOUT / ".venv-streams" / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"{python} is missing (run `make .venv-streams/streams.stamp`)")
    return Program(log, [str(python), str(_HERE / "quix_words.py"), *arguments], os.environ)


class Program:
    """A process that writes to a log; `start` may be called again after `kill`."""

    def __init__(self, log: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment, self._log = command, environment, log
        self.process: subprocess.Popen[bytes] | None = None
        self._revived = 0

    def start(self) -> None:
        """Start it, and do not wait for it."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def revive(self) -> None:
        """Start it again if it has ended by itself, as a supervisor does. quixstreams ends if its consumer lost its
        membership, which happens on a slow machine when a restart of the broker takes as long as its session.

        Errors: AssertionError if that happens more than MOST_REVIVED times.
        """
        if self.process is not None and self.process.poll() is not None:
            self._revived += 1
            assert self._revived <= MOST_REVIVED, f"it ended {self._revived} times: {self.log_tail()}"
            self.start()

    def check(self) -> None:
        """Errors: AssertionError if it has ended by itself."""
        assert self.process is not None, "not started"
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log_tail()}"

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            end(self.process, signal_number=signal.SIGKILL)

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""
