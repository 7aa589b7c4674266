"""DescribeLogDirs: log directories with their sizes and replicas; topics None means all."""

from wire.schema import field, message, struct
from wire.types import boolean, int16, int32, int64, string


@struct
class DescribableLogDirTopic:
    topic: string
    partitions: list[int32]


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None


@struct
class DescribeLogDirsPartition:
    partition_index: int32
    partition_size: int64
    offset_lag: int64
    is_future_key: boolean


@struct
class DescribeLogDirsTopic:
    name: string
    partitions: list[DescribeLogDirsPartition]


@struct
class DescribeLogDirsResult:
    error_code: int16 = 0
    log_dir: string
    topics: list[DescribeLogDirsTopic]
    total_bytes: int64 = field(versions="4+", default=-1, ignorable=True)
    usable_bytes: int64 = field(versions="4+", default=-1, ignorable=True)
    is_cordoned: boolean = field(versions="5+", default=False, ignorable=True)


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    throttle_time_ms: int32 = 0
    error_code: int16 = field(versions="3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult]
