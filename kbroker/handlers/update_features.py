"""UpdateFeatures: raise or lower the finalized levels of features."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.update_features import UpdateFeaturesRequest

update_features = forwards(UpdateFeaturesRequest, versions="0-2")
