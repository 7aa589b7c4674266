"""TransactionalMessageCopier with random aborts on a cluster, while it and the brokers are killed.

    python -m compat.torture.copier --records 100000 --kills 3 --seed 1

One copier for each partition copies it in transactions of 200 records. Each of them is killed with `kill -9` at random
and started again, and so is one broker after the other. At the end a read_committed consumer must find the records of
each partition once, in order. This is the test of Kafka's own that ducktape runs (transactions_test.py).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.cluster import KAFKA, KBROKER
from compat.features import raise_features
from compat.kafka_tools.copier import Copier
from compat.keyed import PATIENCE_S, read, write
from compat.sites import Site, brokers
from compat.waiting import until

PARTITIONS = 2
TRANSACTION_SIZE = 200
# A copier that is started again asks for its position first, and gives up if the transaction of the killed one is still
# open a minute later.
TRANSACTION_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class Result:
    """The findings."""

    records: int
    missing: int
    duplicates: int
    disordered: int
    copier_kills: int
    broker_kills: int
    seconds: float

    @property
    def good(self) -> bool:
        """Each record once, in order."""
        return self.missing == self.duplicates == self.disordered == 0


class Copying:
    """A copier for a partition, which is started again after a kill until it has copied everything."""

    def __init__(self, servers: str, partition: int) -> None:
        self._servers, self._partition = servers, partition
        self._before = 0
        self.copier = self._started()

    def _started(self) -> Copier:
        name = f"copier-{self._partition}"
        return Copier(
            self._servers, "input", "output", partition=self._partition, transactional_id=name, group=name,
            transaction_size=TRANSACTION_SIZE, timeout_ms=TRANSACTION_TIMEOUT_MS,
        )  # fmt: skip

    def copied(self) -> int:
        """The records that it has reported as copied."""
        return self._before + self.copier.copied()

    def kill(self) -> None:
        """`kill -9`, and start it again."""
        self.copier.kill()
        self._before += self.copier.copied()
        self.copier = self._started()

    def has_ended(self) -> bool:
        """Whether it has copied everything. Errors: AssertionError if it has failed."""
        status = self.copier.process.poll()
        assert status in (None, 0), f"the copier ended with {status}: {self.copier.complaints()}"
        return status == 0


def run(site: Site, *, records: int, kills: int, seed: int, transaction_version: int = 2) -> Result:
    """Run on brokers that are not started yet."""
    began, draws = time.perf_counter(), random.Random(seed)
    site.start()
    servers = site.bootstrap_servers
    raise_features(servers, {"transaction.version": transaction_version} if transaction_version else {})
    replicas = min(3, servers.count(",") + 1)
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(name, PARTITIONS, replicas) for name in ("input", "output")]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_S)
    sent = [[b"%d" % number for number in range(index, records, PARTITIONS)] for index in range(PARTITIONS)]
    write(servers, "input", sent)
    copying = [Copying(servers, index) for index in range(PARTITIONS)]

    def reached(count: int) -> bool:
        return sum(each.copied() for each in copying) >= count or all(each.has_ended() for each in copying)

    try:
        moments = sorted(draws.randrange(records * 8 // 10) for _ in range(2 * kills))
        for number, moment in enumerate(moments):
            until(lambda: reached(moment), patience_s=PATIENCE_S)  # noqa: B023  (called here)
            if number % 2:
                site.kill_one()
            else:
                copying[draws.randrange(PARTITIONS)].kill()
        until(lambda: all(each.has_ended() for each in copying), patience_s=2 * PATIENCE_S)
    finally:
        for each in copying:
            each.copier.kill()
    found = [[value for _, value in part] for part in read(servers, "output", PARTITIONS)]
    return Result(
        records=records,
        missing=sum(len(set(part) - set(got)) for part, got in zip(sent, found, strict=True)),
        duplicates=sum(len(got) - len(set(got)) for got in found),
        disordered=sum(part != got for part, got in zip(sent, found, strict=True)),
        copier_kills=kills,
        broker_kills=kills,
        seconds=time.perf_counter() - began,
    )


def main() -> int:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m compat.torture.copier", description=__doc__.partition("\n")[0])
    parser.add_argument("--broker", choices=[KBROKER, KAFKA], default=KBROKER)
    parser.add_argument("--brokers", type=int, default=3, help="1, or at least 3 for a cluster")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=3, help="of copiers, and as many of brokers")
    parser.add_argument("--transaction-version", type=int, choices=[0, 1, 2], default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kbroker-copier-"))
    with brokers(options.broker, options.brokers, directory) as site:
        result = run(
            site, records=options.records, kills=options.kills, seed=options.seed,
            transaction_version=options.transaction_version,
        )  # fmt: skip
    shutil.rmtree(directory, ignore_errors=True)
    print(result)
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
