"""`kbroker acl`: list, add and remove the access control lists of any cluster, with the flags of Kafka's tool.

Results go to stdout: tables on a terminal, Kafka's lines elsewhere, JSON with `--format json`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from kbroker.cli import Commands
from kbroker.cli._actions import Actions
from kbroker.cli._admin import add_connection_flags, admin_client

RESOURCES: Final = ("topic", "group", "transactional_id", "delegation_token", "user_principal")
PATTERN_TYPES: Final = ("literal", "prefixed", "match", "any")


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "acl",
        aliases=["acls"],
        help="list, add or remove access control lists",
        description="List, add or remove access control lists (ACLs) on any Kafka-compatible cluster.",
    )
    add_connection_flags(parser)
    parser.named = "--topic"
    actions = Actions(
        parser,
        {"list": "print ACLs", "add": "add ACLs", "remove": "remove ACLs; without principals, all of a resource"},
    )
    resources = parser.add_argument_group("resources")
    for name in RESOURCES:
        flag = f"--{name.replace('_', '-')}"
        what = name.replace("_", " ")
        resources.add_argument(flag, action="append", default=[], metavar="NAME", help=f"{what}; repeatable")
    resources.add_argument("--cluster", action="store_true", help="the cluster")
    resources.add_argument(
        "--resource-pattern-type", type=str.lower, choices=PATTERN_TYPES, default="literal",
        help="how names select resources; match (all ACLs that apply to the names) and any only with --list and "
        "--remove (default literal)",
    )  # fmt: skip
    whom = parser.add_argument_group("principals and operations")
    for kind, text in (("allow", "whom to allow"), ("deny", "whom to deny")):
        actions.add(
            "add remove", f"--{kind}-principal", to=whom, action="append", type=_principal, default=[],
            metavar="USER", help=f"{text}, such as User:alice or User:*; repeatable",
        )  # fmt: skip
        actions.add(
            "add remove", f"--{kind}-host", to=whom, action="append", default=[], metavar="ADDRESS",
            help="only from this IP address (default all); repeatable",
        )  # fmt: skip
    actions.add(
        "list", "--principal", to=whom, action="append", type=_principal, default=[], metavar="USER",
        help="only ACLs of this principal; repeatable",
    )  # fmt: skip
    actions.add(
        "add remove", "--operation", to=whom, action="append", default=[], metavar="NAME",
        help="such as Read, Write or AlterConfigs (default All); repeatable",
    )  # fmt: skip
    for flag, text in (
        ("producer", "what a producer needs on topics, and on transactional ids"),
        ("consumer", "what a consumer needs on topics and groups"),
        ("idempotent", "with --producer, also idempotent writes without a right on a topic"),
    ):
        actions.add("add remove", f"--{flag}", to=whom, action="store_true", help=text)
    # Scripts give Kafka's tool --force with every action.
    parser.add_argument("-y", "--yes", "--force", action="store_true", help="do not ask before removing several ACLs")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(acl, actions))


def _principal(text: str) -> str:
    if ":" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} has no type; write User:{text}")
    return text


def acl(actions: Actions, options: argparse.Namespace) -> int:
    """Run the action that the flags choose; return the exit code."""
    _check(actions, options)
    with admin_client(options) as client:
        from kbroker.cli._acl_actions import ACTIONS  # noqa: PLC0415  (--help must not import the client)

        ACTIONS[options.action](client, options)
    return 0


def _check(actions: Actions, options: argparse.Namespace) -> None:
    """Exit with a usage error if flags contradict each other."""
    action, refuse = options.action, actions.parser.error
    actions.check(options)
    has_principals = bool(options.allow_principal or options.deny_principal)
    has_role = options.producer or options.consumer
    if action != "list" and not (options.cluster or any(getattr(options, name) for name in RESOURCES)):
        refuse(f"--{action} requires a resource: --topic, --group, --cluster, --transactional-id, ...")
    if action == "add" and not has_principals:
        refuse("--add requires --allow-principal or --deny-principal")
    if action == "add" and options.resource_pattern_type in ("match", "any"):
        refuse(f"--resource-pattern-type {options.resource_pattern_type} cannot be used with --add")
    for kind in ("allow", "deny"):
        if getattr(options, f"{kind}_host") and not getattr(options, f"{kind}_principal"):
            refuse(f"--{kind}-host requires --{kind}-principal")
    if options.operation and not has_principals:
        refuse("--operation requires --allow-principal or --deny-principal")
    if options.idempotent and not options.producer:
        refuse("--idempotent requires --producer")
    if has_role and (options.operation or options.deny_principal or options.deny_host):
        refuse("--producer and --consumer cannot be used with --operation, --deny-principal or --deny-host")
    if options.producer and not options.topic:
        refuse("--producer requires --topic")
    if options.consumer and not (options.topic and options.group):
        refuse("--consumer requires --topic and --group")
