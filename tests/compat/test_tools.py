"""Kafka's own command-line tools, run against Headrace and against Apache Kafka: they must print the same."""

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.compat.process import HeadraceProcess
from tests.reference.apache import ApacheKafka, tool_command

pytestmark = pytest.mark.reference
CONFIGS, TOOLS = "kafka.admin.ConfigCommand", "org.apache.kafka.tools"
TOPIC = "tools-topic"
# In this order: each finds what those before it have left.
COMMANDS = {
    "create a topic": (f"{TOOLS}.TopicCommand", "--create", "--topic", TOPIC, "--partitions", "3", "--config",
    "flush.ms=5"),
    "describe it": (f"{TOOLS}.TopicCommand", "--describe", "--topic", TOPIC),
    "add partitions": (f"{TOOLS}.TopicCommand", "--alter", "--topic", TOPIC, "--partitions", "4"),
    "change its config": (
        CONFIGS, "--alter", "--topic", TOPIC, "--add-config", "retention.ms=1000000,cleanup.policy=[compact,delete]",
    ),
    "describe its config": (CONFIGS, "--describe", "--topic", TOPIC, "--all"),
    "configure a group": (CONFIGS, "--alter", "--group", "g", "--add-config", "consumer.session.timeout.ms=50000"),
    "describe the group": (CONFIGS, "--describe", "--group", "g"),
    "list users": (CONFIGS, "--describe", "--entity-type", "users"),
    "offsets": (f"{TOOLS}.GetOffsetShell", "--topic", TOPIC),
    "offsets by the latest timestamp": (f"{TOOLS}.GetOffsetShell", "--topic-partitions", f"{TOPIC}:0-2", "--time",
    "-3"),
    "subscribe to metrics": (
        f"{TOOLS}.ClientMetricsCommand", "--alter", "--name", "m", "--metrics", "org.apache.kafka.producer.",
        "--interval", "10000", "--match", "client_id=abc.*",
    ),
    "describe the subscription": (f"{TOOLS}.ClientMetricsCommand", "--describe"),
    "list share groups": (f"{TOOLS}.consumer.group.ShareGroupCommand", "--list"),
    "log directories": (f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", TOPIC),
    "elect leaders": (f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"),
    "reassignments": (f"{TOOLS}.reassign.ReassignPartitionsCommand", "--list"),
    "give access": (f"{TOOLS}.AclCommand", "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic",
    TOPIC),
    "producers": (f"{TOOLS}.TransactionsCommand", "describe-producers", "--topic", TOPIC, "--partition", "0"),
    "delete the topic": (f"{TOOLS}.TopicCommand", "--delete", "--topic", TOPIC),
}  # fmt: skip
# What may differ between two clusters: ids, ports and folders, and the words that explain an error.
OWN = {
    r"TopicId: \S+": "TopicId: <id>", r"127\.0\.0\.1:\d+": "<address>", r'"/[^"]+"': '"<folder>"',
    r"(errors\.\w+Exception): .*": r"\1",
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with HeadraceProcess(tmp_path_factory.mktemp("tools") / "data") as started:
        yield started


@pytest.mark.parametrize("what", COMMANDS)
def test_tools_print_the_same(what: str, broker: HeadraceProcess, apache: ApacheKafka) -> None:
    main, *args = COMMANDS[what]
    # At once: each takes a second for Java to start.
    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(lambda address: run(main, address, args), (apache.bootstrap, broker.bootstrap))
    assert ours == theirs


def run(main: str, address: str, args: list[str]) -> tuple[int, str]:
    command = tool_command(main, "--bootstrap-server", address, *args)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    text = done.stdout
    for pattern, word in OWN.items():
        text = re.sub(pattern, word, text)
    return done.returncode, text
