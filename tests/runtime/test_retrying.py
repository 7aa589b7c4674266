from __future__ import annotations

from kbroker.runtime.retrying import BackOff


def test_delays_double_up_to_the_limit() -> None:
    back_off = BackOff(500)
    assert [back_off.next_ms(3_000) for _ in range(5)] == [500, 1_000, 2_000, 3_000, 3_000]


def test_a_success_resets_the_delay() -> None:
    back_off = BackOff(500)
    assert [back_off.next_ms(3_000) for _ in range(3)][-1] == 2_000
    back_off.reset()
    assert back_off.next_ms(3_000) == 500


def test_the_limit_may_change() -> None:
    back_off = BackOff(500)
    assert [back_off.next_ms(limit_ms) for limit_ms in (100, 100, 4_000, 4_000, 100)] == [100, 100, 500, 1_000, 100]
