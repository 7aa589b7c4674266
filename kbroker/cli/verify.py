"""`kbroker verify`: check every file in the data directory of a stopped broker, kbroker or Apache Kafka.

It prints one line for each finding (file, position, problem). It opens files only for reading and changes nothing.
While it runs, it holds a shared lock on the directory, so that no broker can start there.

Exit codes: 0 no findings, 1 the check failed, 3 findings.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.cli import EXIT_FOUND, CommandFailed, Commands, add_format_flag
from kbroker.cli._say import note, say_json
from kbroker.cli._terminal import progress
from kbroker.cli.serve import default_data_dir


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "verify",
        help="check the files of a stopped broker",
        description="Check every file in the data directory of a stopped broker, without changing anything. Exit "
        "codes: 0 no findings, 1 the check failed, 3 findings.",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=f"data directory (default {default_data_dir()})")
    add_format_flag(parser)
    parser.set_defaults(run=verify)


def verify(options: argparse.Namespace) -> int:
    """Check a directory; return the exit code."""
    from kbroker.cli._verify_directory import DirectoryCheck  # noqa: PLC0415  (--help must not import these modules)
    from kbroker.cli._verify_report import ReadOnlyDisk, Report  # noqa: PLC0415

    path = str(options.data_dir or default_data_dir())
    is_json = options.format == "json"
    try:
        with _no_broker(path):
            report = Report(as_json=is_json)
            check = DirectoryCheck(ReadOnlyDisk(), path, report=report)
            partitions, size = check.extent()
            with _progress(size) as advance:
                check.check(advance)
    except OSError as error:
        raise CommandFailed(f"cannot check {error.filename or path}: {error.strerror or error}") from error
    found, notes = report.count, report.notes
    if is_json:
        fields = {"kind": "summary", "directory": path, "findings": found, "notes": notes}
        say_json({**fields, "partitions": partitions, "bytes": size})
    else:
        verdict = "nothing found" if not found else "1 finding" if found == 1 else f"{found} findings"
        where = f"{partitions} partitions with {size} bytes of logs in {path}"
        note(f"kbroker verify: {verdict}, {notes} notes; {where}")
    return EXIT_FOUND if report.count else 0


@contextmanager
def _no_broker(path: str) -> Iterator[None]:
    """Hold a shared lock, which conflicts with a broker's exclusive lock. Raises CommandFailed if a broker holds it."""
    lock = f"{path}/.lock"
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not os.path.isdir(path):
            raise CommandFailed(f"there is no directory {path}") from error
        # No broker has run here, or the file was removed, so there is no lock to hold.
        yield
        return
    try:
        try:
            # kbroker takes both locks, Apache Kafka only the second.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(f"a broker is running on {path}; stop it first") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the progress by a number of bytes: a bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _size: None
        return
    done = 0
    with progress() as line:

        def advance(size: int) -> None:
            nonlocal done
            done += size
            line.show("checking", done, total, f"{done >> 20}/{total >> 20} MiB")

        yield advance
