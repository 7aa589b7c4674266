"""`kbroker tier lease`: hold records against retention while a job reads them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Final

from kbroker.cli import CommandFailed
from kbroker.cli._admin import admin_client
from kbroker.cli._groups import led_partitions, log_offsets
from kbroker.cli._say import note, say, say_json
from kbroker.cli._table import print_rows
from kbroker.client.cluster import Cluster
from kbroker.client.leases import leases, release, renew, take
from kbroker.client.operations import EARLIEST, LATEST, describe_configs
from kbroker.config.leases import Lease
from wire.types import uuid_to_text

BROKER_RESOURCE: Final = 4
LIMIT: Final = "kbroker.retention.lease.max.ms"
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
                ttl_ms = _allowed(client, one.created_ms, options.ttl_ms)
                _print(topic, [renew(client, topic, one, ttl_ms=ttl_ms)], options.format)
        else:
            offsets = _offsets(parser, client, topic, partitions, options)
            lease_id = uuid_to_text(client.env.new_uuid())
            ttl_ms = _allowed(client, client.env.timestamp_ms(), options.ttl_ms)
            taken = take(client, topic, lease_id, offsets, ttl_ms=ttl_ms)
            if options.format == "json":
                _print(topic, [taken], "json")
            else:
                say(taken.id)


def _named(client: Cluster, topic: str, lease_id: str) -> list[Lease]:
    found = [one for one in leases(client, topic) if one.id == lease_id]
    if not found:
        raise CommandFailed(f"topic {topic!r} has no lease {lease_id}")
    return found


def _allowed(client: Cluster, created_ms: int, ttl_ms: int) -> int:
    """The time to live that brokers respect for a lease of this age. Raises CommandFailed if there is none left."""
    node_id = min(each.node_id for each in client.metadata([]).brokers)
    (answer,) = describe_configs(client, BROKER_RESOURCE, [str(node_id)], node_id=node_id)
    limit = next((int(each.value) for each in answer.configs if each.name == LIMIT and each.value), None)
    if limit is None:
        return ttl_ms
    left = created_ms + limit - client.env.timestamp_ms()
    if left <= 0:
        raise CommandFailed(f"the lease is over: none holds for more than {limit} ms ({LIMIT}); take another one")
    if left < ttl_ms:
        note(f"kbroker tier: the lease ends after {left} ms, because none holds for more than {limit} ms ({LIMIT})")
    return min(left, ttl_ms)


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
    known = led_partitions(client, [topic])
    if missing := [index for index in wanted or () if (topic, index) not in known]:
        raise CommandFailed(f"topic {topic!r} has no partition {', '.join(map(str, missing))}")
    partitions = [each for each in known if wanted is None or each[1] in wanted]
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
