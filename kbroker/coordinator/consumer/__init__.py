"""Consumer groups of KIP-848, as decisions of a GroupShard.

The broker computes the assignment of the members (assignors), and each member moves towards it in its own time, one
heartbeat after another (reconciling). Members of the classic protocol may be in the same group (classic_members).

A decision reads the state and makes records. The records change the state only when they are in the log, through
`replaying`, which also loads a shard. So a decision whose append fails needs no undo.
"""
