"""kafka-storage, kafka-server-start and kafka-server-stop."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kbroker import cli
from kbroker.cli import CommandFailed, Parser
from kbroker.config import ConfigError, Settings
from kbroker.runtime.clocks import RealClocks
from kbroker.runtime.disk import RealDisk
from kbroker.storage.checkpoint import write_atomically
from kbroker.storage.formatting import META_PROPERTIES, DirectoryIdentity, format_identity
from wire.types import uuid_to_text

LOG_DIR: Final = "/var/lib/kafka/logs"
PROGRAM: Final = b"/opt/kbroker/bin/kbroker"
NO_SERVER: Final = "No kafka server to stop"


def storage(words: Sequence[str]) -> int:
    """kafka-storage: random-uuid and format.

    `format` gives the data directory of a properties file its identity; the broker does the rest when it starts. The
    start scripts of other images format without a file; then the broker does everything, with the id in CLUSTER_ID.
    """
    parser = Parser(prog="kafka-storage")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=argparse.ArgumentParser)
    actions.add_parser("random-uuid", help="print an id for a new cluster")
    formatting = actions.add_parser("format", help="prepare a data directory")
    formatting.add_argument("-t", "--cluster-id", required=True)
    formatting.add_argument("-c", "--config", type=Path, required=True)
    formatting.add_argument("-g", "--ignore-formatted", action="store_true")
    formatting.add_argument("-s", "--standalone", action="store_true", help="has no effect: it is the only mode")
    options = parser.parse_args(list(words))
    if options.action == "random-uuid":
        print(uuid_to_text(RealClocks().new_uuid()))
        return 0
    if not options.config.exists():
        print("kbroker formats a new data directory when it starts")
        return 0
    _format(options)
    return 0


def _format(options: argparse.Namespace) -> None:
    try:
        settings = Settings.load(options.config.read_bytes(), file_name=str(options.config), overrides=[], defaults={})
    except (OSError, ConfigError) as error:
        raise CommandFailed(str(error)) from error
    directory = Path(settings.data_directory)
    file = directory / META_PROPERTIES
    if file.exists():
        if not options.ignore_formatted:
            raise CommandFailed(
                f"Log directory {directory} is already formatted. Use --ignore-formatted to ignore this directory and "
                "format the others."
            )
        print("All of the log directories are already formatted.")
        return
    identity = DirectoryIdentity(options.cluster_id, settings.node_id, RealClocks().new_uuid())
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        write_atomically(RealDisk(), str(file), format_identity(identity).encode())
    except OSError as error:
        raise CommandFailed(f"cannot format {directory}: {error}") from error
    print(f"Formatting metadata directory {directory}.")


def start(words: Sequence[str]) -> int:
    """kafka-server-start [-daemon] server.properties [--override name=value]."""
    found = list(words)
    is_daemon = found[:1] == ["-daemon"]
    found = found[is_daemon:]
    if not found or found[0].startswith("-"):
        raise CommandFailed("USAGE: kafka-server-start [-daemon] server.properties [--override property=value]*")
    command = ["serve", "--config", *found]
    if not is_daemon:
        return cli.main(command)
    place = Path(os.environ.get("LOG_DIR", LOG_DIR))
    try:
        place.mkdir(parents=True, exist_ok=True)
        with (place / "kafkaServer.out").open("ab") as out:
            subprocess.Popen(  # noqa: S603
                [PROGRAM, *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise CommandFailed(f"cannot write the log of the server: {error}") from error
    return 0


def stop(words: Sequence[str]) -> int:
    """kafka-server-stop: end the brokers of this container. Processes with another root directory are left alone."""
    if words:
        raise CommandFailed(f"{words[0]} is not supported: the tool stops every broker of this container")
    found = 0
    for process in Path("/proc").iterdir():
        try:
            line = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            if PROGRAM in line and b"serve" in line and (process / "root").samefile("/proc/self/root"):
                os.kill(int(process.name), signal.SIGTERM)
                found += 1
        except OSError:  # it has ended, or belongs to another user
            continue
    if not found:
        raise CommandFailed(NO_SERVER)
    return 0
