"""`kbroker dump-log`: print the contents of files in a log directory, as Kafka's dump tool does.

It reads `.log`, `.checkpoint` (metadata snapshots), `.index`, `.timeindex`, `.txnindex` and `.snapshot` files, and the
checkpoints of a partition and of a log directory. The files may belong to kbroker or Apache Kafka, stopped or running;
the command only reads. Flags and output are those of Kafka's tool, with two differences: damage is reported on stderr
with file and position and sets exit code 1 (Kafka's tool exits with 0 unless it crashes), and a segment's first offset
is not treated as a gap.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kbroker.cli import EXIT_FAILED, Commands, add_format_flag
from kbroker.cli import _positions as parse

if TYPE_CHECKING:
    from kbroker.cli._dump_logs import LogOptions
    from kbroker.cli._dump_output import Printer, Problems
    from kbroker.cli._payloads import Decode, Decoder

NO_LIMIT: Final = 0x7FFF_FFFF
# Segments that are being deleted, swapped in or cleaned have an additional suffix.
_PASSING_SUFFIXES: Final = (".deleted", ".swap", ".cleaned")
# Files in the same directory, which `--files directory/*` also includes.
_OTHER_FILES: Final = (
    "partition.metadata",
    "meta.properties",
    "quorum-state",
    "remote_log_snapshot",
    ".kafka_cleanshutdown",
    ".lock",
)
# Flag -> the function in `_payloads` that decodes the records of the topic of this name, without underscores.
_DECODERS: Final = {
    "--offsets-decoder": "consumer_offsets",
    "--transaction-log-decoder": "transaction_state",
    "--cluster-metadata-decoder": "cluster_metadata",
    "--remote-log-metadata-decoder": "remote_log_metadata",
}


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "dump-log",
        aliases=["dump-logs"],
        help="print the contents of log segments, indexes and snapshots",
        description="Print the contents of files in a log directory, in the format of Kafka's tool.",
    )
    parser.add_argument(
        "--files", nargs="+", action="extend", required=True, metavar="FILE",
        help="files to print, separated by commas or blanks",
    )  # fmt: skip
    parser.add_argument("--print-data-log", action="store_true", help="print the keys and values of records")
    parser.add_argument("--deep-iteration", action="store_true", help="print each record, not only each batch")
    parser.add_argument(
        "--skip-record-metadata", action="store_true", help="print only the key and value of each record"
    )
    parser.add_argument(
        "--index-sanity-check", action="store_true",
        help="only do the check with which a starting broker decides whether to rebuild an index",
    )  # fmt: skip
    parser.add_argument(
        "--verify-index-only", action="store_true", help="compare an index with its log without printing the index"
    )
    parser.add_argument(
        "--max-message-size", type=parse.count, default=5 << 20, metavar="BYTES",
        help="accepted for compatibility with Kafka's tool; has no effect",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=parse.count, default=NO_LIMIT, metavar="BYTES", help="read at most this much of each log"
    )
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-decoder-class", type=_decoder_class, metavar="CLASS",
            help=f"decoder of {what}s: the String, Integer, Long or DefaultDecoder of Kafka's tools (other JVM classes "
            "are not supported)",
        )  # fmt: skip
    decoders = parser.add_mutually_exclusive_group()
    for flag, topic in _DECODERS.items():
        decoders.add_argument(
            flag, action="store_const", const=topic, dest="decoder", help=f"decode records of __{topic}"
        )
    add_format_flag(parser)
    parser.set_defaults(run=dump_log)


def _decoder_class(name: str) -> Decode:
    from kbroker.cli._payloads import CLASSES  # noqa: PLC0415

    if name not in CLASSES:
        raise argparse.ArgumentTypeError(f"{name} is an unsupported JVM class; supported are {', '.join(CLASSES)}")
    return CLASSES[name]


def dump_log(options: argparse.Namespace) -> int:
    """Print the files; return the exit code."""
    from kbroker.cli._dump_logs import LogOptions  # noqa: PLC0415  (--help must not import the codec)
    from kbroker.cli._dump_output import JsonLines, KafkaLines, Problems  # noqa: PLC0415

    decoder = _decoder(options)
    printer = JsonLines() if options.format == "json" else KafkaLines(skip_record_metadata=options.skip_record_metadata)
    problems = Problems()
    log_options = LogOptions(options.deep_iteration or decoder is not None, decoder, options.max_bytes)
    for path in _paths(options.files):
        printer.line(f"Dumping {path}", "file", path=path)
        try:
            _dump(path, printer, problems, log_options, options)
        except BrokenPipeError:
            raise
        except OSError as error:
            problems.add(path, error.strerror or str(error))
    sys.stdout.flush()
    return EXIT_FAILED if problems.count else 0


def _paths(words: list[str]) -> list[str]:
    """The named files. A word is a comma-separated list, unless a file with exactly that name exists."""
    return [path for word in words for path in ([word] if Path(word).exists() else word.split(",")) if path]


def _decoder(options: argparse.Namespace) -> Decoder | None:
    """The decoder that the flags choose; None if contents are not printed."""
    from kbroker.cli import _payloads  # noqa: PLC0415

    if options.decoder is not None:
        return cast("Decoder", getattr(_payloads, options.decoder)())
    key, value = options.key_decoder_class, options.value_decoder_class
    if options.print_data_log or key or value:
        return _payloads.plain(key or _payloads.text, value or _payloads.text)
    return None


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
        with closing(disk.open(path, writable=False)) as file:
            _dump_logs.dump_log(file, printer, problems, log_options)
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
        problems.hint(path, "ignored: kbroker dump-log does not print files of this type")
    else:
        problems.add(path, "not a file of a log directory")
