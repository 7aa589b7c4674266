"""`kbroker tier ls`: list the segments of the tier, or the offsets of partitions in both tiers."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence

from kbroker.cli._say import note, say_json
from kbroker.cli._table import print_rows
from kbroker.cli._tier_sources import Offsets, Source, choose, open_source
from kbroker.tiered.api import DELETED, FINISHED, RemoteLogSegmentMetadata
from kbroker.tiered.catalogue import Catalogue, Partition, as_json, id_text, partition_of

SEGMENT_COLUMNS = ("TOPIC", "PARTITION", "START", "END", "EPOCHS", "STATE", "BYTES", "SEGMENT")
OFFSET_COLUMNS = ("TOPIC", "PARTITION", "LOG-START", "LOCAL-START", "TIERED-TO", "END", "SEGMENTS", "TIERED-BYTES")


def ls(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print segments or offsets."""
    if options.all and options.offsets:
        parser.error("--all cannot be used with --offsets")
    with open_source(options) as source:
        catalogue = source.catalogue()
        warn(catalogue)
        everything = catalogue.of(None)
        wanted = choose(source, options.topic, also=map(partition_of, everything))
        segments = [each for each in catalogue.of(wanted) if options.all or each.state is not DELETED]
        if options.offsets:
            _print_offsets(source, catalogue, segments, wanted, options.format)
            return
    if options.format == "json":
        for each in segments:
            say_json(as_json(each))
        return
    print_rows(SEGMENT_COLUMNS, map(_row, segments))


def warn(catalogue: Catalogue) -> None:
    """Warn on stderr if the catalogue may be incomplete."""
    for warning in catalogue.warnings():
        note(f"kbroker tier: {warning}")


def _row(segment: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    topic, partition = partition_of(segment)
    epochs = ",".join(f"{epoch}@{start}" for epoch, start in segment.segment_leader_epochs)
    return (
        topic, partition, segment.start_offset, segment.end_offset, epochs, segment.state.name,
        segment.segment_size_in_bytes, id_text(segment),
    )  # fmt: skip


def _print_offsets(
    source: Source,
    catalogue: Catalogue,
    segments: Sequence[RemoteLogSegmentMetadata],
    wanted: Sequence[Partition] | None,
    how: str,
) -> None:
    by_partition: defaultdict[Partition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
    for each in segments:
        if each.state is FINISHED:
            by_partition[partition_of(each)].append(each)
    existing = {(topic, index) for topic, indexes in source.partitions().items() for index in indexes}
    partitions = sorted(by_partition) if wanted is None else list(wanted)
    found = source.offsets([each for each in partitions if each in existing], catalogue)
    rows = []
    for partition in partitions:
        held = by_partition[partition]
        offsets = found.get(partition, Offsets(None, None, None, None))
        rows.append((*partition, *offsets, len(held), sum(one.segment_size_in_bytes for one in held)))
    if how == "json":
        names = (
            "topic", "partition", "log_start_offset", "local_log_start_offset", "highest_offset_in_remote_storage",
            "log_end_offset", "segment_count", "size_bytes",
        )  # fmt: skip
        for row in rows:
            say_json(dict(zip(names, row, strict=True)))
        return
    print_rows(OFFSET_COLUMNS, [["-" if cell is None else cell for cell in row] for row in rows])
