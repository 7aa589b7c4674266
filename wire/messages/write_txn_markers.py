"""WriteTxnMarkers: the transaction coordinator asks brokers to append markers to partitions."""

from wire.schema import field, message, struct
from wire.types import boolean, int8, int16, int32, int64, string


@struct
class WritableTxnMarkerTopic:
    name: string
    partition_indexes: list[int32]


@struct
class WritableTxnMarker:
    producer_id: int64
    producer_epoch: int16
    transaction_result: boolean
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: int32
    transaction_version: int8 = field(versions="2+", default=0, ignorable=True)


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker]


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int32
    error_code: int16 = 0


@struct
class WritableTxnMarkerTopicResult:
    name: string
    partitions: list[WritableTxnMarkerPartitionResult]


@struct
class WritableTxnMarkerResult:
    producer_id: int64
    topics: list[WritableTxnMarkerTopicResult]


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult]
