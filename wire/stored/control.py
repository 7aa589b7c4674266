"""Values of control records. Their keys are two int16s: version 0 and the type, a ControlRecordType.

A value starts with its version (int16), which is a field of the KRaft records and a prefix of an EndTxnMarker.
"""

from wire.schema import field, stored, struct
from wire.types import ZERO_UUID, int16, int32, int64, string, uint16, uuid


@stored(versions="0", flexible="none")
class EndTxnMarker:
    coordinator_epoch: int32


@struct
class LeaderChangeVoter:
    voter_id: int32
    voter_directory_id: uuid = field(versions="1+", default=ZERO_UUID)


@stored(versions="0-1", flexible="0+")
class LeaderChangeMessage:
    version: int16
    leader_id: int32
    voters: list[LeaderChangeVoter]
    granting_voters: list[LeaderChangeVoter]


@stored(versions="0", flexible="0+")
class SnapshotHeaderRecord:
    version: int16
    last_contained_log_timestamp: int64


@stored(versions="0", flexible="0+")
class SnapshotFooterRecord:
    version: int16


@stored(versions="0", flexible="0+")
class KRaftVersionRecord:
    version: int16
    kraft_version: int16


@struct
class Endpoint:
    name: string
    host: string
    port: uint16


@struct
class KRaftVersionFeature:
    min_supported_version: int16
    max_supported_version: int16


@struct
class VotersVoter:
    voter_id: int32
    voter_directory_id: uuid
    endpoints: list[Endpoint]
    kraft_version_feature: KRaftVersionFeature


@stored(versions="0", flexible="0+")
class VotersRecord:
    version: int16
    voters: list[VotersVoter]
