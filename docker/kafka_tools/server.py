"""kafka-server-start and kafka-server-stop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kbroker import cli
from kbroker.cli import CommandFailed
from kbroker.config.environment import jaas_file

LOG_DIR: Final = "/var/lib/kafka/logs"
PROGRAM: Final = b"/opt/kbroker/bin/kbroker"
NO_SERVER: Final = "No kafka server to stop"


def start(words: Sequence[str]) -> int:
    """kafka-server-start [-daemon] server.properties [--override name=value]."""
    found = list(words)
    is_daemon = found[:1] == ["-daemon"]
    found = found[is_daemon:]
    if not found or found[0].startswith("-"):
        raise CommandFailed("USAGE: kafka-server-start [-daemon] server.properties [--override property=value]*")
    of_java = [word for name, value in jaas_file(os.environ).items() for word in ("--override", f"{name}={value}")]
    command = ["serve", "--config", found[0], *of_java, *found[1:]]
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
