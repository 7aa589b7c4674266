"""Files that the sdist of kafka-python lacks: its tests start a broker by Kafka's scripts, with templates of settings.

The scripts run kbroker as the image does, so the file of login modules comes from KAFKA_OPTS, and `kafka-storage format
--add-scram` makes the users of SCRAM. The tests know only the variables that the templates name in braces.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

VERSION: Final = "4.3.1"
_CHECKOUT: Final = Path(__file__).parents[2]
_SCRIPTS: Final = f"servers/{VERSION}/kafka-bin/bin"
_RESOURCES: Final = "servers/resources/default"

# Their test/service.py, after what the tests do with it: a process, and what it has printed.
_SERVICE: Final = """
import re
import subprocess
import threading
import time


class ExternalService:
    pass


class SpawnedService:
    def __init__(self, args, env):
        self.args, self.env, self.lines = args, env, []

    def start(self):
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.child = subprocess.Popen(self.args, env=self.env, **piped)
        threading.Thread(target=lambda: self.lines.extend(iter(self.child.stdout.readline, "")), daemon=True).start()

    def wait_for(self, pattern, timeout):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.child.poll() is None:
            if any(re.search(pattern, line) for line in list(self.lines)):
                return True
            time.sleep(0.02)
        return False

    def stop(self):
        self.child.terminate()
        self.child.wait()

    def dump_logs(self):
        print("".join(self.lines))
"""
# The broker prints the line about its start itself. Users of SCRAM exist since the directory was formatted.
_SERVER: Final = f"""#!/bin/sh
echo "Replayed UserScramCredentialRecord creating new entry for alice"
exec {sys.executable} -m kbroker serve --from-environment --config "$2"
"""
_TOOL: Final = f"""#!/bin/sh
exec {sys.executable} {_CHECKOUT}/docker/kafka_tools "$(basename "$0" .sh)" "$@"
"""
_SETTINGS: Final = """
process.roles=broker,controller
node.id={broker_id}
controller.quorum.bootstrap.servers={controller_bootstrap_host}:{controller_port}
controller.listener.names=CONTROLLER
listeners={transport}://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners={transport}://{host}:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
inter.broker.listener.name={transport}
{sasl_config}
log.dirs={tmp_dir}/data
num.partitions={partitions}
default.replication.factor={replicas}
"""
_CLIENT: Final = """
security.protocol={transport}
sasl.mechanism={sasl_mechanism}
sasl.jaas.config={jaas_config}
"""

ADDED: Final = (
    ("test/__init__.py", ""),
    ("test/service.py", _SERVICE),
    (f"{_SCRIPTS}/kafka-run-class.sh", _SERVER),
    (f"{_SCRIPTS}/kafka-storage.sh", _TOOL),
    (f"{_SCRIPTS}/kafka-topics.sh", _TOOL),
    (f"{_RESOURCES}/kafka.properties", _SETTINGS),
    (f"{_RESOURCES}/kafka_server_jaas.conf", "KafkaServer {{\n{jaas_config}\n}};\n"),
    (f"{_RESOURCES}/sasl_command.conf", _CLIENT),
)
