"""Classic consumer groups: members, assignments and committed offsets.

`GroupShard` (shard.py) makes all decisions for the groups of one partition of `__consumer_offsets`, without I/O.
`GroupCoordinator` (group_coordinator.py) keeps the shards of this broker on the coordinator runtime (common/), which
appends the records of their decisions and loads them after a restart.
"""
