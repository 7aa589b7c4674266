"""Run simulated clusters, search seeds for broken promises, and reduce a plan that breaks one.

    python -m kbroker.testing.simulate --seed 17                     one run: its plan, its verdict, its digest
    python -m kbroker.testing.simulate --seed 17 --trace FILE        write every event
    python -m kbroker.testing.simulate --seed 17 --shrink --save F   find a smaller plan with the same finding
    python -m kbroker.testing.simulate --plan FILE                   run a saved plan
    python -m kbroker.testing.simulate --seeds 0..500 --jobs 2       search
    python -m kbroker.testing.simulate --seed 0 --runs 500           the same
    python -m kbroker.testing.simulate --seeds 0.. --hours 10        search until so much time was simulated
    python -m kbroker.testing.simulate --seeds 0..100 --small        a tenth of the time for each seed, as CI does
    python -m kbroker.testing.simulate --seeds 0..150 --calm         two hours for each seed, with few records

Each run has a process of its own, so none depends on those before it. The exit status is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.testing.mutants import Mutant, install

if TYPE_CHECKING:
    from kbroker.testing.plan import Plan
    from kbroker.testing.simulated_run import Outcome

_HASH_SEED: Final = "PYTHONHASHSEED"
_MS_OF_HOUR: Final = 3_600_000
_PROGRESS: Final = 20
"""After this number of seeds each, a search prints a line of progress."""
_REPEAT: Final = 60
"""After this number of seeds each, a search runs a plan a second time; a multiple of `_PROGRESS`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; see the module docstring."""
    if os.environ.get(_HASH_SEED) != "0":
        # The order within sets of texts depends on it, and it counts from the start of the interpreter only.
        given = sys.argv[1:] if arguments is None else list(arguments)
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *given], {**os.environ, _HASH_SEED: "0"})  # noqa: S606
    options = _options(arguments)
    if options.mutant is not None:
        install(options.mutant)
    if options.seeds is not None:
        return _search(options)
    return _one(options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kbroker.testing.simulate", description="Simulate clusters and check their promises."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run the plan of one seed")
    what.add_argument("--plan", type=Path, metavar="FILE", help="run the plan of a file")
    what.add_argument("--seeds", type=seed_range, metavar="A..B", help="run the plans of many seeds, B excluded")
    parser.add_argument("--runs", type=int, default=1, help="with --seed: run the plans of this seed and the next ones")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--hours", type=float, help="end a search after so many simulated hours")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--calm", action="store_true", help="plans of two hours with few records and rare faults")
    length.add_argument("--small", action="store_true", help="the plans in a tenth of the time")
    parser.add_argument("--first", action="store_true", help="end a search at its first finding")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write every event of one run")
    parser.add_argument("--shrink", action="store_true", help="find a smaller plan with the same finding")
    parser.add_argument("--tries", type=int, default=500, help="the runs that --shrink may use")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the plan")
    parser.add_argument("--twice", action="store_true", help="run the plan twice and compare the traces")
    parser.add_argument(
        "--mutant", type=_mutant, metavar="NAME", help="plant a defect of tests/mutants; needs a checkout"
    )
    options = parser.parse_args(arguments)
    if options.runs > 1 and options.seed is not None:
        options.seeds = range(options.seed, options.seed + options.runs)
    is_search = options.seeds is not None
    for is_useless, names, purpose in (
        (is_search, ("trace", "shrink", "save", "twice"), "one run"),
        (not is_search, ("hours", "first"), "a search"),
        (not is_search and not options.shrink, ("jobs",), "a search or --shrink"),
        (not options.shrink, ("tries",), "--shrink"),
        (options.seed is None, ("runs",), "--seed"),
        (options.plan is not None, ("calm", "small"), "--seed or --seeds"),
    ):
        for name in names:
            if is_useless and getattr(options, name) != parser.get_default(name):
                parser.error(f"--{name} is for {purpose}")
    return options


def _mutant(name: str) -> Mutant:
    try:
        found: Mutant = import_module("tests.mutants").MUTANTS[name]
    except ModuleNotFoundError:
        raise argparse.ArgumentTypeError("tests/mutants is not here") from None
    except KeyError:
        raise argparse.ArgumentTypeError(f"tests/mutants has no {name}") from None
    return found


def seed_range(text: str) -> Iterable[int]:
    """The seeds of a text as `3..7`, or endless ones as `3..`. Errors: argparse.ArgumentTypeError, ValueError."""
    first, dots, end = text.partition("..")
    if not dots:
        raise argparse.ArgumentTypeError("a range of seeds is A..B or A..")
    return range(int(first), int(end)) if end else count(int(first))


def _one(options: argparse.Namespace) -> int:
    from kbroker.testing.calm import calm_plan, small_plan  # noqa: PLC0415 - after a mutant is installed
    from kbroker.testing.drawing import drawn_plan  # noqa: PLC0415
    from kbroker.testing.plan import plan_of  # noqa: PLC0415
    from kbroker.testing.searching import is_repeatable, shrink  # noqa: PLC0415
    from kbroker.testing.simulated_run import run_plan  # noqa: PLC0415

    drawn = calm_plan if options.calm else small_plan if options.small else drawn_plan
    plan = drawn(options.seed) if options.plan is None else plan_of(options.plan.read_text())
    if options.trace is None:
        outcome = run_plan(plan)
    else:
        with options.trace.open("w") as file:
            outcome = run_plan(plan, trace=lambda line: file.write(line + "\n"))
    if options.shrink and outcome.findings:
        outcome = shrink(outcome, jobs=options.jobs, tries=options.tries, say=_note)
    if options.save is not None:
        options.save.write_text(outcome.plan.to_json() + "\n")
    _say(outcome.plan)
    _say(_summary(outcome))
    _tell(outcome, options)
    if options.twice and not is_repeatable(outcome):
        _say("K16: two runs of this plan differ")
        return 1
    return 0 if outcome.is_clean else 1


def _search(options: argparse.Namespace) -> int:
    from kbroker.testing.calm import calm_plan, small_plan  # noqa: PLC0415 - after a mutant is installed
    from kbroker.testing.drawing import drawn_plan  # noqa: PLC0415
    from kbroker.testing.searching import is_repeatable, of_seeds  # noqa: PLC0415

    found: list[Plan] = []
    simulated = real = runs = 0
    counts: Counter[str] = Counter()
    draw = calm_plan if options.calm else small_plan if options.small else drawn_plan
    for outcome in of_seeds(options.seeds, jobs=options.jobs, draw=draw):
        runs += 1
        simulated += outcome.simulated_ms
        real += outcome.real_ms
        counts += outcome.counts
        if not outcome.is_clean:
            found.append(outcome.plan)
            _say(f"seed {outcome.plan.seed}")
            _tell(outcome, options)
        elif runs % _PROGRESS == 0:
            _note(f"{runs} runs, {simulated / _MS_OF_HOUR:.2f} simulated hours, {len(found)} with findings")
            if runs % _REPEAT == 0 and not is_repeatable(outcome):
                found.append(outcome.plan)
                _say(f"seed {outcome.plan.seed}\n  K16: two runs differ")
        enough = options.hours is not None and simulated >= options.hours * _MS_OF_HOUR
        if enough or (found and options.first):
            break
    seeds = [plan.seed for plan in found]
    _say(f"seeds with findings: {seeds}" if seeds else "no findings")
    _say(
        f"{runs} runs, {simulated / _MS_OF_HOUR:.2f} simulated hours, {simulated / max(1, real):.1f} x real time on one"
        f" core, {counts['send-ok']} acknowledged records, {counts['poll-ok']} polled"
    )
    return 1 if found else 0


def _tell(outcome: Outcome, options: argparse.Namespace) -> None:
    mutant = f" --mutant {options.mutant.name}" if options.mutant else ""
    for finding in outcome.findings[:10]:
        _say(f"  {finding}")
    if outcome.findings:
        calm = " --calm" if options.calm else " --small" if options.small else ""
        plan = f"--seed {outcome.plan.seed}{calm}" if options.plan is None else f"--plan {options.plan}"
        _say(f"  again: python -m kbroker.testing.simulate {plan}{mutant}")


def _summary(outcome: Outcome) -> str:
    ratio = outcome.simulated_ms / max(1, outcome.real_ms)
    counts = " ".join(f"{name}={number}" for name, number in sorted(outcome.counts.items()))
    verdict = "no findings" if outcome.is_clean else f"{len(outcome.findings)} findings"
    return (
        f"{verdict}; {outcome.simulated_ms / 1000:.1f} s simulated in {outcome.real_ms / 1000:.2f} s ({ratio:.0f} x);"
        f" digest {outcome.digest}\n{counts}"
    )


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
