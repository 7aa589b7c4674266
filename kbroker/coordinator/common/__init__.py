"""One runtime for every kind of coordinator, as in Kafka.

Some requests are coordinated by the leader of a partition of an internal topic: requests about groups by that of
`__consumer_offsets`. `CoordinatorRuntime` (runtime.py) keeps one shard for each such partition that this broker leads:
it loads the shard from the log, makes its decisions, appends their records, runs its timers, and unloads it. A shard
is a state machine without I/O; ports.py says what the runtime and a shard need from each other.

    ports.py     the Shard protocol, its decisions and the logs that the runtime writes to
    led.py       one partition that this broker leads, with its shard
    loading.py   replays a log into a shard (B)
    runtime.py   the runtime (A)
"""
