"""`kbroker simulate`: tells a failure of a replicated partition as a story.

Real brokers run in one process, on a simulated network, simulated disks and virtual time, so a story takes about a
second and is the same in every run. The run is a child process, because an old rule of Kafka has to be planted before
the broker is imported; this command draws what the child prints.
"""

from __future__ import annotations

import argparse

from kbroker.cli import Commands, add_format_flag

BOTH = "both"


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "simulate",
        help="watch how replicas fail, lose records and recover",
        description="Tell a failure as a story: real brokers on a simulated network, with simulated disks, in virtual "
        "time. Without a name, list the scenarios.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a scenario; without one, all are listed")
    parser.add_argument("--list", action="store_true", help="list the scenarios, with one sentence each")
    parser.add_argument(
        "--rule", choices=["old", "new", BOTH], default=BOTH,
        help="the rule of an earlier Kafka, today's, or one after the other if the scenario has both (default both)",
    )  # fmt: skip
    parser.add_argument("--svg", metavar="FILE", help="draw the story into a file, and print only a summary")
    add_format_flag(parser)
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from kbroker.cli import _story  # noqa: PLC0415  (--help must not import what draws)

    if options.list or options.name is None:
        if options.name is not None or options.svg is not None:
            parser.error("a list has neither a name nor a picture")
        return _story.list_all(is_json=options.format == "json")
    return _story.show(parser, options)
