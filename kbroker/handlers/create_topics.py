"""CreateTopics: create topics, or only validate the request."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse


@handles(CreateTopicsRequest, versions="2-7")
async def create_topics(request: CreateTopicsRequest, broker: Broker, context: Context) -> CreateTopicsResponse:
    """Ask the controller; reply once this broker serves the new topics."""
    return await broker.controller.ask(request, CreateTopicsResponse)
