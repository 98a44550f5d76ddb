"""Batches of a log file or a metadata snapshot, one line each, and the records in them.

Every checksum is computed. A batch with a wrong one is passed over; where there is no batch at all, the dump says at
which byte, what follows, and stops.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from headrace.cli.dump.decode import Describe, control_text
from headrace.cli.dump.report import Report, counted, plain, short, when
from headrace.errors import KafkaError
from headrace.records.batch import HEADER_BYTES, BatchHeader, Record, check_stored, read_records
from headrace.records.compression import Codec
from headrace.records.control import decode_control, decode_marker
from headrace.records.layout import HEADER, LENGTH_MIN

VALUE_BYTES_SHOWN = 100
TAIL_BYTES = 1 << 20


@dataclass(slots=True)
class Place:
    """A batch and where it lies; `data` is the whole batch."""

    position: int
    header: BatchHeader
    data: bytes


class Broken(Exception):
    """No batch where one has to be; nothing behind it can be found."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position:,}: {reason}")
        self.position = position


def walk(path: str) -> Iterator[Place]:
    """Every batch of a file in order, checksums unchecked. Raises Broken."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            head = file.read(HEADER_BYTES)
            rest = size - position
            if rest < HEADER_BYTES:
                raise Broken(position, f"the file ends inside a batch header ({rest} of {HEADER_BYTES} bytes)")
            header = BatchHeader._make(HEADER.unpack(head))
            if header.magic != 2 or header.length < LENGTH_MIN:
                raise Broken(position, _no_batch(file, head, header, rest))
            if header.size > rest:
                raise Broken(position, f"the file ends inside a batch ({rest:,} of {header.size:,} bytes)")
            yield Place(position, header, head + file.read(header.size - HEADER_BYTES))
            position += header.size


def _no_batch(file: BinaryIO, head: bytes, header: BatchHeader, rest: int) -> str:
    if not any(head):
        tail = file.read(TAIL_BYTES)
        zeros = len(head) + len(tail) - len(tail.lstrip(b"\0"))
        whole = "to the end of the file" if zeros >= min(rest, len(head) + TAIL_BYTES) else f"{zeros:,} of them"
        return f"zeros instead of a batch, {whole}"
    if header.magic in (0, 1):
        return f"a message in the old format (magic {header.magic}), which Kafka 4 does not read either"
    return f"no batch (magic {header.magic}, length {header.length}); {rest:,} bytes follow"


def dump_segment(
    path: str, report: Report, *, records: bool, describe: Describe | None, values: int = VALUE_BYTES_SHOWN
) -> None:
    """Print a log file. `describe` turns a record into text; without it keys and values are shown as they are."""
    batches = count = 0
    last: BatchHeader | None = None
    show = _shower(describe, values)
    try:
        for place in walk(path):
            header = place.header
            fault = _fault(place, last)
            report.line(f"@{place.position} {batch_text(header)}", **batch_facts(place))
            if fault:
                report.damage(path, f"at byte {place.position:,}, offset {header.base_offset}: {fault}")
            elif records:
                _dump_records(path, place, report, show)
            last = header
            batches += 1
            count += header.count
    except Broken as broken:
        report.damage(path, str(broken))
    span = f"offsets up to {last.last_offset}" if last else "empty"
    totals = f"{batches:,} batch{'' if batches == 1 else 'es'}, {counted(count, 'record')}"
    report.line(f"{totals}, {span}, {os.path.getsize(path):,} bytes")


def _fault(place: Place, last: BatchHeader | None) -> str | None:
    try:
        check_stored(memoryview(place.data), 0, len(place.data))
    except KafkaError as error:
        return error.message or error.error.text
    if last is not None and place.header.base_offset <= last.last_offset:
        return f"the offset goes back: the batch before ends at {last.last_offset}"
    return None


def batch_text(header: BatchHeader) -> str:
    """A batch header in one line."""
    words = [
        f"offsets {header.base_offset}..{header.last_offset}",
        counted(header.count, "record"),
        f"{header.size:,} bytes",
    ]
    words.append(f"epoch {header.leader_epoch}")
    words.append(f"{'append' if header.is_log_append_time else 'create'} time {when(header.max_timestamp)}")
    if header.codec:
        words.append(
            Codec(header.codec).name.lower() if header.codec in Codec._value2member_map_ else f"codec {header.codec}"
        )
    if header.has_producer_id:
        words.append(f"producer {header.producer_id} epoch {header.producer_epoch}")
        if header.base_sequence >= 0:
            words.append(f"sequences {header.base_sequence}..{header.last_sequence}")
    if header.is_transactional:
        words.append("transactional")
    if header.is_control:
        words.append("control")
    if header.delete_horizon_ms is not None:
        words.append(f"delete horizon {when(header.delete_horizon_ms)}")
    return ", ".join(words)


def batch_facts(place: Place) -> dict[str, object]:
    """The same for scripts."""
    header = place.header
    codec = header.codec
    return {
        "position": place.position,
        "size_bytes": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
        "log_append_time": header.is_log_append_time,
        "compression": Codec(codec).name.lower() if codec in Codec._value2member_map_ else codec,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
    }


Show = Callable[[Record], tuple[str, dict[str, object]]]
"""A record in words, and as facts."""


def _shower(describe: Describe | None, values: int) -> Show:
    def decoded(record: Record) -> tuple[str, dict[str, object]]:
        assert describe is not None
        text = describe(record)
        return text, {"decoded": text}

    def as_it_is(record: Record) -> tuple[str, dict[str, object]]:
        text = f"{when(record.timestamp)} key {short(record.key, values)} value {short(record.value, values)}"
        if record.headers:
            text += " headers " + ", ".join(f"{name}={short(value, values)}" for name, value in record.headers)
        headers = [{"key": name, "value": plain(value)} for name, value in record.headers]
        key, value = plain(record.key), plain(record.value)
        return text, {"timestamp": record.timestamp, "key": key, "value": value, "headers": headers}

    return as_it_is if describe is None else decoded


def _dump_records(path: str, place: Place, report: Report, show: Show) -> None:
    header, data = place.header, place.data
    try:
        if header.is_control and header.is_transactional:
            marker = decode_marker(data, 0, header)
            if marker is not None:
                verdict = "commit" if marker.committed else "abort"
                epoch = marker.coordinator_epoch
                text = f"{header.base_offset}: {verdict} marker, coordinator epoch {epoch}"
                report.detail(text, offset=header.base_offset, marker=verdict, coordinator_epoch=epoch)
            return
        if header.is_control:
            for control in decode_control(data, 0, header):
                text = control_text(control.type, control.message)
                report.detail(f"{control.offset}: {text}", offset=control.offset, decoded=text)
            return
        for record in read_records(data, 0, header):
            text, facts = show(record)
            report.detail(f"{record.offset}: {text}", offset=record.offset, **facts)
    except KafkaError as error:
        report.damage(
            path, f"at byte {place.position:,}, offset {header.base_offset}: {error.message or error.error.text}"
        )
