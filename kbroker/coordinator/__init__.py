"""Classic consumer groups: who is a member, who reads what, and which offsets were committed.

`GroupShard` (shard.py) decides, without I/O, for all groups of one partition of `__consumer_offsets`; tasks.py keeps
one for each such partition that this broker leads, appends what it decides and loads it again after a restart.
"""
