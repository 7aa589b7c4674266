"""What a broker says about the features of a cluster before it registers."""

from __future__ import annotations

import pytest

from kbroker.broker.lifecycle import refuse_unsupported
from wire.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("level", [21, 25, 30])
def test_supported_features_are_accepted(level: int) -> None:
    refuse_unsupported({"metadata.version": level, "eligible.leader.replicas.version": 1, "kraft.version": 1})


def test_the_features_of_a_new_kafka_cluster_are_accepted() -> None:
    newest = {"transaction.version": 2, "group.version": 1, "share.version": 1, "streams.version": 1}
    refuse_unsupported({"metadata.version": 30, "eligible.leader.replicas.version": 1, **newest})


@pytest.mark.parametrize(
    ("finalized", "expected"),
    [
        (
            {"metadata.version": 30, "share.version": 2, "later.version": 1, "transaction.version": 2},
            (
                "finalized later.version=1, share.version=2, which kbroker does not support: format a new cluster with "
                "`--feature later.version=0 --feature share.version=1`, or lower this one with"
            ),
        ),
        ({"metadata.version": 20}, "metadata.version=20, which kbroker does not support: raise metadata.version to"),
        ({"metadata.version": 31}, "downgrade --feature metadata.version=30"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(finalized: dict[str, int], expected: str) -> None:
    with pytest.raises(KafkaError) as caught:
        refuse_unsupported(finalized)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert expected in caught.value.message
