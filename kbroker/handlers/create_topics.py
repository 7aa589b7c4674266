"""CreateTopics: create topics, or only validate the request."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.create_topics import CreateTopicsRequest

create_topics = forwards(CreateTopicsRequest, versions="2-7")
