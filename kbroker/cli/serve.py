"""`kbroker serve`: run a broker until it is told to stop.

SIGTERM and SIGINT stop it in an orderly way (leaders are noted as shut down, logs are flushed and closed, the
clean-shutdown marker is written); a second signal ends the process at once, as a power switch would.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from kbroker.cli import CommandFailed, Commands

DEFAULT_LISTEN = "localhost:9092"


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser("serve", help="run a broker")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in Kafka's properties format")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help=f"where the data lives (default {default_data_dir()})"
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address to listen on; port 0 takes a free one (default {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /health and /state here; loopback without a host (default: nowhere)",
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, stronger than the file; repeatable",
    )
    parser.add_argument(
        "--profile", choices=["embedded", "test", "kafka"], default="embedded", help="the defaults below all settings"
    )
    parser.add_argument(
        "--log-format", choices=["text", "json"], default="text", help="how the log on stderr is written"
    )
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    parser.set_defaults(run=serve)


def default_data_dir() -> Path:
    """A directory that no clean-up job empties: unlike /tmp, where Kafka's own default lies."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "kbroker"


def serve(options: argparse.Namespace) -> int:
    """Run a broker in this process; the exit code."""
    from kbroker.node import NodeFailed, run_node  # noqa: PLC0415  (help must not cost the import of the broker)

    overrides = list(options.override)
    if options.listen:
        overrides.append(f"listeners=PLAINTEXT://{options.listen}")
    if options.data_dir:
        overrides.append(f"log.dirs={options.data_dir.absolute()}")
    if options.http:
        overrides.append(f"kbroker.http.listener={options.http}")
    # What was imported lives as long as the process: the collector need not look at it again.
    gc.freeze()
    try:
        return run_node(
            config_file=options.config,
            overrides=overrides,
            profile=options.profile,
            default_log_dir=str(default_data_dir()),
            default_listener=f"PLAINTEXT://{DEFAULT_LISTEN}",
            log_format=options.log_format,
            log_level=options.log_level,
            on_ready=announce,
        )
    except NodeFailed as failure:
        raise CommandFailed(str(failure)) from failure


def announce(host: str, port: int) -> None:
    """Print the one line on stdout that says that the broker answers."""
    sys.stdout.write(f"kbroker ready on {host}:{port}\n")
    sys.stdout.flush()
