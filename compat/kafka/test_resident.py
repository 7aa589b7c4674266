"""Tools that share a JVM behave as in JVMs of their own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.brokers import free_port
from compat.kafka.libraries import class_path, java
from compat.kafka.resident import ToolServer, program, tool_server
from compat.kafka.tools import run_tool, start_tool
from compat.waiting import until

TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"


def alone(*words: str) -> tuple[int, str, str]:
    process = start_tool(*words)
    output, error = process.communicate(timeout=60)
    return process.returncode, output, error


@pytest.mark.parametrize(
    "words",
    [
        (TOPICS, "--version"),
        (TOPICS, "--help"),
        (TOPICS, "--no-such-option"),
        (PRODUCER,),
        ("kafka.tools.StorageTool", "format"),
        ("org.apache.kafka.tools.NoSuchTool",),
    ],
)
def test_a_tool_ends_as_in_its_own_jvm(kafka_libraries: Path, words: tuple[str, ...]) -> None:
    assert kafka_libraries.is_dir()
    status, output, error = alone(*words)
    for _ in range(2):
        done = run_tool(*words)
        assert (done.returncode, done.stdout) == (status, output)
        assert done.stderr.splitlines()[:2] == error.splitlines()[:2]  # stack traces differ below `main`


def test_a_late_tool_is_stopped_and_the_next_one_runs(kafka_libraries: Path) -> None:
    """Nothing listens: the tool retries for a minute, while its other threads print."""
    assert kafka_libraries.is_dir()
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool(TOPICS, "--bootstrap-server", f"127.0.0.1:{free_port()}", "--list", timeout_s=6)
    done = run_tool(TOPICS, "--version")
    assert (done.returncode, done.stderr) == (0, "")


SOURCE = """
import org.apache.kafka.common.utils.Exit;
public class Odd {
    public static void main(String[] words) throws Exception {
        System.out.println("began");
        switch (words[0]) {
            case "leaves":
                Thread left = new Thread(() -> { while (true) System.err.print("x"); });
                left.setDaemon(true);
                left.start();
                break;
            case "waits":
                Thread main = Thread.currentThread();
                new Thread(() -> { while (main.isAlive() && main.getState() != Thread.State.WAITING) Thread.yield();
                                   System.out.println("ended"); }).start();
                break;
            case "hooks":
                Exit.addShutdownHook("last", () -> System.out.println("ended"));
                try { Exit.exit(3); } finally { System.out.println("never"); }
            case "ends the JVM":
                System.exit(7);
            default:
                System.out.println(new String(System.in.readAllBytes()));
                throw new IllegalStateException("odd");
        }
    }
}
"""


@pytest.fixture(scope="module")
def odd(kafka_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    """A server with a tool of this file."""
    assert kafka_libraries.is_dir()
    directory, classes = tmp_path_factory.mktemp("odd"), program()
    assert classes is not None
    (directory / "Odd.java").write_text(SOURCE)
    compiler = Path(java()).resolve().with_name("javac")
    subprocess.run([compiler, "-cp", class_path(), directory / "Odd.java"], check=True)
    server = ToolServer(Path(f"{classes}{os.pathsep}{directory}"))
    yield server
    server.close()


@pytest.mark.parametrize(
    ("what", "status", "output", "keeps_the_jvm"),
    [
        ("waits", 0, "began\nended\n", True),
        ("hooks", 3, "began\nended\n", True),
        ("fails", 1, "began\ninput\n", True),
        ("leaves", 0, "began\n", False),
        ("ends the JVM", 7, "began\n", False),
    ],
)
def test_every_way_to_end_is_that_of_a_jvm(
    odd: ToolServer, what: str, status: int, output: str, keeps_the_jvm: bool
) -> None:
    done = odd.run("Odd", [what], input="input", timeout_s=60)
    assert done is not None
    assert (done.returncode, done.stdout) == (status, output)
    assert ('Exception in thread "main" java.lang.IllegalStateException: odd' in done.stderr) == (what == "fails")
    if not keeps_the_jvm:
        assert odd.pid is None or what == "ends the JVM"
    before = odd.pid
    after = odd.run("Odd", ["waits"], input=None, timeout_s=60)
    assert after is not None
    assert (after.stdout, after.stderr) == ("began\nended\n", "")
    assert (odd.pid == before) == keeps_the_jvm


def test_a_second_thread_gets_its_own_jvm(kafka_libraries: Path) -> None:
    assert kafka_libraries.is_dir()
    server = tool_server()
    assert server is not None
    waits = (TOPICS, "--bootstrap-server", f"127.0.0.1:{free_port()}", "--list")
    busy = threading.Thread(target=run_tool, args=waits, kwargs={"timeout_s": 300})
    busy.start()
    until(lambda: server.is_busy and server.pid is not None, patience_s=60)
    assert run_tool(TOPICS, "--version").returncode == 0
    assert server.is_busy
    server.kill()
    busy.join(60)
    assert not busy.is_alive()
