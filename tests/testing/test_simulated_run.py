"""The judgement of a simulated run, apart from the checkers of histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.testing.checkers import Finding
from kbroker.testing.cluster import memory_cluster
from kbroker.testing.determinism import run
from kbroker.testing.drawing import drawn_plan
from kbroker.testing.plan import Act
from kbroker.testing.simulated_run import unexpected


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (Act("disk-error", 0, 0, (2,)), []),
        (Act("disk-error", 0, 0, (1,)), ["node-failed"]),
        (Act("power-loss", 0, 0, (2,)), ["node-failed"]),
    ],
    ids=str,
)
def test_a_disk_error_excuses_its_node_and_no_other(act: Act, found: list[str]) -> None:
    """Broker 2 ends by itself."""

    async def main() -> list[Finding]:
        async with memory_cluster(2, asserts=False) as cluster:
            cluster.nodes[2].disk.fail(times=-1)
            await cluster.create_topic("t", replicas=2)
            await cluster.until(lambda: not cluster.nodes[2].is_running)
            return unexpected(replace(drawn_plan(0), acts=(act,)), cluster)

    assert [one.kind for one in run(main, seed=1)] == found
