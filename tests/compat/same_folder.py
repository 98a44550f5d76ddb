"""Either broker on the same folder, one after the other."""

from pathlib import Path

from tests.compat.process import HeadraceProcess
from tests.reference.apache import ApacheKafka


def broker_on(kind: str, data: Path) -> HeadraceProcess | ApacheKafka:
    if kind == "headrace":
        return HeadraceProcess(data, config={"node.id": 1})
    # Compaction must not thin out what is compared.
    return ApacheKafka(data.with_name("apache"), data=data, properties={"log.cleaner.backoff.ms": 10**9})
