"""docs/metrics.md, from the declarations: `python -m kbroker.web.document > docs/metrics.md`."""

from __future__ import annotations

import sys

from kbroker.web.exposition import BUCKETS, process_metrics
from kbroker.web.metrics import DECLARED

_HEAD = """\
# Pages about a running node

Written by `python -m kbroker.web.document`; do not edit.

`kbroker serve --http 127.0.0.1:9644` (or the setting `kbroker.http.listener`) serves these pages. Without it there are
none. They have no authentication: bind them to a private address.

A request must name this server in its `Host` header, so that no web page can have a browser read them: by an IP
address, a name without a dot, a name in `kbroker.http.listener` or `advertised.listeners`, or one in
`kbroker.http.hosts`. A request for any other name gets status 421.

- `/metrics` is for Prometheus, see below.
- `/health` (also `/health/ready`) is 200 when clients can be sent here. It is 503 while the node starts or stops, after
  its data directory failed, and while groups are read in; a JSON body says what is wrong. During recovery after an
  unclean shutdown `recovery` in the body says how many logs and MiB there are, and how many are recovered.
- `/health/live` is 200 when the node answers at all, also while it starts.
- `/state` is JSON: each partition with its offsets, leader epoch and segments, and those of a tiered topic with what is
  in the tier, the last error, and what keeps each segment on the local disk; groups with members and lag; connections.

A `HEAD` gets what a `GET` gets, without the body. A request has ten seconds to arrive, and at most 16 KiB of head. A
reader has ten seconds for each 16 KiB and a minute for a page. Of more than 32 connections, the one that has waited
longest makes room; if all are being answered, the oldest reader of the page that has the most readers.

## Metrics

The names are Apache Kafka's as the usual rules of Prometheus's JMX exporter write them; what Kafka does not have begins
with `kbroker_`, and group lag has the names of kafka_exporter. Counters begin at zero with the process. The series of a
topic go with the topic, those of a group with the group.

| name | sort | labels | |
|---|---|---|---|
"""

_PROCESS = """
Of the process, by Prometheus's own library:

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
    buckets = f"\nThe bounds of a histogram's buckets are {low} ms, twice as much, and so on to {high} ms.\n"
    process = [f"| `{one.name}{_suffix(one.type)}` | {one.type} | {one.documentation} |" for one in process_metrics()]
    return _HEAD + "\n".join(rows) + "\n" + buckets + _PROCESS + "\n".join(process) + "\n"


def _suffix(kind: str) -> str:
    return "_total" if kind == "counter" else ""


if __name__ == "__main__":
    sys.stdout.write(document())
