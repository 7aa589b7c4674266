"""What the logs on a disk say, as lines of a history for `kbroker.testing.cluster_checker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

from kbroker.storage.checkpoint import parse_lines
from kbroker.testing.cluster_checker import BY_EPOCH
from kbroker.testing.history import Function, Type
from wire.record_batch import batches


def note_log(
    note: Callable[..., object],
    process: str,
    key: str,
    segments: Iterable[tuple[int, bytes]],
    checkpoint: str,
    *,
    log_start_offset: int = 0,
) -> None:
    """Note the batches, the leader epochs and the bounds of one log. An incomplete last batch and zeros are left out.

    Shape   note is that of a history; segments are (base offset, content of the file) in order; checkpoint is the text
            of the leader-epoch checkpoint, "" if there is none
    Errors  ValueError if the checkpoint is malformed
    """
    start = end = -1
    for base_offset, data in segments:
        start = base_offset if start < 0 else start
        end = max(end, base_offset)
        for batch in batches(data):
            digest = blake2b(batch.data, digest_size=6).hexdigest()
            epoch = batch.partition_leader_epoch
            note(process, Function.BATCH, Type.OK, key, offset=batch.base_offset, epoch=epoch, value=digest)
            end = batch.next_offset
    for epoch_text, offset in parse_lines(checkpoint, 2):
        note(process, Function.EPOCH, Type.OK, key, epoch=int(epoch_text), offset=int(offset))
    note(process, Function.END, Type.OK, key, offset=end, value=str(max(start, log_start_offset)))


def truncation_reason(why: str) -> str:
    """The logged reason of a truncation; BY_EPOCH for all those in which the leader ended an epoch earlier."""
    return BY_EPOCH if "the leader ended epoch" in why else why
