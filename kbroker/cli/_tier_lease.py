"""`kbroker tier lease`: hold records against retention while a job reads them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Final

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client
from kbroker.cli._groups import led_partitions, log_offsets
from kbroker.cli._say import say, say_json
from kbroker.cli._table import print_rows
from kbroker.client.cluster import Cluster
from kbroker.client.leases import leases, release, renew, take
from kbroker.client.operations import EARLIEST, LATEST
from kbroker.config.leases import Lease
from kbroker.runtime.env import RealEnv
from wire.types import uuid_to_text

COLUMNS: Final = ("TOPIC", "LEASE", "EXPIRES", "HOLDS-FROM")


def lease(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Take, renew, release or list leases."""
    topic, partitions = options.topic
    with admin_client(options) as client:
        if options.list:
            _print(topic, leases(client, topic), options.format)
        elif options.release:
            release(client, topic, _named(client, topic, options.release))
        elif options.renew:
            for one in _named(client, topic, options.renew):
                _print(topic, [renew(client, topic, one, ttl_ms=options.ttl_ms)], options.format)
        else:
            offsets = _offsets(parser, client, topic, partitions, options)
            lease_id = uuid_to_text(RealEnv().new_uuid())
            taken = take(client, topic, lease_id, offsets, ttl_ms=options.ttl_ms)
            if options.format == "json":
                _print(topic, [taken], "json")
            else:
                say(taken.id)


def _named(client: Cluster, topic: str, lease_id: str) -> list[Lease]:
    found = [one for one in leases(client, topic) if one.id == lease_id]
    if not found:
        raise CommandFailed(f"topic {topic!r} has no lease {lease_id}")
    return found


def _offsets(
    parser: argparse.ArgumentParser,
    client: Cluster,
    topic: str,
    wanted: tuple[int, ...] | None,
    options: argparse.Namespace,
) -> dict[int, int]:
    """The first held offset of each partition."""
    position = options.offset
    if position.anchor == "tail":
        parser.error("--offset: an offset from the end is not possible")
    partitions = [each for each in led_partitions(client, [topic]) if wanted is None or each[1] in wanted]
    if position.anchor == "offset":
        return {index: position.number for _, index in partitions}
    spec = {"beginning": EARLIEST, "end": LATEST}.get(position.anchor, position.number)
    found, ends = log_offsets(client, partitions, spec), log_offsets(client, partitions, LATEST)
    # No record is as late as the timestamp: hold what comes.
    offsets = {index: found.get((topic, index), -1) for _, index in partitions}
    return {index: ends.get((topic, index), 0) if offset < 0 else offset for index, offset in offsets.items()}


def _print(topic: str, found: list[Lease], how: str) -> None:
    if how == "json":
        for one in found:
            say_json({"topic": topic, **one._asdict()})
        return
    print_rows(
        COLUMNS,
        [
            (
                topic,
                one.id,
                f"{datetime.fromtimestamp(one.expires_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC",
                ",".join(f"{index}:{offset}" for index, offset in sorted(one.offsets.items())),
            )
            for one in found
        ],
    )
