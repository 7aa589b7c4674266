"""What a broker says about the features of a cluster before it registers."""

from __future__ import annotations

import pytest

from kbroker.broker.lifecycle import refuse_unsupported
from wire.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("level", [21, 25, 30])
def test_supported_features_are_accepted(level: int) -> None:
    refuse_unsupported(
        {"metadata.version": level, "group.version": 1, "eligible.leader.replicas.version": 1, "kraft.version": 1}
    )


@pytest.mark.parametrize(
    ("finalized", "expected"),
    [
        (
            {"metadata.version": 30, "transaction.version": 2, "share.version": 1},
            (
                "share.version=1, transaction.version=2, which kbroker does not support: format the controllers of a "
                "new cluster with `kafka-storage.sh format --release-version 3.9`, or with `--feature share.version=0 "
                "--feature transaction.version=0`"
            ),
        ),
        ({"metadata.version": 20}, "metadata.version=20, which kbroker does not support: kbroker works with"),
        ({"metadata.version": 31}, "metadata.version=31"),
        ({"metadata.version": 21, "later.version": 1}, "--feature later.version=0"),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(finalized: dict[str, int], expected: str) -> None:
    with pytest.raises(KafkaError) as caught:
        refuse_unsupported(finalized)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert expected in caught.value.message
