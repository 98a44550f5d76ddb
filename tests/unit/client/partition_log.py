"""What a broker keeps of a partition that producers number their batches for, in a few lines."""

from headrace.errors import Err
from headrace.records.batch import iter_records, read_header, validate

REMEMBERED = 5


class PartitionLog:
    """What a broker knows of a partition: its records, and each producer's last batches."""

    def __init__(self, refuse_above: int = 1 << 30) -> None:
        self.values: list[int] = []
        self.producers: dict[int, list[tuple[int, int, int]]] = {}
        self.epochs: dict[int, int] = {}
        self.refuse_above = refuse_above
        self.sizes: list[int] = []

    def append(self, records: bytes | bytearray | memoryview) -> tuple[Err, int]:
        header = validate(bytearray(records), memoryview(bytearray(records)), 0, len(records))
        header = read_header(records)
        if len(records) > self.refuse_above:
            return Err.MESSAGE_TOO_LARGE, -1
        if header.producer_id < 0:
            return Err.NONE, self._write(records)
        known = self.producers.setdefault(header.producer_id, [])
        epoch = self.epochs.setdefault(header.producer_id, header.producer_epoch)
        if header.producer_epoch < epoch:
            return Err.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > epoch:
            if header.base_sequence != 0:
                return Err.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.epochs[header.producer_id] = header.producer_epoch
            known.clear()
        for first, count, offset in known:
            if (first, count) == (header.base_sequence, header.count):
                return Err.NONE, offset
        # A producer without a past may begin anywhere, as with Kafka.
        expected = known[-1][0] + known[-1][1] if known else header.base_sequence
        if header.base_sequence != expected:
            return Err.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self._write(records)
        known.append((header.base_sequence, header.count, offset))
        del known[:-REMEMBERED]
        return Err.NONE, offset

    def knows(self, records: bytes | bytearray | memoryview) -> bool:
        """Whether a batch was written before, by what its producer's sequences say."""
        header = read_header(records)
        return self.epochs.get(header.producer_id) == header.producer_epoch and any(
            (first, count) == (header.base_sequence, header.count)
            for first, count, _ in self.producers[header.producer_id]
        )

    def _write(self, records: bytes | bytearray | memoryview) -> int:
        offset = len(self.values)
        self.values += [int(record.value or b"") for record in iter_records(records)]
        self.sizes.append(len(records))
        return offset
