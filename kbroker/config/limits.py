"""kbroker's own bounds, which have no counterpart in Kafka."""

from __future__ import annotations

from kbroker.config.settings import KB, MB, SECOND, Setting, setting, settings
from kbroker.config.values import Kind


@settings
class LimitSettings:
    """What a peer may cost this process, and what this process takes of the machine."""

    kbroker_max_decompressed_batch_bytes: int = setting(
        default=128 * MB, at_least=1, doc="A produced batch that unpacks to more than this is refused."
    )
    kbroker_max_request_bytes: int = setting(
        default=8 * MB,
        at_least=1,
        doc="The largest request of any API but Produce, whose limit is socket.request.max.bytes. A connection that"
        " announces a larger one is closed.",
    )
    kbroker_max_request_elements: int = setting(
        default=20_000,
        at_least=1_000,
        doc="How many elements the arrays of a request may have together; a Fetch of 10,000 topics has 20,000. A"
        " connection that sends more is closed.",
    )
    kbroker_max_reply_bytes: int = setting(
        default=32 * MB,
        at_least=MB,
        doc="The largest reply without its records. A request whose reply would be larger fails or has its connection"
        " closed.",
    )
    kbroker_metadata_cache_bytes: int = setting(
        default=16 * MB,
        at_least=0,
        doc="How much memory encoded topics take, which Metadata replies are put together from.",
    )
    kbroker_frame_grace_ms: int = setting(
        default=30 * SECOND,
        at_least=1,
        doc="A request that has begun may take so long to arrive, and longer only if it is large.",
    )
    kbroker_progress_bytes_per_second: int = setting(
        default=16 * KB,
        at_least=1,
        doc="A large request may take as long as this rate needs; a slower connection is closed.",
    )
    kbroker_send_grace_ms: int = setting(
        default=60 * SECOND,
        at_least=1,
        doc="A connection whose reader takes nothing of an answer for so long is closed.",
    )
    kbroker_memory_grace_ms: int = setting(
        default=5 * SECOND,
        at_least=1,
        doc="While requests wait for memory, one that has some must keep to the least rate within each such time.",
    )
    kbroker_queued_max_response_bytes: int = setting(
        default=64 * MB,
        at_least=1,
        kind=Kind.LONG,
        doc="The memory for answers that clients have not taken. Answers from the tier fill one half, and are then one "
        "batch each; beyond it all, the connections that have taken nothing for longest are closed.",
    )
    kbroker_max_unpacking_bytes: int = setting(
        default=64 * MB,
        at_least=1,
        kind=Kind.LONG,
        doc="The memory in which compressed batches are checked; further ones wait. A larger one is checked alone.",
    )
    kbroker_max_fetch_session_partitions: int = setting(
        default=100_000,
        at_least=0,
        doc="How many partitions all fetch sessions hold together; clients beyond them send full requests.",
    )
    kbroker_min_free_bytes: int = setting(
        default=32 * MB,
        at_least=0,
        kind=Kind.LONG,
        doc="With less than this free on the disk no records are taken, while reading, deleting and groups go on.",
    )
    kbroker_groups_min_free_bytes: int = setting(
        default=8 * MB,
        at_least=0,
        kind=Kind.LONG,
        doc="With less than this free on the disk groups can neither commit offsets nor rebalance.",
    )
    kbroker_metadata_reserve_bytes: int = setting(
        default=8 * MB,
        at_least=0,
        kind=Kind.LONG,
        doc="Disk space that is kept allocated for the metadata log, so that topics can be deleted on a full disk.",
    )
    kbroker_busy_poll_us: int = setting(
        default=150,
        at_least=0,
        at_most=10_000,
        doc="How long a connection whose requests come at once looks for the next one before it sleeps; 0: not at all.",
    )
    kbroker_max_producers_per_partition: int = setting(
        default=100_000,
        at_least=1,
        doc="How many idempotent producers a partition remembers; more push out those silent for longest.",
    )
    kbroker_max_open_files: int = setting(
        default=4096,
        at_least=16,
        doc="How many segment files are kept open; the least recently used is closed for another.",
    )


KNOWN: tuple[Setting, ...] = ()
