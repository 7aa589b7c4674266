import pytest

from kbroker.replication.throttle import ReplicationThrottle, is_throttled


def test_a_throttle_is_exceeded_above_its_rate_and_recovers() -> None:
    throttle = ReplicationThrottle()
    throttle.record(1 << 40, 0)
    assert not throttle.is_exceeded(0), "there is no limit by default"
    throttle = ReplicationThrottle()
    throttle.rate = 1_000
    throttle.record(10_000, 5_000)
    assert not throttle.is_exceeded(5_000), "a burst of ten seconds"
    throttle.record(1, 5_500)
    assert throttle.is_exceeded(5_500)
    assert throttle.wait_ms(5_500) > 0
    assert throttle.is_exceeded(15_000)
    assert not throttle.is_exceeded(15_001), "the rate has fallen"
    assert not throttle.is_exceeded(16_000), "the samples have expired"


def test_a_steady_rate_is_measured_over_the_windows() -> None:
    throttle = ReplicationThrottle()
    throttle.rate = 1_000
    for second in range(60):
        throttle.record(900, 1_000 * second)
        assert not throttle.is_exceeded(1_000 * second + 999)
    for second in range(60, 90):
        throttle.record(1_200, 1_000 * second)
    assert throttle.is_exceeded(90_000)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [(set(), False), ({"*"}, True), ({"1:2", "0:3"}, True), ({"0:2", "1:3"}, False)],
)
def test_a_list_names_replicas_or_all_of_them(replicas: set[str], expected: bool) -> None:
    assert is_throttled(frozenset(replicas), 0, 3) is expected
