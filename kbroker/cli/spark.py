"""`kbroker spark JOB`: jobs on Spark, which read the tier directly and in parallel.

    export   write a topic as Parquet files, each record exactly once even after restarts
    audit    run the tier's deep scrub in parallel, with an HTML report
    replay   write the records of a topic, or of Parquet files, into a topic
    catalog  print the segments of the tier as a table

Spark runs in this process on all cores of this machine, unless --master names a cluster. The jobs require PySpark:
`pip install 'kbroker[spark]'`.

Exit codes: 0 success; 1 the job failed; 2 the command line is wrong; 3 `audit` found damage, or `export` found records
that it could not decode.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Final

from kbroker.cli import Commands, add_format_flag, add_part
from kbroker.cli import _positions as parse
from kbroker.cli._tier_flags import add_min_age_flag
from kbroker.cli.serve import add_settings_flags

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def add_parser(commands: Commands) -> None:
    """Declare the command, its jobs and their flags."""
    parser = commands.add_parser(
        "spark",
        help="run jobs on Spark: export, audit, replay, catalog",
        description="Run a job on Spark, which reads the tier directly. Needs PySpark: pip install 'kbroker[spark]'.",
    )
    jobs: Commands = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    for declare in (_export, _audit, _replay, _catalog):
        _add_common(declare(jobs))


def _add_common(parser: argparse.ArgumentParser) -> None:
    site = parser.add_argument_group("broker and store")
    site.add_argument(
        "-b", "--bootstrap-server", "--bootstrap-servers", action="append", dest="bootstrap_servers",
        metavar="HOST:PORT", help="brokers to connect to first; without one, the job reads only the store",
    )  # fmt: skip
    site.add_argument(
        "--command-config", type=Path, metavar="FILE", help="client settings in Kafka's properties format"
    )
    site.add_argument("--data-dir", type=Path, metavar="DIR", help="data directory of a broker, whose tier is below it")
    add_settings_flags(site)
    site.add_argument(
        "--option", action="append", default=[], type=parse.pair, metavar="NAME=VALUE",
        help="an option of format('kbroker'), such as startingTimestamp=0; repeatable",
    )  # fmt: skip
    engine = parser.add_argument_group("Spark")
    engine.add_argument("--master", default="local[*]", metavar="URL", help="Spark master (default local[*])")
    engine.add_argument(
        "--conf", action="append", default=[], type=parse.pair, metavar="KEY=VALUE",
        help="a Spark setting, such as spark.driver.memory=4g; repeatable",
    )  # fmt: skip
    engine.add_argument(
        "--spark-log",
        type=Path,
        metavar="FILE",
        help="file for Spark's log (default: kept only if the job fails)",
    )
    add_format_flag(parser)


def _local_file(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is not a local file; write the page to a local file and copy it")
    return Path(text)


def _export(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "export", "write a topic as Parquet",
        "Write a topic as Parquet files below --output, in directories by date and partition, each record exactly once "
        "even after restarts. Run it again to add new records. Exit codes: 0 success, 1 the job failed, 3 some records "
        "could not be decoded and are in _bad_records with the reason.",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", required=True, metavar="NAME", help="topic")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory in any Hadoop file system")
    decode = parser.add_argument_group("decoding")
    decode.add_argument("--decode", choices=["json", "csv", "avro"], help="decode values into columns")
    decode.add_argument(
        "--schema",
        metavar="TEXT",
        help="schema of the columns as Spark DDL or JSON, or the Avro schema; or a file that contains it",
    )
    decode.add_argument("--into", metavar="NAME", help="put the columns into one struct of this name")
    decode.add_argument(
        "--confluent-header",
        action="store_true",
        help="Avro values begin with the 5-byte header that contains a schema id",
    )
    decode.add_argument(
        "--schema-id",
        type=partial(parse.integer, at_least=0),
        metavar="N",
        help="the only schema id allowed in the header",
    )
    decode.add_argument(
        "--refuse-unknown-fields", action="store_true", help="treat JSON with other fields as a bad record"
    )
    decode.add_argument("--csv-delimiter", default=",", metavar="CHAR", help="CSV delimiter (default a comma)")
    decode.add_argument("--csv-null", default="", metavar="TEXT", help="text for null (default empty)")
    parser.add_argument(
        "--max-records-per-batch",
        type=parse.count,
        metavar="N",
        help="commit after this many offsets (default all)",
    )
    parser.add_argument("--follow", action="store_true", help="continue with new records until interrupted")
    parser.add_argument(
        "--poll-ms",
        type=parse.milliseconds,
        default=10_000,
        metavar="MS",
        help="how often --follow looks (default 10000)",
    )
    return parser


def _audit(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "audit", "check every segment of the tier",
        "Compare the store with the metadata as `kbroker tier scrub --deep` does, but in parallel: missing, truncated "
        "and surplus objects, CRCs, offsets and indexes. Also check that each partition's segments form one history "
        "without gaps. Exit codes: 0 no findings, 1 the audit failed, 3 findings.",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", action="append", metavar="NAME", help="topic; repeatable (default all)")
    parser.add_argument("--shallow", action="store_true", help="do not read the segments")
    add_min_age_flag(parser)
    parser.add_argument("--html", type=_local_file, metavar="FILE", help="also write the report as an HTML page")
    return parser


def _replay(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "replay", "write records into a topic",
        "Write the records of a topic, or of Parquet files, into a topic. Keys, headers, timestamps and the order "
        "within each partition are kept. After an interruption, run it again with the same arguments to continue.",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-t", "--topic", metavar="NAME", help="topic to read")
    source.add_argument("--parquet", metavar="DIR", help="files to read: an export, or files with the same columns")
    parser.add_argument("--to", required=True, metavar="NAME", help="existing topic to write to")
    parser.add_argument(
        "--to-server", metavar="HOST:PORT", help="brokers of the target (default: those of --bootstrap-server)"
    )
    parser.add_argument(
        "--to-command-config",
        type=Path,
        metavar="FILE",
        help="client settings for the target, in Kafka's properties format",
    )
    parser.add_argument(
        "--job-id",
        metavar="NAME",
        help="consumer group on the target that stores the progress of the job",
    )
    parser.add_argument("--by-key", action="store_true", help="choose partitions by key instead of those of the source")
    parser.add_argument(
        "-z", "--compression-codec", default="none", choices=CODECS, metavar="CODEC", help=", ".join(CODECS)
    )
    return parser


def _catalog(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "catalog", "list the tier's segments",
        "Print the segments in the metadata, or write them as Parquet. With --events, write the metadata events.",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", action="append", metavar="NAME", help="topic; repeatable (default all)")
    parser.add_argument("--all", action="store_true", help="also list deleted segments")
    parser.add_argument("-o", "--output", metavar="DIR", help="also write the segments to this directory as Parquet")
    parser.add_argument(
        "--events",
        action="store_true",
        help="append each metadata event to --output exactly once, with a streaming query",
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="checkpoint of --events (default OUTPUT/_checkpoint)")
    parser.add_argument("--follow", action="store_true", help="with --events: continue until interrupted")
    return parser
