"""Record a history of real clients on any broker, and judge it.

    python -m compat.torture.record_history --bootstrap-server 127.0.0.1:9092 --out history.jsonl
    python -m compat.torture.record_history --bootstrap-server ... --kill-command '...' --kills 2 --out history.jsonl

The shell runs the kill command in the middle of the load; it has to kill the broker and restart it on the same address
(or leave that to a supervisor). Exit status 1 if the checkers find something.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from compat.torture.load import Plan, Recorder, create_topic, read_back, run_load
from kbroker.testing.checkers import check_history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--topic", default=f"torture-{int(time.time())}")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--producers", type=int, default=3)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--records", type=int, default=2_000, help="for each producer")
    parser.add_argument("--payload-bytes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill-command", help="run by the shell in the middle of the load")
    parser.add_argument("--kills", type=int, default=1)
    options = parser.parse_args()
    plan = Plan(
        options.topic, partitions=options.partitions, producers=options.producers, readers=options.readers,
        records=options.records, payload_bytes=options.payload_bytes, seed=options.seed,
    )  # fmt: skip
    total = plan.producers * plan.records
    kills_at = [total * (number + 1) // (options.kills + 1) for number in range(options.kills)]

    def disturb(acknowledged: int) -> None:
        if options.kill_command and kills_at and acknowledged >= kills_at[0]:
            kills_at.pop(0)
            print(f"kill after {acknowledged} acknowledgements", flush=True)
            subprocess.run(options.kill_command, shell=True, check=True)

    recorder = Recorder()
    create_topic(options.bootstrap_server, plan)
    run_load(options.bootstrap_server, plan, recorder, disturb=disturb)
    read_back(options.bootstrap_server, plan, recorder)
    options.out.write_text(recorder.text())
    findings = check_history(recorder.history())
    for finding in findings[:50]:
        print(finding)
    counted = ", ".join(f"{function} {kind} {count}" for (function, kind), count in sorted(recorder.counts.items()))
    print(f"{len(findings)} findings; {counted}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
