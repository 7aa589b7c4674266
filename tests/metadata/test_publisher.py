"""Listeners get every image, in order, with its changes."""

from __future__ import annotations

from collections.abc import Awaitable

import trio
from trio.testing import MockClock

from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.publisher import MetadataPublisher
from wire.stored.metadata import FeatureLevelRecord


def with_level(image: Image, level: int) -> Image:
    record = FeatureLevelRecord(name="metadata.version", feature_level=level)
    return image.apply([record], offset=image.offset + 1, epoch=1)


async def test_a_published_image_is_in_effect(autojump_clock: MockClock) -> None:
    publisher = MetadataPublisher(Image())
    seen: list[int] = []

    async def act(image: Image) -> None:
        await trio.sleep(5)
        seen.append(image.metadata_version)

    def listen(image: Image, delta: Delta) -> Awaitable[None]:
        assert delta.after is image
        assert delta.before.metadata_version < image.metadata_version
        return act(image)

    publisher.add_listener(listen)
    for level in (20, 21):
        await publisher.publish(with_level(publisher.image, level))
        assert seen[-1] == publisher.image.metadata_version == level


async def test_an_unchanged_image_is_not_published() -> None:
    publisher = MetadataPublisher(Image())
    seen: list[Image] = []
    publisher.add_listener(lambda image, _delta: seen.append(image))
    await publisher.publish(publisher.image)
    assert not seen
