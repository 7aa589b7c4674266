"""kafka-acls against a broker with an authorizer: it adds, lists and removes ACLs."""

from __future__ import annotations

from pathlib import Path

from compat.brokers import KbrokerProcess
from compat.conftest import KafkaTool
from kbroker.cli import main
from kbroker.config.authorizer import STANDARD_AUTHORIZER


def test_kafkas_tool_adds_lists_and_removes_acls(kafka_tool: KafkaTool, tmp_path: Path) -> None:
    settings = (f"authorizer.class.name={STANDARD_AUTHORIZER}", "super.users=User:ANONYMOUS")
    broker = KbrokerProcess(tmp_path, overrides=settings)
    broker.start()
    try:
        at = ("--bootstrap-server", broker.bootstrap_servers)
        resource = ("--topic", "orders", "--group", "readers")
        alice = ("--consumer", *resource, "--allow-principal", "User:alice", "--allow-host", "10.0.0.1")
        added = kafka_tool("AclCommand", *at, "--add", *alice).stdout
        entry = "(principal=User:alice, host=10.0.0.1, operation=READ, permissionType=ALLOW)"
        assert (
            "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)`" in added
        )
        assert (
            main(["acl", *at, "--add", "--deny-principal", "User:bob", "--topic", "ord*", "--operation", "Write"]) == 0
        )
        listed = kafka_tool("AclCommand", *at, "--list").stdout
        assert listed.count(entry) == 2
        assert "name=ord*, patternType=LITERAL" in listed
        assert "(principal=User:bob, host=*, operation=WRITE, permissionType=DENY)" in listed
        kafka_tool("AclCommand", *at, "--remove", "--force", *alice)
        assert "alice" not in kafka_tool("AclCommand", *at, "--list").stdout
    finally:
        broker.stop()
