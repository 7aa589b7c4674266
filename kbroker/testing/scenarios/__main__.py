"""Runs one scenario and prints it as lines of JSON; without a name it lists all. See the package."""

from __future__ import annotations

import argparse
import json
import sys

from kbroker.testing.scenarios import NEW, OLD, Scenario, scenarios

EXIT_FAILED = 1
EXIT_USAGE = 2


def main() -> int:
    """Run the program; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kbroker.testing.scenarios")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--rule", choices=[OLD, NEW], default=NEW)
    options = parser.parse_args()
    found = scenarios()
    if options.name is None:
        for each in found.values():
            show({"scenario": each.name, "summary": each.summary, "rules": each.rules, "source": each.source})
        return 0
    chosen = found.get(options.name)
    if chosen is None or options.rule not in chosen.rules:
        why = "no such scenario" if chosen is None else f"it has no {options.rule} rule"
        sys.stderr.write(f"{options.name}: {why}\n")
        return EXIT_USAGE
    return run(chosen, options.rule)


def run(chosen: Scenario, rule: str) -> int:
    """Run a scenario with a rule."""
    if rule == OLD:
        from kbroker.testing.mutants import install  # noqa: PLC0415

        assert chosen.old_rule is not None
        install(chosen.old_rule.mutant)
    from kbroker.testing.scenarios._stage import perform  # noqa: PLC0415  (after the mutant)

    try:
        perform(chosen, rule, show)
    except BaseExceptionGroup as group:
        if group.split(AssertionError)[1] is not None:
            raise
        sys.stderr.write(f"the run does not go as the scenario says: {_first(group)}\n")
        return EXIT_FAILED
    return 0


def show(line: dict[str, object]) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
