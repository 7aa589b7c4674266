"""kafka-storage: random-uuid, format and info.

`format` gives the data directory of a properties file its identity. With --add-scram, --feature or --release-version it
also writes bootstrap.checkpoint, with which the metadata log of a new cluster begins; the broker does the rest when it
starts. The start scripts of other images format without a file; then the broker does everything, with the id in
CLUSTER_ID.

Source  StorageTool, Formatter, Feature and ScramParser of Apache Kafka 4.3.1
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from administration import METADATA_VERSIONS, level_name

from kbroker.cli import CommandFailed, Parser
from kbroker.config import ConfigError, Settings
from kbroker.controller.bootstrap import users_of, write_bootstrap
from kbroker.controller.features import NEW_CLUSTER, NOT_RAISED, SUPPORTED_FEATURES, WHY_NOT_RAISED
from kbroker.controller.scram import SCRAM_LEVEL
from kbroker.controller.snapshots import BOOTSTRAP_FILE
from kbroker.metadata.image import Record
from kbroker.metadata.parts import METADATA_VERSION_FEATURE
from kbroker.runtime.clocks import RealClocks
from kbroker.runtime.disk import RealDisk
from kbroker.security.sasl import scram
from kbroker.storage.checkpoint import write_atomically
from kbroker.storage.formatting import META_PROPERTIES, DirectoryIdentity, format_identity, parse_identity
from wire.errors import KafkaError
from wire.stored.metadata import UserScramCredentialRecord
from wire.types import uuid_from_text, uuid_to_text

_PARTS_OF_A_RELEASE: Final = 2
_DEFAULTS: Final = {
    "group.version": ("4.0-IV0", 1),
    "transaction.version": ("4.0-IV2", 2),
    "eligible.leader.replicas.version": ("4.1-IV0", 1),
    "share.version": ("4.2-IV0", 1),
    "streams.version": ("4.2-IV1", 1),
}
"""The default level of each feature from a metadata.version on; before it, 0."""


def storage(words: Sequence[str]) -> int:
    """kafka-storage."""
    parser = Parser(prog="kafka-storage")
    actions = parser.add_subparsers(dest="action", required=True, parser_class=argparse.ArgumentParser)
    actions.add_parser("random-uuid", help="print an id for a new cluster")
    formatting = actions.add_parser("format", help="prepare a data directory")
    for action in (formatting, actions.add_parser("info", help="print what a data directory belongs to")):
        action.add_argument("-c", "--config", type=Path, required=True)
    formatting.add_argument("-t", "--cluster-id", required=True)
    formatting.add_argument("-g", "--ignore-formatted", action="store_true")
    formatting.add_argument("-S", "--add-scram", action="append", default=[], metavar="MECHANISM=[name=...,...]")
    formatting.add_argument("-f", "--feature", action="append", default=[], metavar="NAME=LEVEL")
    formatting.add_argument("-r", "--release-version", metavar="RELEASE")
    voters = formatting.add_mutually_exclusive_group()
    voters.add_argument("-s", "--standalone", action="store_true", help="this node is the only controller")
    voters.add_argument("-I", "--initial-controllers", metavar="ID@HOST:PORT:DIRECTORY")
    voters.add_argument("-N", "--no-initial-controllers", action="store_true", help="for brokers")
    options = parser.parse_args(list(words))
    if options.action == "random-uuid":
        print(uuid_to_text(RealClocks().new_uuid()))
        return 0
    if options.action == "info":
        return _info(Path(_settings(options.config).data_directory))
    is_default = not (options.add_scram or options.feature or options.release_version or options.initial_controllers)
    if is_default and not options.config.exists():
        print("kbroker formats a new data directory when it starts")
        return 0
    _format(options, is_default=is_default)
    return 0


def _settings(file: Path) -> Settings:
    try:
        return Settings.load(file.read_bytes(), file_name=str(file), overrides=[], defaults={})
    except (OSError, ConfigError) as error:
        raise CommandFailed(str(error)) from error


def _info(directory: Path) -> int:
    """Print the directory and its identity; 1 if it has none."""
    problem, identity = "", None
    file = directory / META_PROPERTIES
    if not directory.is_dir():
        problem = f"{directory} is not a directory" if directory.exists() else f"{directory} does not exist"
    elif not file.exists():
        problem = f"{directory} is not formatted."
    else:
        try:
            identity = parse_identity(file.read_text())
        except (OSError, ValueError) as error:
            problem = f"Error loading {file}: {error}"
    if directory.is_dir():
        print(f"Found log directory:\n  {directory}\n")
    if identity is not None:
        cluster_id, node_id, directory_id = identity
        ids = f"cluster.id={cluster_id}, directory.id={uuid_to_text(directory_id)}, node.id={node_id}"
        print(f"Found metadata: {{{ids}, version=1}}\n")
    if problem:
        print(f"Found problem:\n  {problem}\n")
    return 1 if problem else 0


def _format(options: argparse.Namespace, *, is_default: bool) -> None:
    settings = _settings(options.config)
    levels = _levels(options.feature, options.release_version)
    directory_id = _directory_id(options, settings) or RealClocks().new_uuid()
    credentials = [_credential(text) for text in options.add_scram]
    if credentials and levels[METADATA_VERSION_FEATURE] < SCRAM_LEVEL:
        name = METADATA_VERSIONS[SCRAM_LEVEL - 1]
        raise CommandFailed(f"SCRAM is only supported in {METADATA_VERSION_FEATURE} {name} or later.")
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
    version = METADATA_VERSIONS[levels[METADATA_VERSION_FEATURE] - 1]
    print(f"Formatting metadata directory {directory} with {METADATA_VERSION_FEATURE} {version}.")
    identity = DirectoryIdentity(options.cluster_id, settings.node_id, directory_id)
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        if settings.server.is_controller and not is_default:
            _write_bootstrap(settings, str(directory), levels, credentials)
        write_atomically(RealDisk(), str(file), format_identity(identity).encode())
    except OSError as error:
        raise CommandFailed(f"cannot format {directory}: {error}") from error


def _write_bootstrap(settings: Settings, root: str, levels: Mapping[str, int], credentials: list[Record]) -> None:
    """Write the first records of the metadata log, with the users of kbroker.bootstrap.users.file."""
    clocks, disk = RealClocks(), RealDisk()
    Path(root, BOOTSTRAP_FILE).unlink(missing_ok=True)  # of an attempt that was interrupted
    try:
        users = users_of(disk, settings.sasl.kbroker_bootstrap_users_file, clocks.new_uuid)
    except KafkaError as error:
        raise CommandFailed(error.message) from error
    timestamp_ms = clocks.timestamp_ms()
    write_bootstrap(root, disk=disk, timestamp_ms=timestamp_ms, more=lambda: [*users, *credentials], levels=levels)


# --- features ---


def _levels(features: list[str], release: str | None) -> dict[str, int]:
    """The levels of a new cluster with these features. Raises CommandFailed for what kbroker does not support."""
    found: dict[str, int] = {}
    for text in features:
        name, equals, level = text.partition("=")
        if not equals:
            raise CommandFailed(f"Can't parse feature=level string {text}: equals sign not found.")
        if not level.isdecimal():
            raise CommandFailed(f"Can't parse feature=level string {text}: unable to parse {level} as a short.")
        if name in found:
            raise CommandFailed(f"the feature {name} is named twice")
        found[name] = int(level)
    if release is not None:
        if METADATA_VERSION_FEATURE in found:
            raise CommandFailed(
                f"Use --release-version instead of --feature {METADATA_VERSION_FEATURE}=X to avoid ambiguity."
            )
        found[METADATA_VERSION_FEATURE] = _level_of_release(release)
    for feature, wanted in found.items():
        if problem := _problem(feature, wanted):
            raise CommandFailed(problem)
    if METADATA_VERSION_FEATURE not in found:
        return {**NEW_CLUSTER, **found}
    defaults = _defaults_of(found[METADATA_VERSION_FEATURE])
    lacking = {name: level for name, level in defaults.items() if name not in found and _problem(name, level)}
    if lacking:
        version = level_name(METADATA_VERSION_FEATURE, found[METADATA_VERSION_FEATURE])
        levels = ", ".join(f"{name} {level}" for name, level in lacking.items())
        flags = " ".join(f"--feature {name}=0" for name in lacking)
        raise CommandFailed(
            f"the defaults of {METADATA_VERSION_FEATURE} {version} include {levels}, which kbroker does not support: "
            f"add {flags}"
        )
    return {**defaults, **found}


def _problem(feature: str, level: int) -> str:
    """Why kbroker cannot format a directory with this level, or an empty text."""
    if feature in NOT_RAISED and level:
        return f"{feature} {level} is not supported: {WHY_NOT_RAISED}"
    if feature not in SUPPORTED_FEATURES:
        return f"Unsupported feature: {feature}. Supported features are: {', '.join(SUPPORTED_FEATURES)}"
    lowest, highest = SUPPORTED_FEATURES[feature]
    if lowest <= level <= highest:
        return ""
    given, first, last = (level_name(feature, each) for each in (level, lowest, highest))
    return f"{feature} {given} is not supported: kbroker supports {first} to {last}"


def _defaults_of(metadata_version: int) -> dict[str, int]:
    """The levels that Kafka's tool gives to the other features of a new cluster with this metadata.version."""
    return {
        feature: level if METADATA_VERSIONS.index(begin) < metadata_version else 0
        for feature, (begin, level) in _DEFAULTS.items()
    }


def _level_of_release(release: str) -> int:
    """The level of a name such as 3.8-IV0, or the last level of a release such as 3.8 or 3.8.1."""
    begin = ".".join(release.split(".")[:_PARTS_OF_A_RELEASE])
    found = [name for name in METADATA_VERSIONS if begin == name or name.startswith(f"{begin}-")]
    if not found:
        raise CommandFailed(f"Version {release} is not a valid version. The last one is {METADATA_VERSIONS[-1]}")
    return METADATA_VERSIONS.index(found[-1]) + 1


# --- controllers ---


class _Voter(NamedTuple):
    node_id: int
    directory_id: UUID


def _directory_id(options: argparse.Namespace, settings: Settings) -> UUID | None:
    """The id that the flags give to the directory of this node, if any.

    kbroker's quorum has one controller, which never changes. So the flags for a quorum that can change are accepted if
    they mean the same.
    """
    server = settings.server
    if not (options.standalone or options.initial_controllers or options.no_initial_controllers):
        return None
    if server.controller_quorum_voters:
        raise CommandFailed(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
            "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and specify "
            "controller.quorum.bootstrap.servers instead."
        )
    if options.standalone and not server.is_controller:
        raise CommandFailed("You can only use --standalone on a controller.")
    if options.no_initial_controllers and server.is_controller:
        raise CommandFailed("--no-initial-controllers is not supported on a controller: kbroker has one controller")
    if not options.initial_controllers:
        return None
    voters = [_voter(text) for text in options.initial_controllers.split(",")]
    if len(voters) > 1:
        raise CommandFailed(f"--initial-controllers names {len(voters)} controllers, but kbroker has one")
    (voter,) = voters
    if server.is_controller and voter.node_id != settings.node_id:
        raise CommandFailed(
            f"--initial-controllers names node {voter.node_id}, but this is node {settings.node_id} and kbroker has "
            "one controller"
        )
    return voter.directory_id if server.is_controller else None


def _voter(text: str) -> _Voter:
    """A voter in Kafka's form, such as 1@localhost:9093:JEXY6aqzQY-32P5TStzaFg."""
    node_id, at, rest = text.partition("@")
    address, _, directory = rest.rpartition(":")
    try:
        if not at or not address.rpartition(":")[0]:
            raise ValueError("no address")
        return _Voter(int(node_id), uuid_from_text(directory))
    except ValueError as error:
        raise CommandFailed(
            f"--initial-controllers: {text!r} is not of the form id@host:port:directory ({error})"
        ) from error


# --- credentials ---


def _credential(text: str) -> Record:
    """The record for an argument such as SCRAM-SHA-256=[name=alice,password=secret]."""
    name, equals, settings = text.strip().partition("=")
    if not equals:
        raise CommandFailed(f"Failed to find equals sign in SCRAM argument '{text.strip()}'")
    mechanism = scram.MECHANISMS.get(name)
    if mechanism is None:
        raise CommandFailed(f"The add-scram mechanism {name} is not supported.")
    for bracket, is_there in (("start with [", settings.startswith("[")), ("end with ]", settings.endswith("]"))):
        if not is_there:
            raise CommandFailed(f"Expected configuration string to {bracket}")
    parts = dict(map(_component, settings[1:-1].split(",")))
    user = parts.pop("name", "")
    if not user:
        raise CommandFailed("You must supply 'name' to add-scram")
    password, salted_text, salt_text = (parts.pop(key, None) for key in ("password", "saltedpassword", "salt"))
    iterations = _iterations(parts.pop("iterations", None), name)
    if parts:
        raise CommandFailed(f"Unknown SCRAM configurations: {', '.join(sorted(parts))}")
    if salt_text is None and salted_text is not None and password is None:
        raise CommandFailed("You must supply 'salt' with 'saltedpassword' to add-scram")
    salt = RealClocks().new_uuid().bytes if salt_text is None else _decoded("salt", salt_text)
    if password:
        salted = scram.salted_password(mechanism, password, salt, iterations)
    elif salted_text and password is None:
        salted = _decoded("saltedPassword", salted_text)
    else:
        raise CommandFailed("You must supply one of 'password' or 'saltedpassword' to add-scram")
    made = scram.credential_of(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(name=user, mechanism=mechanism.number, **made._asdict())


def _component(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise CommandFailed("No equals sign found in SCRAM component")  # it may be a part of the password
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return key, value[1:-1] if is_quoted else value


def _iterations(text: str | None, mechanism: str) -> int:
    if text is None:
        return scram.MIN_ITERATIONS
    if not text.isdecimal():
        raise CommandFailed(f"Failed to parse iterations count: {text}")
    count, of = int(text), f"for add-scram using {mechanism.replace('-', '_')}"
    if count < scram.MIN_ITERATIONS:
        raise CommandFailed(f"The 'iterations' value must be >= {scram.MIN_ITERATIONS} {of}")
    if count > scram.MAX_ITERATIONS:
        raise CommandFailed(f"The 'iterations' value must be <= {scram.MAX_ITERATIONS} {of}")
    return count


def _decoded(what: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CommandFailed(f"Failed to decode given {what}: {text}") from error
