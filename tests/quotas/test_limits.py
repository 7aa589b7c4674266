"""Which quota applies to whom, and the bounds of what is remembered about clients."""

from __future__ import annotations

import pytest

from kbroker.metadata.image import QuotaEntity
from kbroker.quotas.limits import MAX_TAG_LENGTH, PRODUCER_BYTE_RATE, QuotaLimits, Tag, canonical_address
from kbroker.quotas.rates import SampledRate, Windows
from kbroker.quotas.tracking import IDLE_MS, ClientUsage, UsageTable

KEY = PRODUCER_BYTE_RATE
IN_ORDER: tuple[tuple[QuotaEntity, Tag], ...] = (
    ((("client-id", "c"), ("user", "u")), ("u", "c")),
    ((("client-id", None), ("user", "u")), ("u", "c")),
    ((("user", "u"),), ("u", "")),
    ((("client-id", "c"), ("user", None)), ("u", "c")),
    ((("client-id", None), ("user", None)), ("u", "c")),
    ((("user", None),), ("u", "")),
    ((("client-id", "c"),), ("", "c")),
    ((("client-id", None),), ("", "c")),
)
"""Kafka's order of precedence, with the tag under which each is measured."""


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_most_specific_entity_has_the_quota(first: int) -> None:
    limits = QuotaLimits()
    limits.update({entity: {KEY: float(at)} for at, (entity, _) in enumerate(IN_ORDER) if at >= first})
    assert limits.of(KEY, "u", "c") == (IN_ORDER[first][1], first)


def test_other_quotas_of_an_entity_do_not_count() -> None:
    limits = QuotaLimits()
    limits.update({(("user", "u"),): {"consumer_byte_rate": 1.0}, (("client-id", "c"),): {KEY: 2.0}})
    assert limits.of(KEY, "u", "c") == (("", "c"), 2.0)
    assert limits.of("request_percentage", "u", "c") is None


def test_a_client_without_an_id_has_only_the_quotas_of_users() -> None:
    limits = QuotaLimits()
    limits.update({(("client-id", None),): {KEY: 1.0}, (("client-id", None), ("user", "u")): {KEY: 1.0}})
    assert limits.of(KEY, "u", "") is None
    limits.update({(("user", None),): {KEY: 3.0}})
    assert limits.of(KEY, "u", "") == (("u", ""), 3.0)


def test_changes_and_removals_take_effect() -> None:
    limits, entity = QuotaLimits(), (("user", "u"),)
    limits.update({entity: {KEY: 1.0}, (("ip", "::1"),): {"connection_creation_rate": 5.0}})
    limits.update({entity: {KEY: 2.0}, (("ip", None),): {"connection_creation_rate": 6.0}})
    assert limits.of(KEY, "u", "c") == (("u", ""), 2.0)
    assert limits.of_address("::1") == 6.0
    limits.update({})
    assert (limits.limits(KEY), limits.limits_addresses, limits.of_address("::1")) == (False, False, None)


def test_entities_of_unknown_kinds_are_ignored() -> None:
    limits = QuotaLimits()
    limits.update({(("group", "g"),): {KEY: 1.0}, (("ip", "nowhere"),): {"connection_creation_rate": 1.0}})
    assert (limits.limits(KEY), limits.limits_addresses) == (False, False)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0::1", "::1"),
        ("fe80::1%4", "fe80::1"),
        ("localhost", "127.0.0.1"),
        ("x", None),
    ],
)
def test_addresses_have_one_spelling(text: str, address: str | None) -> None:
    assert canonical_address(text) == address


def usage(quotas: dict[QuotaEntity, dict[str, float]], *, max_tags: int) -> ClientUsage[SampledRate]:
    limits = QuotaLimits()
    limits.update(quotas)
    return ClientUsage(KEY, limits, SampledRate, Windows(), max_tags=max_tags)


def test_w13_ever_new_client_ids_use_bounded_memory() -> None:
    measured = usage({(("client-id", None),): {KEY: 1.0}}, max_tags=10)
    for number in range(1_000):
        assert measured.of("u", f"{number}" + "x" * 30_000, now_ms=number) is not None
    assert len(measured) == 10
    assert max(len(client_id) for (_, client_id), _ in measured.items()) == MAX_TAG_LENGTH


def test_the_longest_idle_client_is_forgotten_first() -> None:
    table: UsageTable[str, SampledRate] = UsageTable(SampledRate, Windows(), max_tags=2)
    for key in ("a", "b", "a", "c"):
        table.use(key, 1.0, 0)
    assert [key for key, _ in table.items()] == ["a", "c"]
    table.use("c", 1.0, 1)
    table.use("d", 1.0, IDLE_MS + 1)
    assert [key for key, _ in table.items()] == ["c", "d"]


def test_clients_of_one_user_share_what_its_quota_measures() -> None:
    measured = usage({(("user", "u"),): {KEY: 1.0}}, max_tags=10)
    assert measured.of("u", "a", 0) is measured.of("u", "b", 0)
    assert measured.of("other", "a", 0) is None
