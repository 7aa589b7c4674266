"""UpdateFeatures: raise or lower the finalized levels of features."""

from __future__ import annotations

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


@handles(UpdateFeaturesRequest, versions="0-2")
async def update_features(request: UpdateFeaturesRequest, broker: Broker, context: Context) -> UpdateFeaturesResponse:
    """Ask the controller."""
    return await broker.controller.ask(request, UpdateFeaturesResponse)
