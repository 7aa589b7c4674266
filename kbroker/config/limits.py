"""kbroker's own limits. Kafka does not have these settings."""

from __future__ import annotations

from kbroker.config.settings import DAY, KB, MB, SECOND, Long, setting, settings


@settings
class LimitSettings:
    """Bounds on what one peer can cost the broker, and on the broker's use of memory, disk and files."""

    kbroker_max_decompressed_batch_bytes: int = setting(
        default=128 * MB, at_least=1, doc="Largest produced batch after decompression. The broker refuses larger ones."
    )
    kbroker_max_request_bytes: int = setting(
        default=8 * MB,
        at_least=1,
        doc="Largest request of any API except Produce, whose limit is socket.request.max.bytes. The broker closes a"
        " connection that announces a larger one.",
    )
    kbroker_max_request_elements: int = setting(
        default=20_000,
        at_least=1_000,
        doc="Maximum number of array elements in one request, over all of its arrays. A Fetch of 10,000 topics has"
        " 20,000. The broker closes a connection that sends more.",
    )
    kbroker_max_reply_bytes: int = setting(
        default=32 * MB,
        at_least=MB,
        doc="Largest response, not counting its records. If a response would be larger, the request fails or the broker"
        " closes the connection.",
    )
    kbroker_metadata_cache_bytes: int = setting(
        default=16 * MB,
        at_least=0,
        doc="Memory for the cache of encoded topics, from which the broker builds Metadata responses.",
    )
    kbroker_frame_grace_ms: int = setting(
        default=30 * SECOND,
        at_least=1,
        doc="Time in which a request must arrive completely, counted from its first byte. Large requests get more time;"
        " see kbroker.progress.bytes.per.second.",
    )
    kbroker_progress_bytes_per_second: int = setting(
        default=16 * KB,
        at_least=1,
        doc="Minimum rate at which a large request must arrive. The broker closes a slower connection.",
    )
    kbroker_send_grace_ms: int = setting(
        default=60 * SECOND,
        at_least=1,
        doc="The broker closes a connection whose client reads nothing of a response for this long.",
    )
    kbroker_authentication_timeout_ms: int = setting(
        default=10 * SECOND,
        at_least=1,
        doc="Time in which a connection must complete its TLS handshake and its SASL authentication.",
    )
    kbroker_max_unauthenticated_connections: int = setting(
        default=1_000,
        at_least=1,
        doc="Maximum number of connections that have not completed their TLS handshake and SASL authentication. To "
        "admit another one, the broker closes the oldest one of the address that has most of them. If "
        "inter.broker.listener.name is not the only listener, its connections are counted apart.",
    )
    kbroker_max_login_bytes: Long = setting(
        default=16 * MB,
        at_least=MB,
        doc="Memory for requests of connections that have not completed their SASL authentication. When it is full, the"
        " broker closes the oldest of them. Connections that have logged in do not share it.",
    )
    kbroker_max_tls_handshakes: int = setting(
        default=2,
        at_least=1,
        at_most=32,
        doc="Maximum number of TLS handshakes that the broker computes at once on all listeners together, each in a "
        "thread. Further ones wait; a handshake that waits for its client does not count.",
    )
    kbroker_tls_reload_interval_ms: Long = setting(
        default=10 * SECOND,
        at_least=100,
        doc="How often the broker looks whether key stores and trust stores have changed. It also looks on SIGHUP and "
        "when the dynamic settings of a broker change.",
    )
    kbroker_memory_grace_ms: int = setting(
        default=5 * SECOND,
        at_least=1,
        doc="While requests wait for memory, each request that holds memory must keep the minimum rate in every "
        "interval of this length.",
    )
    kbroker_queued_max_response_bytes: Long = setting(
        default=64 * MB,
        at_least=1,
        doc="Memory for responses that clients have not read yet. Responses from the tier may use half of it; when "
        "that half is full, each of them has one batch. When all of it is full, the broker closes the connections that "
        "have read nothing for the longest time.",
    )
    kbroker_max_unpacking_bytes: Long = setting(
        default=64 * MB,
        at_least=1,
        doc="Memory in which the broker decompresses produced batches to check them. Further batches wait. A batch "
        "that needs more is checked alone.",
    )
    kbroker_max_fetch_session_partitions: int = setting(
        default=100_000,
        at_least=0,
        doc="Maximum number of partitions in all fetch sessions. Clients without a session send full requests.",
    )
    kbroker_min_free_bytes: Long = setting(
        default=32 * MB,
        at_least=0,
        doc="If less than this is free on the disk, the broker refuses records. Reads, deletions and groups go on.",
    )
    kbroker_groups_min_free_bytes: Long = setting(
        default=8 * MB,
        at_least=0,
        doc="If less than this is free on the disk, groups can neither commit offsets nor rebalance.",
    )
    kbroker_metadata_reserve_bytes: Long = setting(
        default=8 * MB,
        at_least=0,
        doc="Disk space that the broker reserves for the metadata log, so that topics can be deleted on a full disk.",
    )
    kbroker_busy_poll_us: int = setting(
        default=150,
        at_least=0,
        at_most=10_000,
        doc="How long the broker polls a connection for its next request before it sleeps, if the previous requests "
        "came without pauses. 0 disables polling.",
    )
    kbroker_max_producers_per_partition: int = setting(
        default=100_000,
        at_least=1,
        doc="Maximum number of idempotent producers that a partition remembers. The partition evicts the longest idle.",
    )
    kbroker_retention_lease_max_ms: int = setting(
        default=DAY,
        at_least=0,
        doc="Time after its creation for which a lease can hold records of a topic against retention, however often it "
        "is renewed. See `kbroker tier lease`.",
    )
    kbroker_max_open_files: int = setting(
        default=4096,
        at_least=16,
        doc="Maximum number of open segment files. The broker closes the least recently used file to open another.",
    )
