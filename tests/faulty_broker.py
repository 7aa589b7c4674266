"""`kbroker serve` with a fault in one API: DescribeCluster raises an exception that holds the whole settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kbroker import cli, handlers
from kbroker.handlers import Handler
from wire.messages.describe_cluster import DescribeClusterRequest

API_KEY = 60


def main() -> int:
    """Serve with the fault."""
    discover = handlers.discover

    def with_a_fault() -> Mapping[int, Handler[Any]]:
        found = discover()
        right = found[API_KEY]

        async def fail(request: DescribeClusterRequest, broker: Any, context: Any) -> None:
            settings = broker.settings
            shown = settings, settings.layers, vars(settings.observability), vars(settings.tier)
            raise ZeroDivisionError(f"{request} {shown}")

        return {**found, API_KEY: right._replace(function=fail)}

    handlers.discover = with_a_fault  # type: ignore[assignment]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
