"""Hands each new image to the parts of the broker that act on metadata.

The state of the cluster reaches the broker in one way: committed records -> `ImageBuilder` -> (Image, Delta) ->
listeners. The writer of the embedded controller publishes the image that its decisions were made on, so controller and
broker share one chain of images, and each record is replayed once.

A listener gets every image with its changes, in order. If it returns an awaitable, the publisher awaits it, so that a
published image is in effect: a new topic is served when its creator gets the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image

Listener = Callable[[Image, Delta], Awaitable[None] | None]


class MetadataPublisher:
    """The newest published image: every listener knows it, or is about to. One caller publishes at a time."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._listeners: list[Listener] = []

    def add_listener(self, listener: Listener) -> None:
        """Call the listener with every later image."""
        self._listeners.append(listener)

    async def publish(self, image: Image) -> None:
        """Publish the image after some committed records; returns when every listener has acted on it."""
        if image is self.image:
            return
        delta = Delta(self.image, image)
        self.image = image
        for listener in self._listeners:
            waiting = listener(image, delta)
            if waiting is not None:
                await waiting
