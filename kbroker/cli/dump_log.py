"""`kbroker dump-log`: print what is in the files of a log directory, as Kafka's dump tool does.

It knows `.log`, `.checkpoint` (snapshots of the metadata log), `.index`, `.timeindex`, `.txnindex` and `.snapshot`
files, and the checkpoints of a partition and of a log directory, of kbroker and of Apache Kafka, stopped or running: it
only reads. Flags and lines are those of Kafka's tool, except that damage is told of on stderr with file and position
and makes the exit code 1 (Kafka's is 0 unless it dies of it), and that a segment's first offset is not taken for a gap.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.cli import EXIT_FAILED, EXIT_USAGE, Commands
from kbroker.cli._say import say

if TYPE_CHECKING:
    from kbroker.cli._dump_logs import LogOptions
    from kbroker.cli._dump_output import Printer, Problems
    from kbroker.cli._payloads import Decoder

NO_LIMIT: Final = 0x7FFF_FFFF
STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"
# Segments that are being deleted, swapped in or cleaned carry one more suffix.
_PASSING_SUFFIXES: Final = (".deleted", ".swap", ".cleaned")
# They lie beside the others, so that `--files directory/*` names them too.
_OTHER_FILES: Final = (
    "partition.metadata",
    "meta.properties",
    "quorum-state",
    "remote_log_snapshot",
    ".kafka_cleanshutdown",
    ".lock",
)
_DECODERS: Final = (
    "offsets_decoder",
    "transaction_log_decoder",
    "cluster_metadata_decoder",
    "remote_log_metadata_decoder",
)


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "dump-log",
        aliases=["dump-logs"],
        help="print what is in log segments, indexes and snapshots",
        description="Print what is in the files of a log directory, in the lines of Kafka's own tool.",
    )
    parser.add_argument(
        "--files", nargs="+", action="extend", required=True, metavar="FILE",
        help="the files, separated by commas or blanks",
    )  # fmt: skip
    parser.add_argument("--print-data-log", action="store_true", help="print the keys and values of records")
    parser.add_argument("--deep-iteration", action="store_true", help="print each record, not each batch alone")
    parser.add_argument(
        "--skip-record-metadata", action="store_true", help="print of each record its key and value alone"
    )
    parser.add_argument(
        "--index-sanity-check", action="store_true",
        help="only check an index as a broker does at its start to see if it must be rebuilt",
    )  # fmt: skip
    parser.add_argument(
        "--verify-index-only", action="store_true", help="compare an index with its log, without printing it"
    )
    parser.add_argument(
        "--max-message-size", type=_positive, default=5 << 20, metavar="BYTES",
        help="accepted as by Kafka's tool; of the batches that an index points at only the headers are read here",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=_positive, default=NO_LIMIT, metavar="BYTES", help="read no more than this of each log"
    )
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-decoder-class", default=None, metavar="CLASS",
            help=f"how {what}s are printed: the String, Integer, Long or DefaultDecoder of Kafka's tools (other JVM "
            "classes cannot be loaded)",
        )  # fmt: skip
    decoders = parser.add_mutually_exclusive_group()
    for flag, topic in zip(
        _DECODERS,
        ("__consumer_offsets", "__transaction_state", "__cluster_metadata", "__remote_log_metadata"),
        strict=True,
    ):
        decoders.add_argument(f"--{flag.replace('_', '-')}", action="store_true", help=f"the log is of {topic}")
    parser.add_argument(
        "--format", choices=["text", "json"], default="text", help="json prints an object a line, for machines"
    )
    parser.set_defaults(run=dump_log)


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def dump_log(options: argparse.Namespace) -> int:
    """Print the files; the exit code."""
    from kbroker.cli._dump_logs import LogOptions  # noqa: PLC0415  (help must not cost the import of the wire)
    from kbroker.cli._dump_output import JsonLines, KafkaLines, Problems  # noqa: PLC0415

    decoder = None
    if options.print_data_log or any(
        getattr(options, name) for name in (*_DECODERS, "key_decoder_class", "value_decoder_class")
    ):
        decoder = _decoder(options)
        if decoder is None:
            return EXIT_USAGE
    if hasattr(sys.stdout, "reconfigure"):
        # Records are the bytes of strangers: no text of theirs may end a dump.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    printer: Printer = (
        JsonLines(sys.stdout)
        if options.format == "json"
        else KafkaLines(sys.stdout, skip_record_metadata=options.skip_record_metadata)
    )
    problems = Problems()
    log_options = LogOptions(options.deep_iteration or decoder is not None, decoder, options.max_bytes)
    for path in _paths(options.files):
        printer.file(path)
        try:
            _dump(path, printer, problems, log_options, options)
        except BrokenPipeError:
            raise
        except OSError as error:
            problems.add(path, error.strerror or str(error))
    sys.stdout.flush()
    return EXIT_FAILED if problems.count else 0


def _paths(words: list[str]) -> list[str]:
    """The files that are named: a word may be a list with commas, unless there is a file of just that name."""
    return [path for word in words for path in ([word] if Path(word).exists() else word.split(",")) if path]


def _decoder(options: argparse.Namespace) -> Decoder | None:
    """The decoder that the flags ask for; None, after saying why, if there is none."""
    from kbroker.cli import _payloads  # noqa: PLC0415

    makers = dict(
        zip(
            _DECODERS,
            (
                _payloads.consumer_offsets,
                _payloads.transaction_state,
                _payloads.cluster_metadata,
                _payloads.remote_log_metadata,
            ),
            strict=True,
        )
    )
    for name, make in makers.items():
        if getattr(options, name):
            return make()
    found = []
    for name in (options.key_decoder_class or STRING_DECODER, options.value_decoder_class or STRING_DECODER):
        decode = _payloads.CLASSES.get(name)
        if decode is None:
            say(
                f"kbroker dump-log: {name} is a JVM class, which cannot be loaded here; known are "
                f"{', '.join(_payloads.CLASSES)}",
                file=sys.stderr,
            )
            return None
        found.append(decode)
    return _payloads.plain(*found)


def _dump(
    path: str, printer: Printer, problems: Problems, log_options: LogOptions, options: argparse.Namespace
) -> None:
    from kbroker.cli import _dump_indexes, _dump_logs  # noqa: PLC0415
    from kbroker.runtime.disk import RealDisk  # noqa: PLC0415

    disk = RealDisk()
    name = Path(path).name
    for passing in _PASSING_SUFFIXES:
        name = name.removesuffix(passing)
    suffix = Path(name).suffix
    index_options = _dump_indexes.IndexOptions(options.index_sanity_check, options.verify_index_only)
    if suffix in {".log", ".checkpoint"}:
        file = disk.open(path, writable=False)
        try:
            _dump_logs.dump_log(file, printer, problems, log_options)
        finally:
            file.close()
    elif suffix == ".index":
        _dump_indexes.dump_index(disk, path, printer, problems, index_options)
    elif suffix == ".timeindex":
        _dump_indexes.dump_time_index(disk, path, printer, problems, index_options)
    elif suffix == ".txnindex":
        _dump_indexes.dump_transaction_index(disk, path, printer, problems)
    elif suffix == ".snapshot":
        _dump_indexes.dump_producer_snapshot(disk, path, printer, problems)
    elif name == "leader-epoch-checkpoint":
        _dump_indexes.dump_leader_epochs(disk, path, printer, problems)
    elif name.endswith("-offset-checkpoint"):
        _dump_indexes.dump_offset_checkpoint(disk, path, printer, problems)
    elif name in _OTHER_FILES and Path(path).is_file():
        problems.hint(path, "ignored: this command does not print such files")
    else:
        problems.add(path, "not a file of a log directory")
