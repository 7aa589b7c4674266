"""`kbroker serve`: run a broker until a signal stops it.

SIGTERM and SIGINT start a controlled shutdown: the broker records the shutdown in its metadata, flushes and closes its
logs and writes the clean-shutdown marker. A second signal ends the process at once, without cleanup.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker import __version__, build
from kbroker.cli import CommandFailed, Commands

if TYPE_CHECKING:
    from kbroker.config import Settings

DEFAULT_LISTEN = "localhost:9092"
# In a container. Its ports are reachable from outside only if they are published.
CONTAINER_DEFAULTS = {"log.dirs": "/var/lib/kafka/data", "listeners": "PLAINTEXT://:9092"}
MOUNTED_CONFIG_DIR = "/mnt/shared/config"
HTTP_TOKEN_VARIABLE = "KBROKER_HTTP_TOKEN"  # noqa: S105  (a name, not a token)
MOUNTED_CONFIG_DIR_VARIABLE = "KBROKER_MOUNTED_CONFIG_DIR"
EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104  (compared with, not bound)


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "serve",
        help="run a broker",
        description="Run a broker until SIGTERM or SIGINT; docs/configuration.md lists all settings.",
    )
    add_settings_flags(parser)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help=f"data directory (default {default_data_dir()})")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address for clients; port 0 means any free port (default {DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="address of the state page, /metrics, /health and /state; the default host is loopback (default: off)",
    )
    parser.add_argument(
        "--profile",
        choices=["embedded", "test", "hardened", "kafka"],
        default="embedded",
        help="default settings (default embedded); hardened has limits for a broker that others can reach",
    )
    parser.add_argument("--cluster-id", metavar="ID", help="cluster id of a new data directory (default: random)")
    parser.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="write host:port to this file when the broker is ready"
    )
    parser.add_argument(
        "--from-environment",
        action="store_true",
        help="read CLUSTER_ID, KAFKA_* variables and /mnt/shared/config like the container image of Apache Kafka",
    )
    parser.add_argument(
        "--log-format", choices=["text", "json"], default="text", help="format of the log on stderr (default text)"
    )
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], help="level of the log (default info)"
    )
    parser.set_defaults(run=serve)


def add_settings_flags(parser: argparse._ActionsContainer) -> None:
    """Declare the flags that `load_settings` reads, except --data-dir."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings of the broker in Kafka's properties format"
    )
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE",
        help="a setting of the broker, such as rsm.config.dir=/tier; overrides the file; repeatable",
    )  # fmt: skip


def default_data_dir() -> Path:
    """The default data directory. Unlike Kafka's default in /tmp, no clean-up job empties it."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "kbroker"


def load_settings(options: argparse.Namespace, *, defaults: Mapping[str, str] | None = None, **more: Any) -> Settings:
    """The broker's settings from the flags. Raises CommandFailed for settings with which a broker would not start."""
    from kbroker.config import ConfigError, Settings  # noqa: PLC0415  (--help must not import the broker)

    config: Path | None = options.config
    overrides = list(options.override)
    if options.data_dir is not None:
        overrides.append(f"log.dirs={options.data_dir.absolute()}")
    defaults = dict(defaults or {"log.dirs": str(default_data_dir()), "listeners": f"PLAINTEXT://{DEFAULT_LISTEN}"})
    if token := os.environ.get(HTTP_TOKEN_VARIABLE):
        defaults["kbroker.http.token"] = token
    try:
        file = None if config is None else config.read_bytes()
        return Settings.load(file, file_name=str(config), overrides=overrides, defaults=defaults, **more)
    except OSError as error:
        raise CommandFailed(f"cannot read {config}: {error.strerror or error}") from error
    except ConfigError as error:
        raise CommandFailed(str(error)) from error


def serve(options: argparse.Namespace) -> int:
    """Run a broker in this process; return the exit code."""
    gc.disable()  # imports create 40,000 lasting objects and little garbage; collecting would take 15 ms
    from kbroker.cli._open_files import file_warnings  # noqa: PLC0415  (--help must not import the broker)
    from kbroker.config.container import read_container  # noqa: PLC0415
    from kbroker.config.values import ConfigError  # noqa: PLC0415
    from kbroker.coordinator import shard  # noqa: F401, PLC0415  (the first group must not wait for its import)
    from kbroker.node import NodeFailed, run_node  # noqa: PLC0415

    if options.listen:
        options.override = [*options.override, f"listeners=PLAINTEXT://{options.listen}"]
    if options.http:
        options.override = [*options.override, f"kbroker.http.listener={options.http}"]
    in_container: bool = options.from_environment
    # Imported modules live as long as the process, so the garbage collector need not traverse them.
    gc.freeze()
    gc.enable()
    try:
        container = read_container(os.environ) if in_container else None
        if in_container and options.config is None:
            options.config = _mounted_config()
        settings = load_settings(
            options,
            environment=None if container is None else container.variables,
            profile=options.profile,
            defaults=CONTAINER_DEFAULTS if in_container else None,
        )
        if not in_container:  # a container has no other users
            settings = replace(settings, warnings=(*settings.warnings, *file_warnings(settings, options.config)))
        return run_node(
            settings,
            log_format=options.log_format,
            log_level=options.log_level or (container.log_level if container is not None else "info"),
            on_ready=partial(announce, ready_file=options.ready_file, as_kafka=in_container, settings=settings),
            container=container,
            cluster_id=options.cluster_id or (container.cluster_id if container is not None else None),
        )
    except (NodeFailed, ConfigError) as failure:
        raise CommandFailed(str(failure)) from failure


def _mounted_config() -> Path | None:
    """The settings file that is mounted into the container, or None."""
    path = Path(os.environ.get(MOUNTED_CONFIG_DIR_VARIABLE) or MOUNTED_CONFIG_DIR, "server.properties")
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # the file exists; reading it reports the error
    return path


def announce(
    node_id: int, host: str, port: int, *, ready_file: Path | None, as_kafka: bool, settings: Settings | None = None
) -> None:
    """Announce that the broker is ready: on stdout, in the ready file, and with the lines of Kafka's log for tools.

    With `settings` a terminal also gets a first screen.
    """
    lines = [f"kbroker ready on {host}:{port}"]
    if settings is not None and sys.stdout.isatty():
        lines += first_screen(f"{'localhost' if host in EVERY_INTERFACE else _in_brackets(host)}:{port}", settings)
    if as_kafka:
        # The Testcontainers modules for Java and Python wait for one of these lines.
        lines += [
            f"[BrokerLifecycleManager id={node_id}] Transitioning from RECOVERY to RUNNING.",
            f"[KafkaServer id={node_id}] started",
            f"[KafkaRaftServer nodeId={node_id}] Kafka Server started",
        ]
    if ready_file is not None:
        try:
            is_other = ready_file.exists() and not ready_file.is_file()  # a device or a pipe must not be replaced
            line = f"{'localhost' if host in EVERY_INTERFACE else _in_brackets(host)}:{port}\n"
            if is_other:
                ready_file.write_text(line)
            else:
                unfinished = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
                unfinished.unlink(missing_ok=True)
                with unfinished.open("x") as file:  # never through another user's link
                    file.write(line)
                unfinished.chmod(0o644)  # the broker's umask would let only its user read it
                unfinished.replace(ready_file)
        except OSError as error:
            print(f"kbroker serve: cannot write {ready_file}: {error.strerror}", file=sys.stderr)
    with suppress(OSError):  # the output may be a file on a full disk
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    if systemd := os.environ.get("NOTIFY_SOCKET"):
        _notify(systemd)


def _notify(address: str) -> None:
    """Tell systemd that the service is ready (Type=notify); sd_notify(3)."""
    import socket  # noqa: PLC0415  (only under systemd)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.sendto(b"READY=1", f"\0{address[1:]}" if address.startswith("@") else address)


_TRY_BROKER: Final = """\
  try      echo hello | kbroker produce -b {0} -t greetings
           kbroker consume -b {0} -t greetings --exit-at-end
           kcat -b {0} -L"""
_TRY_CONTROLLER: Final = """\
  next     this node is only a controller; clients connect to brokers, which start with
           controller.quorum.bootstrap.servers={0}"""


def first_screen(address: str, settings: Settings) -> list[str]:
    """What a person wants to know about a broker that has just started."""
    pages = settings.observability.kbroker_http_listener
    scheme = "https" if settings.observability.kbroker_http_security_protocol == "SSL" else "http"
    return [
        "",
        f"  version  {__version__} ({build()})",
        f"  data     {settings.data_directory}",
        f"  pages    {scheme}://{pages}/"
        if pages
        else "  pages    off; --http 127.0.0.1:9644 serves a state page, /metrics and /health",
        *(_TRY_BROKER if settings.server.is_broker else _TRY_CONTROLLER).format(address).splitlines(),
        "  stop     Ctrl-C",
        "",
    ]


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
