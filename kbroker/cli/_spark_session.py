"""The Spark session of the command line jobs. Hides Spark's log and converts its errors to one sentence.

Spark's JVM writes its log to the standard error with which it was started, so the session starts it with a file as its
standard error. Python packages also log to this file. If Spark itself fails, the file is kept and the message names it.
Warnings of kbroker's data source in the log are printed.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli import CommandFailed
from kbroker.cli._admin import read_properties
from kbroker.cli._say import note
from kbroker.cli._terminal import Progress
from kbroker.cli._terminal import progress as terminal_progress
from kbroker.cli.serve import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S: Final = 0.25
MISSING: Final = "PySpark is not installed: pip install 'kbroker[spark]'"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.app.name": "kbroker",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
}
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_OURS: Final = re.compile(r"kbroker\.(?:spark|config)\.[\w.]+: (.+)")
_CALLING: Final = "An error occurred while calling"  # a generic first line of py4j
_CAUSES: Final = re.compile(r"^(?:Caused by)?: ([\w.$]+: .+)$", re.MULTILINE)
_WARNED: Final = "(failOnDataLoss=false)"


@contextmanager
def spark_session(options: argparse.Namespace) -> Iterator[SparkSession]:
    """A session with the settings in the flags; its errors become CommandFailed."""
    if find_spec("pyspark") is None:
        raise CommandFailed(MISSING)
    from kbroker.spark.errors import KbrokerSourceError  # noqa: PLC0415  (--help must not import these)

    with spark_log(options.spark_log) as log:
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        # If the program already has a session, use it and leave its signal and log handlers alone.
        running = SparkSession.getActiveSession()
        with _own_session(options, log) if running is None else nullcontext(running) as session:
            try:
                yield session
            except BrokenPipeError:  # the reader closed our output
                raise
            except ConnectionError as error:  # from Spark: brokers and stores raise other errors
                log.is_needed = True
                raise CommandFailed(f"Spark terminated: {error} (its log is {log.path})") from error
            except (KbrokerSourceError, OSError) as error:
                raise CommandFailed(str(error)) from error
            except (PySparkException, Py4JError) as error:
                raise CommandFailed(explain(error, log)) from error


@contextmanager
def _own_session(options: argparse.Namespace, log: _Log) -> Iterator[SparkSession]:
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    with _logged_into(log.path):
        session = _start(options, log)
        if is_main:
            # PySpark's handler calls the JVM inside of the interrupted call, which fails. Stopping the session also
            # cancels its jobs.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield session
        finally:
            stop(session)
            if is_main:
                signal.signal(signal.SIGINT, before)


def stop(session: SparkSession) -> None:
    """Stop a session and its jobs, even if its JVM has died.

    py4j may refuse the first call after an interrupted one, and PySpark stops a session only once. So this makes
    another call first.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415

    for end in (lambda: session.conf.get("spark.app.id", None), session.stop):
        with suppress(Py4JError, OSError):
            end()


@contextmanager
def _logged_into(path: str) -> Iterator[None]:
    """Send the log of this process to a file, unless the program has configured logging."""
    if logging.root.handlers:
        yield
        return
    handler = logging.FileHandler(path, encoding="utf-8")
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        handler.close()


class _Log:
    """The file to which Spark's log is appended. Shape: is_needed means that a message names it, so it is kept."""

    def __init__(self, path: str, *, is_asked_for: bool) -> None:
        self.path = path
        self.is_asked_for = is_asked_for
        self.is_needed = False
        with open(path, "ab") as file:
            self._start = file.tell()

    def tell_warnings(self) -> None:
        """Print the warnings about records that the data source skipped (failOnDataLoss=false)."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            file.seek(self._start)
            warnings = {line.strip() for line in file if _WARNED in line}
        for line in sorted(warnings):
            note(f"kbroker spark: {line}")


@contextmanager
def spark_log(wanted: Path | None) -> Iterator[_Log]:
    """A file for Spark's log, removed unless it is needed. Raises CommandFailed if it cannot be written."""
    if wanted is not None:
        path = str(wanted)
    else:
        descriptor, path = tempfile.mkstemp(prefix="kbroker-spark-", suffix=".log")
        os.close(descriptor)
    try:
        log = _Log(path, is_asked_for=wanted is not None)
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror or error}") from error
    try:
        yield log
    finally:
        log.tell_warnings()
        if not log.is_needed and not log.is_asked_for:
            os.unlink(path)


def _start(options: argparse.Namespace, log: _Log) -> SparkSession:
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    settings = {**SETTINGS, **(LOCAL if options.master.startswith("local") else {}), **dict(options.conf)}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable if options.master.startswith("local") else "python3")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if options.master.startswith("local"):
        # Without this, the JVM looks for an address of this machine, and warns if it finds only loopback.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(options.master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _errors_into(log.path):
            session = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        said = _tail(log.path)
        if "JAVA_HOME" in said or "java: not found" in said or isinstance(error, FileNotFoundError):
            raise CommandFailed(
                "Spark requires Java 17 or newer, which was not found: install it, or set JAVA_HOME"
            ) from error
        raise CommandFailed(f"Spark failed to start: {error}\n{said}") from error
    session.sparkContext.setLogLevel("WARN" if log.is_asked_for else "ERROR")
    return session


@contextmanager
def _errors_into(path: str) -> Iterator[None]:
    """Processes that are started in this context write their standard error to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(descriptor)


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        return file.read().decode(errors="replace").strip()


def explain(error: Exception, log: _Log) -> str:
    """The message of a Spark error: that of kbroker's code in a worker, or else Spark's message and its log file."""
    text = str(error)
    found = _OURS.findall(text)
    if found:
        return str(found[-1])
    log.is_needed = True
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if line.startswith(_CALLING) and (causes := _CAUSES.findall(text)):
        line = causes[-1]
    return f"{line} (Spark's log is {log.path})"


def client_options(servers: list[str] | None, command_config: Path | None) -> dict[str, str]:
    """Client settings as options of `format("kbroker")`. Raises CommandFailed for an unreadable file."""
    found = {} if command_config is None else read_properties(command_config)
    if servers:
        found["bootstrap.servers"] = ",".join(servers)
    return {f"kafka.{key}": value for key, value in found.items()}


def source_options(options: argparse.Namespace) -> dict[str, str]:
    """The flags as options of `format("kbroker")`. Raises CommandFailed if settings cannot be read."""
    found = client_options(options.bootstrap_servers, options.command_config)
    if options.data_dir is not None or options.config is not None or options.override:
        from kbroker.spark.stores import store_of  # noqa: PLC0415  (--help must not import it)

        store = store_of(load_settings(options))
        if store.class_name:
            found["remote.log.storage.manager.class.name"] = store.class_name
        found |= {f"rsm.config.{key}": value for key, value in store.configs.items()}
    return {**found, **dict(options.option)}


@contextmanager
def progress(session: SparkSession) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step, with Spark's tasks, on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from py4j.protocol import Py4JError  # noqa: PLC0415

    tracker: Any = session.sparkContext.statusTracker()
    step = "starting"
    ended = threading.Event()

    def follow(line: Progress) -> None:
        while not ended.wait(_LOOK_S):
            total = done = 0
            with suppress(Py4JError, OSError):  # the job itself reports a dead JVM
                for stage_id in tracker.getActiveStageIds():
                    stage = tracker.getStageInfo(stage_id)
                    if stage is not None:
                        total, done = total + stage.numTasks, done + stage.numCompletedTasks
            line.show(step, done, total, f"{done}/{total} tasks")

    def tell(text: str) -> None:
        nonlocal step
        step = text

    with terminal_progress() as line:
        thread = threading.Thread(target=follow, args=(line,), daemon=True)
        thread.start()
        try:
            yield tell
        finally:
            ended.set()
            thread.join()
