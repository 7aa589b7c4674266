"""`kbroker user`: list, create and delete users of SCRAM on any broker.

The broker gets a salted hash of the password (KIP-554). The password comes from a file, from stdin or from a prompt,
and never from the command line, which other users of the machine can see.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli import CommandFailed, Commands
from kbroker.cli._actions import Actions
from kbroker.cli._admin import add_connection_flags, admin_client, explain_code
from kbroker.cli._say import say, say_json

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
DEFAULT_ITERATIONS: Final = 8_192
_MAX_PASSWORD_BYTES: Final = 8 * 1024


def add_parser(commands: Commands) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "user",
        aliases=["users"],
        help="list, create or delete users who log in with SCRAM",
        description="List, create or delete users of SCRAM (user and password) on any Kafka-compatible broker.",
    )
    add_connection_flags(parser)
    parser.named = "--user"
    actions = Actions(
        parser,
        {
            "list": "print users with their mechanisms",
            "create": "create a user, or change the password",
            "delete": "delete a user, or one mechanism of the user",
        },
    )
    actions.add("create delete", "--user", metavar="NAME", help="name of the user")
    actions.add(
        "create delete", "--mechanism", action="append", choices=list(MECHANISMS), metavar="NAME",
        help=f"{' or '.join(MECHANISMS)}; repeatable (default both)",
    )  # fmt: skip
    actions.add(
        "create", "--password-file", type=Path, metavar="FILE",
        help="file with the password (default: a prompt on a terminal, else stdin)",
    )  # fmt: skip
    actions.add(
        "create", "--iterations", type=int, default=DEFAULT_ITERATIONS, metavar="N",
        help=f"rounds of hashing at each login of a client, 4096 to 16384 (default {DEFAULT_ITERATIONS})",
    )  # fmt: skip
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default text)")
    parser.set_defaults(run=partial(user, actions))


def user(actions: Actions, options: argparse.Namespace) -> None:
    """List, create or delete."""
    actions.check(options)
    if options.action == "list":
        with admin_client(options) as client:
            _print(users_of(client), options.format)
        return
    if not options.user:
        actions.parser.error(f"--{options.action} requires --user")
    mechanisms = list(dict.fromkeys(options.mechanism or MECHANISMS))
    if options.action == "create":
        from kbroker.security.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, is_portable  # noqa: PLC0415

        if not MIN_ITERATIONS <= options.iterations <= MAX_ITERATIONS:
            actions.parser.error(f"--iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}")
        password = _password(options.password_file)
        for what, text in (("name", options.user), ("password", password)):
            if not is_portable(text):
                raise CommandFailed(f"clients disagree about this {what}, because SASLprep changes it; choose another")
        with admin_client(options) as client:
            create_user(client, options.user, password, mechanisms, options.iterations)
    else:
        with admin_client(options) as client:
            delete_user(client, options.user, mechanisms if options.mechanism else None)
    if options.format == "json":
        say_json({"user": options.user, "action": options.action, "mechanisms": mechanisms})
    else:
        done = "Created" if options.action == "create" else "Deleted"
        say(f"{done} user {options.user}.")


def _password(path: Path | None) -> str:
    """The password without the end of its line. Raises CommandFailed."""
    if path is None and sys.stdin.isatty():
        from getpass import getpass  # noqa: PLC0415

        password = getpass("Password: ")
        if getpass("Again: ") != password:
            raise CommandFailed("the passwords differ; nothing was changed")
    else:
        try:
            with sys.stdin.buffer if path is None else path.open("rb") as file:
                data = file.read(_MAX_PASSWORD_BYTES + 1)
            password = data.decode().removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise CommandFailed(f"cannot read {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise CommandFailed("the password is not UTF-8") from error
        if len(data) > _MAX_PASSWORD_BYTES:
            raise CommandFailed(f"the password has more than {_MAX_PASSWORD_BYTES} bytes")
    if not password:
        raise CommandFailed("the password is empty")
    return password


def create_user(client: Cluster, name: str, password: str, mechanisms: list[str], iterations: int) -> None:
    from kbroker.runtime.clocks import RealClocks  # noqa: PLC0415
    from kbroker.security.sasl import scram  # noqa: PLC0415
    from wire.messages.alter_user_scram_credentials import ScramCredentialUpsertion  # noqa: PLC0415

    for mechanism in mechanisms:  # a request changes a user only once
        salt = scram.new_salt(RealClocks().new_uuid().bytes)
        salted = scram.salted_password(scram.MECHANISMS[mechanism], password, salt, iterations)
        change = ScramCredentialUpsertion(
            name=name, mechanism=MECHANISMS[mechanism], iterations=iterations, salt=salt, salted_password=salted
        )
        _alter(client, upsertions=[change])


def delete_user(client: Cluster, name: str, mechanisms: list[str] | None) -> None:
    """Delete some mechanisms of a user; None means all that the user has."""
    from wire.messages.alter_user_scram_credentials import ScramCredentialDeletion  # noqa: PLC0415

    if mechanisms is None:
        mechanisms = [mechanism for mechanism, _ in users_of(client).get(name, ())]
        if not mechanisms:
            raise CommandFailed(f"user {name!r} does not exist")
    for mechanism in mechanisms:
        _alter(client, deletions=[ScramCredentialDeletion(name=name, mechanism=MECHANISMS[mechanism])])


def _alter(client: Cluster, **changes: Any) -> None:
    from wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest  # noqa: PLC0415

    request = AlterUserScramCredentialsRequest(**{"deletions": [], "upsertions": [], **changes})
    for result in client.ask_controller(request).results:
        if result.error_code:
            raise CommandFailed(explain_code(result.error_code, result.error_message))


def users_of(client: Cluster) -> dict[str, list[tuple[str, int]]]:
    """Mechanisms with their iterations by user."""
    from wire.errors import check  # noqa: PLC0415
    from wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest  # noqa: PLC0415

    names = {number: name for name, number in MECHANISMS.items()}
    answer = client.ask(DescribeUserScramCredentialsRequest(users=None))
    check(answer.error_code, answer.error_message or "")
    return {
        one.user: sorted((names.get(info.mechanism, "?"), info.iterations) for info in one.credential_infos)
        for one in sorted(answer.results, key=lambda result: result.user)
    }


def _print(users: dict[str, list[tuple[str, int]]], how: str) -> None:
    from kbroker.cli._table import is_terminal, print_table  # noqa: PLC0415

    rows = [(name, mechanism, iterations) for name, found in users.items() for mechanism, iterations in found]
    columns = ("user", "mechanism", "iterations")
    if how == "json":
        say_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif is_terminal():
        print_table("", columns, rows)
    else:
        for row in rows:
            say("\t".join(map(str, row)))
