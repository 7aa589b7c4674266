"""The task that writes snapshots of the published images and deletes the log before them, for leader and follower."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from kbroker.controller.metadata_log import MetadataLog
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from wire.errors import KafkaError

_CHECK_SECONDS: Final = 60.0

logger = get_logger(__name__)


async def write_snapshots(env: Env, log: MetadataLog, publisher: MetadataPublisher, log_lock: trio.Lock) -> None:
    """Write a snapshot whenever one is due, forever. The lock is held while the log changes."""
    published = trio.Event()
    publisher.add_listener(lambda _image, _delta: published.set())
    while True:
        with trio.move_on_after(_CHECK_SECONDS):
            await published.wait()
        published = trio.Event()
        # A snapshot holds no open transaction.
        if publisher.image.open_transaction is not None or not log.snapshot_is_due(now_ms=env.now_ms()):
            continue
        try:
            log.note_snapshot(now_ms=env.now_ms())
            image = publisher.image
            async with log_lock:
                await env.run_blocking(log.sync)
            write = partial(log.write_snapshot, image, timestamp_ms=env.timestamp_ms())
            snapshot = await env.run_blocking(write)
            async with log_lock:
                if snapshot.end_offset < log.log_start_offset:
                    continue  # the follower has installed a newer one in between
                adopt = partial(log.adopt_snapshot, snapshot, timestamp_ms=env.timestamp_ms(), now_ms=env.now_ms())
                await env.run_blocking(adopt)
        except (OSError, KafkaError) as error:
            # Without a snapshot the log only gets longer; retry when the next one is due.
            logger.error("cannot write a metadata snapshot; will retry", error=str(error))
