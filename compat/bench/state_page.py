"""Measure the state page with ten thousand partitions: `python -m compat.bench.state_page`, on a quiet machine.

Prints the time that one view takes the broker, and the latency of Produce without a reader of the page and with one
that refreshes it as a browser does.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request

import kbroker.testing
from kbroker.client.blocking import Connection
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

PARTITIONS, TOPICS = 10_000, 40
PHASES, PHASE_S = 10, 3
PAUSE_S = 0.001
REFRESH_S = 2


def main() -> None:
    """Measure and print."""
    with kbroker.testing.broker() as server:
        for number in range(TOPICS):
            server.create_topic(f"topic-{number}", partitions=PARTITIONS // TOPICS)
        url = f"http://{server.nodes[0].http}/state/view"
        views: list[float] = []
        is_open, is_over = threading.Event(), threading.Event()

        def read() -> None:
            while not is_over.is_set():
                pause_s: float = REFRESH_S
                if is_open.is_set():
                    with urllib.request.urlopen(url, timeout=30) as answer:
                        views.append(json.load(answer)["made_in_ms"])
                    pause_s = min(5, max(REFRESH_S, views[-1] / 10))
                is_over.wait(pause_s)

        reader = threading.Thread(target=read)
        reader.start()
        latencies: dict[bool, list[float]] = {False: [], True: []}
        try:
            with Connection(server.host, server.port, client_id="bench") as connection:
                for phase in range(PHASES):
                    (is_open.set if phase % 2 else is_open.clear)()
                    latencies[bool(phase % 2)] += _produce(connection)
        finally:
            is_over.set()
            reader.join()
    print(f"a view of {PARTITIONS} partitions: {sorted(views)[len(views) // 2]:.1f} ms (median of {len(views)})")
    for with_page, found in latencies.items():
        found.sort()
        p50, p99 = (found[int(len(found) * share)] * 1_000 for share in (0.5, 0.99))
        print(
            f"Produce {'with' if with_page else 'without'} the page: p50 {p50:.2f} ms, p99 {p99:.2f} ms ({len(found)})"
        )


def _produce(connection: Connection) -> list[float]:
    batch = build_batch([Record(0, 1_000, None, b"x" * 100)])
    data = [TopicProduceData(name="topic-0", partition_data=[PartitionProduceData(index=0, records=batch)])]
    request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=data)
    found, end = [], time.monotonic() + PHASE_S
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.ask(request, version=7)
        found.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    return found


if __name__ == "__main__":
    main()
