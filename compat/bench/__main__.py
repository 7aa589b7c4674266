"""Measure kbroker and Apache Kafka 4.3.1 in turn, print the table, write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from compat.bench.cluster_rows import cluster
from compat.bench.compaction_rows import compaction
from compat.bench.group_rows import many_groups, ten_thousand
from compat.bench.minio_rows import minio
from compat.bench.recovery_rows import recovery
from compat.bench.report import markdown, measured, medians, plain, rounds_of, table
from compat.bench.rivals import rivals
from compat.bench.rows import ROUND, many_partitions, start_and_memory, warm_up
from compat.bench.sizes import FULL, QUICK, Figures
from compat.bench.spark_rows import SPARK_MEASURES
from compat.bench.tier_rows import remote_segments, tier
from compat.bench.transaction_rows import many_producers, transactions_on_three
from kbroker import build

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
OUTSIDE_ROUNDS = {
    "start": start_and_memory,
    "partitions": many_partitions,
    "recovery": recovery,
    "compaction": compaction,
    "many-groups": many_groups,
    "ten-thousand": ten_thousand,
    "tier": tier,
    "remote-segments": remote_segments,
    "minio": minio,
    "cluster": cluster,
    "transactions-on-three": transactions_on_three,
    "many-producers": many_producers,
    **SPARK_MEASURES,
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m compat.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each figure is taken (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: proves the program, not the figures")
    parser.add_argument("--brokers", default="kafka,kbroker,pure", help="which to measure (default all three)")
    parser.add_argument("--only", default="", help=f"some of: {','.join([*OUTSIDE_ROUNDS, *ROUND])}")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=None, help="write docs/benchmarks.md")
    return parser.parse_args()


def run(options: argparse.Namespace, directory: Path) -> dict[str, list[Figures]]:
    """All figures by broker: a list of rounds."""
    which = set(options.brokers.split(","))
    if build() != "compiled":
        which.discard("pure")  # it would be measured twice
    only = set(options.only.split(",")) - {""} or {*OUTSIDE_ROUNDS, *ROUND}
    size = QUICK if options.quick else FULL
    found: dict[str, list[Figures]] = {}

    def note(name: str, figures: Figures) -> None:
        if name == "pure":
            found.setdefault("kbroker", []).append({f"{key}-pure": value for key, value in figures.items()})
        else:
            found.setdefault("kbroker" if name == "kbroker" else "kafka", []).append(figures)
        reported = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
        print(f"  {name}: {reported}", file=sys.stderr, flush=True)

    for key, measure in OUTSIDE_ROUNDS.items():
        if key in only:
            brokers = which if key == "start" else which - {"pure"}
            for name, rounds in measure(directory / key, brokers, rounds=options.rounds).items():
                for figures in rounds:
                    note(name, figures)
            shutil.rmtree(directory / key, ignore_errors=True)
    if not only & ROUND.keys():
        return found
    with rivals(directory / "rounds", which=which) as started:
        for rival in started:
            rival.timed_start()
            warm_up(rival, size)
        for number in range(options.rounds):
            for key in (key for key in ROUND if key in only):
                # Each broker is first in half of the rounds, so that drift of the machine favours neither.
                for rival in started if number % 2 == 0 else reversed(started):
                    note(rival.name, ROUND[key](rival, size))
        for rival in started:
            print(f"  {rival.name}: {rival.resident_mib():.0f} MiB resident after the load", file=sys.stderr)
    return found


def main() -> int:
    """Measure, print, write."""
    options = arguments()
    directory = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        found = run(options, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    theirs, ours = medians(found.get("kafka", [])), medians(found.get("kbroker", []))
    lines = table(theirs, ours)
    print(plain(measured(lines)))
    whole = not options.quick and not options.only and {"kafka", "kbroker"} == found.keys()
    if options.write or (options.write is None and whole):
        spread = {
            side: {
                key: (min(values), max(values))
                for key in {key for figures in found.get(side, []) for key in figures}
                for values in [[figures[key] for figures in found[side] if key in figures]]
            }
            for side in ("kafka", "kbroker")
        }
        former = PAGE.read_text()
        PAGE.write_text(markdown(lines, spread, rounds_of(former) if options.only else options.rounds, former=former))
        print(f"written: {PAGE.relative_to(PAGE.parents[1])}", file=sys.stderr)
    return 0 if all(line[-1] != "NO" for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
