"""Generates docs/metrics.md from the declarations: `python -m requirements.metrics_page > docs/metrics.md`."""

from __future__ import annotations

import sys

from kbroker.web.exposition import BUCKETS, process_metrics
from kbroker.web.metrics import DECLARED

_HEAD = """\
# Pages about a running node

Written by `make docs`; do not edit.

`kbroker serve --http 127.0.0.1:9644` (or the setting `kbroker.http.listener`) serves these pages; by default they are
off. By default they need no password: bind them to a private address, or protect them with a token and TLS, see
[security.md](security.md#the-pages-over-http).

The `Host` header of a request must name this server, so that a foreign web page cannot read the pages through a
browser. Accepted are IP addresses, names without a dot, names in `kbroker.http.listener` or `advertised.listeners`, and
names in `kbroker.http.hosts`. A request for any other name gets status 421.

- `/` is a page for people: brokers and controllers, partitions with their offsets in both tiers (those in trouble
  first), topics, groups with lag, open transactions, the tier and its errors, the disk. It refreshes itself and only
  reads. A node shows what it knows: the offsets of its own replicas, and the groups and transactions that it
  coordinates; a controller shows the cluster without offsets.
- `/metrics` is for Prometheus, see below.
- `/health` (also `/health/ready`) is 200 when the node can serve clients. It is 503 while the node starts or stops,
  after its data directory has failed, and while groups or the tier's metadata are being loaded; a JSON body lists the
  problems. During recovery after an unclean shutdown, `recovery` in the body has the number of logs and MiB in total
  and recovered so far. `kbroker health` asks over Kafka's protocol instead, see [cli.md](cli.md#health).
- `/health/live` is 200 whenever the process responds, also while it starts.
- `/state` is JSON: each partition with its offsets, leader epoch and segments; for tiered topics also the state of the
  tier, the last error, and why each segment is still on the local disk; groups with members and lag; connections.
- `/state/view`, `/state/partition` and `/state/group` are the data of the page at `/`; they may change with
  each release.

`HEAD` works like `GET` without the body. A request must arrive within ten seconds, with a head of at most 16 KiB. A
client has ten seconds to read each 16 KiB, and a minute for a page. Beyond 32 connections, the server closes one of the
address with most connections: the one that has been idle longest; if all of them are reading pages, it closes the
oldest connection of the page with the most readers.

## Metrics

The names are Apache Kafka's in the usual format of Prometheus's JMX exporter. Metrics that Kafka does not have begin
with `kbroker_`, and group lag has the names of kafka_exporter. Counters start at zero with the process. Deleting a
topic or a group removes its series.

`sum()` over a metric counts nothing twice: each metric has series either for each topic or for all of them. Kafka's
exporter gives both one name; here the count of all topics begins with `kbroker_all_topics_`, and includes deleted
topics. Metrics of the whole cluster (`kafka_controller_*`) come only from the controller.

Times have quantiles as Kafka's exporter shows them, in the label `quantile`: `0.50`, `0.75`, `0.95`, `0.98`, `0.99`,
`0.999`. As in Kafka, the last five minutes have 99% of the weight, and without new values a quantile stays as it is. It
is NaN before the first value, and right to a factor of two, because values are counted in powers of two. Quantiles of
several brokers cannot be added or averaged. The buckets of the histograms, which begin with `kbroker_`, can:
`histogram_quantile(0.99, sum by (request, le) (rate(kbroker_network_requestmetrics_totaltimems_bucket[5m])))`.

[grafana-dashboard.json](grafana-dashboard.json) is a dashboard for Grafana, and
[prometheus-alerts.yml](prometheus-alerts.yml) has alert rules.

| name | sort | labels | |
|---|---|---|---|
"""

_PROCESS = """
Metrics of the process, from Prometheus's own library:

| name | sort | |
|---|---|---|
"""


def document() -> str:
    """The page as Markdown."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in DECLARED
    ]
    low, high = 2 ** BUCKETS[0] / 1000, 2 ** BUCKETS[-1] / 1000
    buckets = f"\nThe buckets of a histogram have the bounds {low} ms, twice as much, and so on up to {high} ms.\n"
    process = [f"| `{one.name}{_suffix(one.type)}` | {one.type} | {one.documentation} |" for one in process_metrics()]
    return _HEAD + "\n".join(rows) + "\n" + buckets + _PROCESS + "\n".join(process) + "\n"


def _suffix(kind: str) -> str:
    return "_total" if kind == "counter" else ""


if __name__ == "__main__":
    sys.stdout.write(document())
