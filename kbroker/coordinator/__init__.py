"""Classic consumer groups: members, assignments and committed offsets.

`GroupShard` (shard.py) makes all decisions for the groups of one partition of `__consumer_offsets`, without I/O.
group_coordinator.py keeps one shard for each such partition that this broker leads, appends the records of its
decisions, and reloads the shard after a restart.
"""
