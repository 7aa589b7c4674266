"""Every client reads a large topic that is mostly in the tier, and each record is compared.

    python -m compat.torture.tier_clients                            1 GB, kbroker
    python -m compat.torture.tier_clients --megabytes 5000 --only kcat --only aiokafka
    python -m compat.torture.tier_clients --broker kafka             Apache Kafka 4.3.1, to verify the judge

The readers and the judge are those of compat/tiered/test_clients.py. Exit status 1 if a client saw anything different
from what was written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from compat.tiered.readers import READERS
from compat.tiered.site import Site
from compat.tiered.stock import Contents, Reader, Stock, check
from compat.torture.tier_reads import BROKER


def finding(stock: Stock, reader: Reader) -> str | None:
    """The first wrong record of a client, if any."""
    try:
        with closing(reader.read(stock)) as shown:
            check(stock.contents, shown, reader.expected)
    except AssertionError as error:
        return f"{reader.name}: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["kbroker", "kafka"], default="kbroker")
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--only", choices=[reader.name for reader in READERS], action="append")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    readers = [reader for reader in READERS if options.only is None or reader.name in options.only]
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tier-clients-") as scratch:
        site = Site.in_directory(Path(scratch), is_kafka=options.broker == "kafka", settings=BROKER)
        broker = site.broker
        broker.start()
        try:
            stock = Stock(site, "stock", Contents(options.megabytes, seed=options.seed))
            began = time.monotonic()
            stock.fill()
            print(f"filled in {time.monotonic() - began:.1f} s", flush=True)
            for reader in readers:
                began = time.monotonic()
                found = finding(stock, reader)
                print(
                    f"{reader.name}: {time.monotonic() - began:.1f} s{'' if found is None else ', a finding'}",
                    flush=True,
                )
                findings += [] if found is None else [found]
        finally:
            if broker.process is not None:
                broker.kill()
            log = broker.log_tail()
    for each in findings:
        print(each)
    if findings:
        print(log)
    print(f"{len(findings)} findings; {stock.contents.total} records, read completely by {len(readers)} clients")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
