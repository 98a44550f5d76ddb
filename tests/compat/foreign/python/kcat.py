"""kcat, the command over librdkafka: `kcat.py features BOOTSTRAP REPLICAS PREFIX` or `kcat.py load BOOTSTRAP TOPIC`."""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Sequence

from checks import check, done, same, until

LIMIT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST = ("-X", "auto.offset.reset=earliest")

mode, bootstrap, *rest = sys.argv[1:]


def kcat(*args: str, sent: str | bytes = b"", code: int = 0) -> str:
    """What it prints, line ends as they are; `-q` keeps its remarks about reaching an end away."""
    given = sent.encode() if isinstance(sent, str) else sent
    ran = subprocess.run(
        ["kcat", "-b", bootstrap, *args], input=given, capture_output=True, timeout=LIMIT_S, check=False
    )
    if ran.returncode != code:
        raise AssertionError(f"kcat {' '.join(args)} ended with {ran.returncode}: {ran.stderr.decode()[-400:]}")
    return ran.stdout.decode() if code == 0 else ran.stderr.decode()


def read(topic: str, *args: str) -> str:
    return kcat("-C", "-q", "-e", "-t", topic, "-o", "beginning", *args)


def records(prefix: str) -> None:
    topic = f"{prefix}-records"
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-H", "a=1", "-H", "a=zwei", "-H", "none", sent="k1:v1\n:no key\nk3:\n")
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-Z", sent="gone:\n")
    told = read(topic, "-f", "%t [%p] %o %K %k|%S %s|%h\n").splitlines()
    same(told, [f"{topic} [0] 0 2 k1|2 v1|a=1,a=zwei,none=NULL", f"{topic} [0] 1 0 |6 no key|a=1,a=zwei,none=NULL",
                f"{topic} [0] 2 2 k3|0 |a=1,a=zwei,none=NULL", f"{topic} [0] 3 4 gone|-1 |"])  # fmt: skip
    rows = [json.loads(line) for line in read(topic, "-J").splitlines()]
    same([(row["offset"], row["key"], row["payload"]) for row in rows],
         [(0, "k1", "v1"), (1, "", "no key"), (2, "k3", ""), (3, "gone", None)])  # fmt: skip
    same(rows[0]["headers"], ["a", "1", "a", "zwei", "none", None])
    same({row["tstype"] for row in rows}, {"create"})
    same(kcat("-C", "-q", "-e", "-t", topic, "-o", "-2", "-f", "%o\n"), "2\n3\n")
    same(kcat("-C", "-q", "-e", "-t", topic, "-o", "1", "-c", "2", "-f", "%o\n"), "1\n2\n")
    same(
        kcat(
            "-C", "-q", "-e", "-t", topic, "-p", "0", "-o", "99", "-X", "topic.auto.offset.reset=earliest", "-f", "%o\n"
        ),
        "0\n1\n2\n3\n",
    )


def codec(prefix: str, name: str) -> None:
    topic = f"{prefix}-{name}"
    lines = "".join(f"key {i % 7}:value {i}\n" for i in range(2000))
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-z", name, "-X", "enable.idempotence=true", sent=lines)
    same(read(topic, "-K:"), lines)
    # In pieces, each smaller than a batch: whole batches come all the same.
    same(read(topic, "-K:", "-X", "fetch.message.max.bytes=1000", "-X", "check.crcs=true"), lines)


def acks(prefix: str, level: str) -> None:
    kcat("-P", "-t", f"{prefix}-acks-{level}", "-X", f"acks={level}", sent="a\nb\n")
    until("both", lambda: read(f"{prefix}-acks-{level}") == "a\nb\n")


def large(prefix: str) -> None:
    text = random.Random(7).randbytes(450_000).hex()
    kcat("-P", "-t", f"{prefix}-large", sent=text)
    same(read(f"{prefix}-large"), f"{text}\n")
    refused = kcat("-P", "-t", f"{prefix}-large", "-X", "message.max.bytes=4000000", sent=text * 3, code=1)
    assert "Message size too large" in refused, refused


def times(prefix: str) -> None:
    topic = f"{prefix}-times"
    kcat("-P", "-t", topic, "-p", "0", sent="a\n")
    kcat("-P", "-t", topic, "-p", "0", sent="b\n")
    stamps = [int(line) for line in read(topic, "-f", "%T\n").splitlines()]
    for asked, offset in ((0, 0), (stamps[1], 1), (stamps[1] + 10**9, -1), (-1, 2), (-2, 0)):
        same(kcat("-Q", "-t", f"{topic}:0:{asked}"), f"{topic} [0] offset {offset}\n")
    same(kcat("-C", "-q", "-t", topic, "-p", "0", "-o", f"s@{stamps[0] + 1}", "-e"), "b\n")
    same(kcat("-C", "-q", "-t", topic, "-p", "0", "-o", f"s@{stamps[0]}", "-o", f"e@{stamps[1]}", "-e"), "a\n")


def listing(prefix: str, brokers: int) -> None:
    told = json.loads(kcat("-L", "-J", "-t", f"{prefix}-records"))
    same(len(told["brokers"]), brokers)
    (topic,) = told["topics"]
    same((topic["topic"], [row["partition"] for row in topic["partitions"]]), (f"{prefix}-records", [0]))
    assert f'topic "{prefix}-records"' in kcat("-L")


def group(prefix: str) -> None:
    topic = f"{prefix}-group"
    kcat("-P", "-t", topic, sent="a\nb\n")
    for strategy in ("range", "roundrobin", "cooperative-sticky"):
        member = (
            "-G",
            f"{topic}-{strategy}",
            *EARLIEST,
            "-X",
            f"partition.assignment.strategy={strategy}",
            "-q",
            "-e",
            topic,
        )
        same(sorted(kcat(*member).split()), ["a", "b"])
        same(kcat(*member), "")
    kcat("-P", "-t", topic, sent="c\n")
    same(kcat("-G", f"{topic}-range", *EARLIEST, "-X", "group.instance.id=static", "-q", "-e", topic), "c\n")
    same(kcat("-G", f"{topic}-regex", *EARLIEST, "-q", "-c", "3", f"^{topic[:-2]}.p$").split(), ["a", "b", "c"])


def refused(prefix: str) -> None:
    assert "Topic not valid" in (told := kcat("-L", "-t", "not/a/name")) or "Invalid topic" in told, told
    assert "Unknown partition" in kcat("-P", "-t", f"{prefix}-records", "-p", "7", sent="a\n", code=1)


def features(brokers: int, prefix: str) -> None:
    check("records", lambda: records(prefix))
    for name in CODECS:
        check(f"records {name}", lambda name=name: codec(prefix, name))
    for level in ("0", "1", "all"):
        check(f"acks {level}", lambda level=level: acks(prefix, level))
    check("large records", lambda: large(prefix))
    check("offsets by time", lambda: times(prefix))
    check("metadata", lambda: listing(prefix, brokers))
    check("group", lambda: group(prefix))
    check("refusals", lambda: refused(prefix))


def load(topic: str) -> None:
    """kcat ends with 0 once all is acknowledged that it has read; a group of two reads beside it."""
    readers = [start("-G", f"{topic}-group", *EARLIEST, "-q", "-u", "-E", topic, output=True) for _ in range(2)]
    seen: set[int] = set()
    for reader in readers:
        threading.Thread(target=collect, args=(reader, seen), daemon=True).start()
    writer = start(
        "-P", "-t", topic, "-E", "-X", "enable.idempotence=true", "-X", "linger.ms=1", "-X", "partitioner=random"
    )
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    assert writer.stdin is not None
    sent = 0
    while not ended.wait(0.005):
        writer.stdin.write("".join(f"{sent + i}\n" for i in range(10)))
        writer.stdin.flush()
        sent += 10
        if sent == 1000:
            print("running", flush=True)
    writer.stdin.close()
    check("load", lambda: (same(writer.wait(LIMIT_S), 0), until(f"all of {sent} read", lambda: len(seen) == sent)))
    print(f"acknowledged {sent}", flush=True)
    for reader in readers:
        reader.terminate()
        reader.wait(LIMIT_S)


def start(*args: str, output: bool = False) -> subprocess.Popen[str]:
    command: Sequence[str] = ["kcat", "-b", bootstrap, *args]
    out = subprocess.PIPE if output else subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL, text=True)


def collect(reader: subprocess.Popen[str], seen: set[int]) -> None:
    assert reader.stdout is not None
    for line in reader.stdout:
        seen.add(int(line))


features(int(rest[0]), rest[1]) if mode == "features" else load(rest[0])
done()
