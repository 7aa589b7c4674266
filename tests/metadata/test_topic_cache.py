from __future__ import annotations

from functools import partial

from kbroker.metadata.answers import UNASKED_OPERATIONS, known_topic
from kbroker.metadata.image import Image
from kbroker.metadata.topic_cache import TopicCache
from tests.metadata.test_answers import ALPHA, IMAGE, broker, partition
from wire.codec import encode_element
from wire.messages.metadata import MetadataResponse
from wire.stored import metadata as stored

VERSIONS = range(14)


def ask(cache: TopicCache, image: Image, *, version: int = 12, listener: str = "PLAINTEXT") -> bytes:
    topic = image.topics_by_id[ALPHA]
    return cache.encoded(image, topic, version=version, listener=listener, operations=UNASKED_OPERATIONS)


def fresh(image: Image, version: int = 12) -> bytes:
    made = known_topic(image, image.topics_by_id[ALPHA], version, "PLAINTEXT", operations=UNASKED_OPERATIONS)
    return encode_element(made, MetadataResponse, version)


def test_a_topic_is_encoded_once_for_each_version_and_listener() -> None:
    cache = TopicCache(1 << 20)
    for version in VERSIONS:
        first = ask(cache, IMAGE, version=version)
        assert first == fresh(IMAGE, version)
        assert ask(cache, IMAGE, version=version) is first
    assert ask(cache, IMAGE, listener="OTHER") != ask(cache, IMAGE)


def test_a_changed_topic_or_broker_is_encoded_again() -> None:
    cache = TopicCache(1 << 20)
    then = partial(IMAGE.apply, offset=100, epoch=1)
    first = ask(cache, IMAGE)
    elsewhere = then([stored.TopicRecord(name="new", topic_id=ALPHA.__class__(int=9))])
    assert ask(cache, elsewhere) is first
    for changed in (then([partition(ALPHA, 2, [1], 1)]), then([broker(1, listener="OTHER")])):
        assert ask(cache, changed) == fresh(changed) != first


def test_the_cache_never_holds_more_than_its_bound() -> None:
    cache = TopicCache(1_000)
    for version in VERSIONS:
        ask(cache, IMAGE, version=version)
        assert cache._bytes <= 1_000
    assert ask(TopicCache(0), IMAGE) == fresh(IMAGE)
