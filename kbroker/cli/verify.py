"""`kbroker verify`: check every file in the directory of a broker that is stopped, kbroker's or Apache Kafka's.

It prints a line for each finding (file, position, what) and changes nothing, not a byte: it opens files only to read
them. While it runs it holds the directory's lock with others of its kind, so that no broker starts meanwhile.

Exit codes: 0 nothing was found, 1 the directory could not be checked, 3 something was found.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.cli import CommandFailed, Commands
from kbroker.cli._say import say
from kbroker.cli.serve import default_data_dir

if TYPE_CHECKING:
    from kbroker.cli._verify_directory import DirectoryCheck

EXIT_FOUND: Final = 3


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "verify",
        help="check the files of a broker that is stopped",
        description="Check every file in the directory of a broker that is stopped; nothing is changed. Exit codes: 0 "
        "nothing was found, 1 it could not be checked, 3 something was found.",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=f"the directory (default {default_data_dir()})")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json prints an object a line")
    parser.set_defaults(run=verify)


def verify(options: argparse.Namespace) -> int:
    """Check a directory; the exit code."""
    from kbroker.cli._verify_directory import DirectoryCheck  # noqa: PLC0415  (help must not cost these imports)
    from kbroker.cli._verify_report import ReadOnlyDisk, Report  # noqa: PLC0415

    path = str(options.data_dir or default_data_dir())
    is_json = options.format == "json"
    try:
        with _no_broker(path):
            report = Report(as_json=is_json)
            check = DirectoryCheck(ReadOnlyDisk(), path, report=report)
            with _progress(check) as progress:
                check.check(progress)
    except OSError as error:
        raise CommandFailed(f"cannot check {error.filename or path}: {error.strerror or error}") from error
    _summarize(check, report.count, report.notes, path=path, is_json=is_json)
    return EXIT_FOUND if report.count else 0


@contextmanager
def _no_broker(path: str) -> Iterator[None]:
    """Hold the lock that a broker needs alone. Raises CommandFailed while one has it."""
    lock = f"{path}/.lock"
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not os.path.isdir(path):
            raise CommandFailed(f"there is no directory {path}") from error
        # No broker has ever run here, or somebody removed the file: there is nothing to hold.
        yield
        return
    try:
        try:
            # The first is what kbroker asks for besides, the second what Apache Kafka does.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(f"a broker is running on {path}; stop it first") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _progress(check: DirectoryCheck) -> Iterator[Callable[[int], None]]:
    """Gives the function that is told how many bytes more have been read: a bar on stderr, where a person looks."""
    if not sys.stderr.isatty():
        yield lambda _size: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("checking"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    # What is printed on the same terminal has to go above the bar; what goes into a file has to stay as it is.
    shares = sys.stdout.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=shares) as bar:
        task = bar.add_task("checking", total=check.total_bytes())
        yield lambda size: bar.update(task, advance=size)


def _summarize(check: DirectoryCheck, found: int, notes: int, *, path: str, is_json: bool) -> None:
    import json  # noqa: PLC0415

    counts = check.counts
    if is_json:
        fields = {"kind": "summary", "directory": path, "findings": found, "notes": notes}
        say(json.dumps({**fields, "partitions": counts.partitions, "bytes": counts.bytes}))
        return
    sys.stdout.flush()
    verdict = f"{found} findings" if found != 1 else "1 finding"
    where = f"{counts.partitions} partitions with {counts.bytes} bytes of logs in {path}"
    say(f"kbroker verify: {verdict if found else 'nothing found'}, {notes} notes; {where}", file=sys.stderr)
