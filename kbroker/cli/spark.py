"""`kbroker spark JOB`: jobs on Spark, which reads the tier directly and in parallel.

    export   a topic as Parquet files, each record exactly once over restarts
    audit    the tier's deep scrub, in parallel over every segment, with an HTML page
    replay   records of a topic, or of Parquet files, into a topic
    catalog  the segments of the tier as a table

Spark runs in this process and on all cores of this machine, unless --master names a cluster. Needs PySpark:
`pip install 'kbroker[spark]'`.

Exit codes: 0 done; 1 it could not be done; 2 the command line was wrong; 3 something was found: damage by `audit`,
records that could not be decoded by `export`.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Final

from kbroker.cli import Commands, add_part
from kbroker.cli import _positions as parse
from kbroker.cli._tier_flags import add_min_age_flag, add_store_flags

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
        metavar="HOST:PORT", help="brokers to connect to first; without one the store alone is asked",
    )  # fmt: skip
    site.add_argument(
        "--command-config", type=Path, metavar="FILE", help="a client's settings in Kafka's properties format"
    )
    site.add_argument("--data-dir", type=Path, metavar="DIR", help="a broker's data directory, below which its tier is")
    add_store_flags(site)
    site.add_argument(
        "--option", action="append", default=[], type=_pair, metavar="NAME=VALUE",
        help="an option of format('kbroker'), as startingTimestamp=0; repeatable",
    )  # fmt: skip
    engine = parser.add_argument_group("Spark")
    engine.add_argument("--master", default="local[*]", metavar="URL", help="where it runs (default local[*])")
    engine.add_argument(
        "--conf", action="append", default=[], type=_pair, metavar="KEY=VALUE",
        help="one of Spark's settings, as spark.driver.memory=4g; repeatable",
    )  # fmt: skip
    engine.add_argument(
        "--spark-log",
        type=Path,
        metavar="FILE",
        help="where Spark's log goes (default: dropped unless the job fails)",
    )
    parser.add_argument("--format", choices=["text", "json"], default="text", help="json is for machines")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key.strip(), value


def _local_file(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is not a file of this machine: write the page to one and copy it")
    return Path(text)


def _export(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "export", "write a topic as Parquet",
        "Write a topic as Parquet files below --output, in directories by date and partition, each record exactly once "
        "over restarts. Run it again to add what has come since. Exit codes: 0 done, 1 it could not be done, 3 done, "
        "but records could not be decoded: these are in _bad_records with the reason.",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", required=True, metavar="NAME", help="the topic")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a directory of any Hadoop file system")
    decode = parser.add_argument_group("decoding")
    decode.add_argument("--decode", choices=["json", "csv", "avro"], help="make columns of the values")
    decode.add_argument(
        "--schema",
        metavar="TEXT",
        help="the columns in Spark's DDL or JSON, for avro its schema; or a file",
    )
    decode.add_argument("--into", metavar="NAME", help="put the columns into one struct of this name")
    decode.add_argument(
        "--confluent-header",
        action="store_true",
        help="Avro values begin with the 5 bytes of a schema's id",
    )
    decode.add_argument(
        "--schema-id", type=partial(parse.integer, at_least=0), metavar="N", help="the only id allowed there"
    )
    decode.add_argument("--refuse-unknown-fields", action="store_true", help="JSON with other fields is a bad record")
    decode.add_argument("--csv-delimiter", default=",", metavar="CHAR", help="(default a comma)")
    decode.add_argument("--csv-null", default="", metavar="TEXT", help="what stands for null (default nothing at all)")
    parser.add_argument(
        "--max-records-per-batch",
        type=parse.count,
        metavar="N",
        help="commit after so many offsets (default all)",
    )
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until interrupted")
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
        "Compare the store with the metadata as `kbroker tier scrub --deep` does, in parallel: objects that are "
        "missing, cut or too many, every batch's CRC, offsets, indexes; and whether each partition's segments are one "
        "history without a gap. Exit codes: 0 nothing was found, 1 it could not be run, 3 something was found.",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", action="append", metavar="NAME", help="a topic; repeatable (default all)")
    parser.add_argument("--shallow", action="store_true", help="do not read the segments")
    add_min_age_flag(parser)
    parser.add_argument(
        "--html", type=_local_file, metavar="FILE", help="write the report as one page with pictures, too"
    )
    return parser


def _replay(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "replay", "write records into a topic",
        "Write the records of a topic, or of Parquet files, into a topic: keys, headers and timestamps are kept, and "
        "the order within each partition. Start it again with the same arguments after an interruption: it goes on "
        "where it was.",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-t", "--topic", metavar="NAME", help="the topic to read")
    source.add_argument("--parquet", metavar="DIR", help="the files to read: an export, or others with its columns")
    parser.add_argument("--to", required=True, metavar="NAME", help="the topic to write to, which has to exist")
    parser.add_argument(
        "--to-server", metavar="HOST:PORT", help="the brokers of the target (default: those of --bootstrap-server)"
    )
    parser.add_argument(
        "--to-command-config",
        type=Path,
        metavar="FILE",
        help="a client's settings for these, in Kafka's properties format",
    )
    parser.add_argument(
        "--job-id",
        metavar="NAME",
        help="a consumer group on the target that stands for the job",
    )
    parser.add_argument("--by-key", action="store_true", help="choose partitions by keys, not the source's")
    parser.add_argument(
        "-z", "--compression-codec", default="none", choices=CODECS, metavar="CODEC", help=", ".join(CODECS)
    )
    return parser


def _catalog(jobs: Commands) -> argparse.ArgumentParser:
    parser = add_part(
        jobs, "spark", "catalog", "the tier's segments as a table",
        "Print the segments that the metadata know, or write them as Parquet; with --events what happens to them.",
    )  # fmt: skip
    parser.add_argument("-t", "--topic", action="append", metavar="NAME", help="a topic; repeatable (default all)")
    parser.add_argument("--all", action="store_true", help="also the segments that have been deleted")
    parser.add_argument("-o", "--output", metavar="DIR", help="write them there as Parquet, too")
    parser.add_argument(
        "--events", action="store_true", help="add each event of the metadata to --output once, as a streaming query"
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="of --events (default OUTPUT/_checkpoint)")
    parser.add_argument("--follow", action="store_true", help="with --events: go on until interrupted")
    return parser
