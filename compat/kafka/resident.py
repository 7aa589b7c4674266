"""A JVM that stays, and runs Kafka's tools one after the other.

A tool that takes a second of CPU in a JVM of its own takes a tenth of that here. `ToolServer.java` is the program. Each
tool has files for its standard input, output and error. When it exits or fails, the same happens as in its own JVM.
If one of its threads is left, the JVM ends and the next tool gets a new one, so that no tool meets the connections or
log lines of another one. Tools that a test needs as processes, for example to send them signals, run with
`compat.kafka.tools.start_tool`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import subprocess
import tempfile
import threading
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from compat.kafka.jvm import java_command, java_environment
from compat.kafka.libraries import cache_directory, class_path, java

_SOURCE = Path(__file__).with_name("ToolServer.java")
_MOST_RUNS = 100
"""A tool that exits leaves its main thread parked, with what the thread refers to."""


class ToolServer:
    """Runs tools in one JVM after the other. `classes` is the directory of its compiled program."""

    def __init__(self, classes: Path) -> None:
        self._command = java_command("ToolServer")
        # Appended: the class archive is valid for class paths that begin with the jars.
        self._environment = {**java_environment(), "CLASSPATH": os.pathsep.join([class_path(), str(classes)])}
        self._process: subprocess.Popen[str] | None = None
        self._runs = 0
        self._turn = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id of the JVM; None if it has ended."""
        return None if self._process is None else self._process.pid

    @property
    def is_busy(self) -> bool:
        """Whether a tool runs now."""
        return self._turn.locked()

    def run(
        self, main_class: str, arguments: Sequence[str], *, input: str | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Run a tool to its end; None if it needs its own JVM, or this one is in use. Errors: TimeoutExpired."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            with tempfile.TemporaryDirectory(prefix="kafka-tool-") as directory:
                return self._run(main_class, arguments, input or "", Path(directory), timeout_s)
        finally:
            self._turn.release()

    def _run(
        self, main_class: str, arguments: Sequence[str], input: str, directory: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str] | None:
        files = [directory / name for name in ("in", "out", "err")]
        files[0].write_text(input)
        words = [main_class, *map(str, files), *arguments]
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout_s, give_up)
        timer.start()
        try:
            process.stdin.write(" ".join(b64encode(word.encode()).decode() for word in words) + "\n")
            process.stdin.flush()
            answer = _next(process, "ended")
        except BrokenPipeError:
            answer = []
        finally:
            timer.cancel()
        self._runs += 1
        output, error = (file.read_text() if file.exists() else "" for file in files[1:])
        if late.is_set():
            self.close()
            expired = subprocess.TimeoutExpired([main_class, *arguments], timeout_s, output, error)
            expired.add_note(output + error)
            raise expired
        if answer == ["unfit"]:
            return None
        # Without an answer the tool has ended the JVM, past Kafka's own `Exit`.
        status = int(answer[0]) if answer else process.wait()
        if answer[1:] != ["clean"] or self._runs >= _MOST_RUNS:
            self.close()
        return subprocess.CompletedProcess([main_class, *arguments], status, output, error)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
            )
            self._runs = 0
            _next(self._process, "ready")
        return self._process

    def kill(self) -> None:
        """End the JVM; a tool that runs fails."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the JVM when no tool runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):
                    stream.close()


def _next(process: subprocess.Popen[str], word: str) -> list[str]:
    """The rest of the next line that begins with a word; empty at the end. The JVM prints its warnings there too."""
    assert process.stdout is not None
    for line in process.stdout:
        first, *rest = line.split() or [""]
        if first == word:
            return rest
    return []


@functools.cache
def tool_server() -> ToolServer | None:
    """The one of this process, which ends with it; None if there is no `javac` to compile its program."""
    classes = program()
    if classes is None:
        return None
    server = ToolServer(classes)
    atexit.register(server.close)
    return server


def program() -> Path | None:
    """The directory of the compiled program, in the cache; None if there is no `javac`."""
    compiler = Path(java()).resolve().with_name("javac")
    if not compiler.exists():
        return None
    fingerprint = hashlib.sha256(_SOURCE.read_bytes() + str(compiler).encode()).hexdigest()[:16]
    classes = cache_directory() / f"kafka-tool-server-{fingerprint}"
    if not classes.exists():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent, prefix="kafka-tool-server-") as scratch:
            made = Path(scratch) / "classes"
            subprocess.run([compiler, "-cp", class_path(), "-d", made, _SOURCE], check=True, capture_output=True)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(classes)
    return classes
