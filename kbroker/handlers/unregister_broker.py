"""UnregisterBroker: remove a broker that is gone permanently from the metadata."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.unregister_broker import UnregisterBrokerRequest

unregister_broker = forwards(UnregisterBrokerRequest, versions="0")
