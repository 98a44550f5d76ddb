"""The inner loops between record batches and Arrow buffers, written in the part of Python that numba compiles.

All take raw pointers and integers and give back a status, so that their machine code stands alone: `native` keeps it
on disk and needs no numba to run it again. Every read of foreign bytes is bounds-checked here; what is written goes to
buffers that the caller has sized for the worst case. `decode_python` and `encode_python` do the same
work without numba.
"""

# mypy: ignore-errors
# numba infers the types, starting from SIGNATURES.

RECORD_MIN = 6
"""The least that a record's own length may say: attributes, two deltas, two lengths, a header count."""

BATCH_FIELDS = 6
"""start and end of the body, base offset, base timestamp, 1 when the latter is the time of every record, count"""

CHECK_FIELDS = 4
"""where a batch begins and ends, its CRC, the offset behind it"""

ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, TOTALS = range(7)

ENCODED_FIELDS = 6
"""start (of the room for the header), end, first row, count, base timestamp, maximum timestamp"""

OK, BAD, OUT_OF_ROOM = 0, 1, 2

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT63_MAX = (1 << 63) - 1

# Of a record batch v2; see headrace.records.layout, whose constants they are.
HEADER_BYTES, LOG_OVERHEAD, RECORD_BYTES_MIN = 61, 12, 7
LENGTH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, LAST_DELTA_AT = 8, 16, 17, 21, 23
BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT, COUNT_AT = 27, 35, 57
CODEC_MASK, LOG_APPEND_TIME, CONTROL = 0x07, 0x08, 0x20

SIGNATURES = {
    "survey": "u8* i i i i i i i64* i64* i64*",
    "scan": "u8* i64* i i i i64* i64* i32* i32* i32* i32* i32* i32* i64* i64*",
    "headers": "u8* i32* i32* i i32* u8* i32* i32* i32* i32*",
    "gather": "u8* i32* i32* i i32* u8* u8*",
    "encode": ("i64* i i64* u8* i32* u8* i u8* i32* u8* i i32* u8* i u8* i32* u8* i32* u8* i i i i u8* i i64* i i64*"),
    "partition": "u8* i32* u8* i i i i32*",
}
"""Argument types of each kernel, all of which return a 64-bit integer: pointers, and plain 64-bit integers."""

HELPERS = ("big_endian", "varint", "varint_size", "put_varint", "is_set", "skip_headers")


def copy(out, to, src, at, size):
    """Bytes from one buffer to another. What is compiled is the machine's own copy, which `native` puts in its
    place."""
    for index in range(size):
        out[to + index] = src[at + index]


def big_endian(src, pos, size):
    """A signed number of `size` bytes, the highest first."""
    found = 0
    for index in range(size):
        found = (found << 8) | src[pos + index]
    sign = 1 << (8 * size - 1)
    return (found ^ sign) - sign


def survey(src, size, start_offset, end_offset, rows_max, bytes_max, most, batches, checks, progress):
    """List batches, from the position in `progress` on, that reach into the offsets and can be read where they lie.

    As many as make up `rows_max` rows or `bytes_max` bytes, at least one and at most `most`, each a row in `batches`
    (for `scan`) and in `checks`. Those of control records are among them, as empty. Stops before a batch that is
    compressed, begins behind the offsets or makes no sense; `progress` becomes the position there.
    """
    found = 0
    rows = 0
    body_bytes = 0
    pos = progress[0]
    while found < most and size - pos >= HEADER_BYTES:
        length = big_endian(src, pos + LENGTH_AT, 4)
        after = pos + LOG_OVERHEAD + length
        if src[pos + MAGIC_AT] != 2 or length < HEADER_BYTES - LOG_OVERHEAD or after > size:
            break
        base_offset = big_endian(src, pos, 8)
        last_delta = big_endian(src, pos + LAST_DELTA_AT, 4)
        count = big_endian(src, pos + COUNT_AT, 4)
        attributes = big_endian(src, pos + ATTRIBUTES_AT, 2)
        if base_offset < 0 or last_delta < 0 or count < 0 or attributes & CODEC_MASK or base_offset >= end_offset:
            break
        if base_offset + last_delta >= start_offset:
            body = pos + HEADER_BYTES
            if count > (after - body) // RECORD_BYTES_MIN:
                break
            if attributes & CONTROL or count == 0:
                count = 0
                body = after
            if found > 0 and (rows + count > rows_max or body_bytes + after - body > bytes_max):
                break
            rows += count
            body_bytes += after - body
            one_time = 1 if attributes & LOG_APPEND_TIME else 0
            at = found * BATCH_FIELDS
            batches[at] = body
            batches[at + 1] = after
            batches[at + 2] = base_offset
            batches[at + 3] = big_endian(src, pos + (MAX_TIMESTAMP_AT if one_time else BASE_TIMESTAMP_AT), 8)
            batches[at + 4] = one_time
            batches[at + 5] = count
            at = found * CHECK_FIELDS
            checks[at] = pos
            checks[at + 1] = after
            checks[at + 2] = big_endian(src, pos + CRC_AT, 4) & 0xFFFFFFFF
            checks[at + 3] = base_offset + last_delta + 1
            found += 1
        pos = after
    progress[0] = pos
    return found


def varint(src, pos, end):
    """A zigzag varint of at most 64 bits and the position after it, which is -1 when there is none before `end`."""
    if pos < end:
        byte = src[pos]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), pos + 1
    raw = 0
    shift = 0
    while pos < end:
        byte = src[pos]
        pos += 1
        if shift == 63 and byte > 1:
            return 0, -1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & INT63_MAX) ^ -(raw & 1), pos
        shift += 7
    return 0, -1


def skip_headers(src, pos, end, count, totals):
    """Where `count` record headers end, their bytes added to `totals`; -1 when they do not fit before `end`."""
    if count < 0 or count > (end - pos) >> 1:
        return -1
    key_bytes = 0
    value_bytes = 0
    for _ in range(count):
        length, pos = varint(src, pos, end)
        if pos < 0 or length < 0 or length > end - pos:
            return -1
        pos += length
        key_bytes += length
        length, pos = varint(src, pos, end)
        if pos < 0 or length > end - pos:
            return -1
        if length > 0:
            pos += length
            value_bytes += length
    totals[HEADERS] += count
    totals[HEADER_KEY_BYTES] += key_bytes
    totals[HEADER_VALUE_BYTES] += value_bytes
    return pos


def scan(
    src, batches, batch_count, start_offset, end_offset,
    offsets, timestamps, key_at, key_length, value_at, value_length, header_at, header_count, kept, totals,
):  # fmt: skip
    """Find every record with start_offset <= offset < end_offset. 0, or 1 + the index of the first bad batch."""
    row = 0
    key_bytes = 0
    value_bytes = 0
    for index in range(batch_count):
        at = index * BATCH_FIELDS
        pos = batches[at]
        body_end = batches[at + 1]
        base_offset = batches[at + 2]
        base_timestamp = batches[at + 3]
        one_time = batches[at + 4]
        first_row = row
        for _ in range(batches[at + 5]):
            size, pos = varint(src, pos, body_end)
            if pos < 0 or size < RECORD_MIN or size > body_end - pos:
                return index + 1
            end = pos + size
            timestamp_delta, pos = varint(src, pos + 1, end)
            if pos < 0:
                return index + 1
            offset_delta, pos = varint(src, pos, end)
            if pos < 0 or offset_delta < INT32_MIN or offset_delta > INT32_MAX:
                return index + 1
            key_size, pos = varint(src, pos, end)
            if pos < 0 or key_size > end - pos:
                return index + 1
            key_pos = pos
            if key_size > 0:
                pos += key_size
            value_size, pos = varint(src, pos, end)
            if pos < 0 or value_size > end - pos:
                return index + 1
            value_pos = pos
            if value_size > 0:
                pos += value_size
            headers_here, pos = varint(src, pos, end)
            if pos < 0:
                return index + 1
            headers_pos = pos
            offset = base_offset + offset_delta
            keep = start_offset <= offset < end_offset
            if headers_here:
                before = totals[HEADERS]
                before_keys = totals[HEADER_KEY_BYTES]
                before_values = totals[HEADER_VALUE_BYTES]
                pos = skip_headers(src, pos, end, headers_here, totals)
                if not keep:
                    totals[HEADERS] = before
                    totals[HEADER_KEY_BYTES] = before_keys
                    totals[HEADER_VALUE_BYTES] = before_values
            if pos != end:
                return index + 1
            if keep:
                offsets[row] = offset
                timestamps[row] = base_timestamp if one_time else base_timestamp + timestamp_delta
                key_at[row] = key_pos
                value_at[row] = value_pos
                header_at[row] = headers_pos
                header_count[row] = headers_here
                if key_size < 0:
                    key_length[row] = -1
                else:
                    key_length[row] = key_size
                    key_bytes += key_size
                if value_size < 0:
                    value_length[row] = -1
                else:
                    value_length[row] = value_size
                    value_bytes += value_size
                row += 1
        if pos != body_end:
            return index + 1
        kept[index] = row - first_row
    totals[ROWS] = row
    totals[KEY_BYTES] = key_bytes
    totals[VALUE_BYTES] = value_bytes
    return OK


def headers(
    src, header_at, header_count, rows, list_offsets, list_validity, key_at, key_length, value_at, value_length
):
    """Lay out the headers of rows that `scan` has checked; a row without any is null, as in Spark's Kafka source."""
    found = 0
    nulls = 0
    list_offsets[0] = 0
    for row in range(rows):
        count = header_count[row]
        if count > 0:
            list_validity[row >> 3] |= 1 << (row & 7)
            pos = header_at[row]
            for _ in range(count):
                # The end was checked before: any number beyond it will do.
                length, pos = varint(src, pos, pos + 10)
                key_at[found] = pos
                key_length[found] = length
                pos += length
                length, pos = varint(src, pos, pos + 10)
                value_at[found] = pos
                if length < 0:
                    value_length[found] = -1
                else:
                    value_length[found] = length
                    pos += length
                found += 1
        else:
            nulls += 1
        list_offsets[row + 1] = found
    return nulls


def gather(src, at, length, rows, out_offsets, out, validity):
    """Copy pieces of `src` side by side into an Arrow binary column; the number of nulls, which have length -1."""
    end = 0
    nulls = 0
    out_offsets[0] = 0
    for row in range(rows):
        size = length[row]
        if size < 0:
            nulls += 1
        else:
            validity[row >> 3] |= 1 << (row & 7)
            copy(out, end, src, at[row], size)
            end += size
        out_offsets[row + 1] = end
    return nulls


def is_set(validity, first, row):
    """Whether a row has a value; `first` is -1 when all have one."""
    if first < 0:
        return True
    bit = first + row
    return (validity[bit >> 3] >> (bit & 7)) & 1 != 0


def varint_size(number):
    zigzag = (number << 1) ^ (number >> 63)
    size = 1
    # A zigzag with bit 63 set is negative here: its shift must bring in zeros.
    rest = (zigzag >> 7) & ((1 << 57) - 1)
    while rest:
        rest >>= 7
        size += 1
    return size


def put_varint(out, pos, number):
    zigzag = (number << 1) ^ (number >> 63)
    rest = (zigzag >> 7) & ((1 << 57) - 1)
    low = zigzag & 0x7F
    while rest:
        out[pos] = low | 0x80
        pos += 1
        low = rest & 0x7F
        rest >>= 7
    out[pos] = low
    return pos + 1


def encode(
    rows, row_count, timestamps,
    key_data, key_offsets, key_validity, key_first,
    value_data, value_offsets, value_validity, value_first,
    list_offsets, list_validity, list_first,
    name_data, name_offsets, content_data, content_offsets, content_validity, content_first, has_headers,
    batch_bytes_max, header_room, out, out_size, found, found_max, totals,
):  # fmt: skip
    """Write rows as records, batch after batch, each behind `header_room` free bytes. totals[0]: the batches."""
    batch = -1
    pos = 0
    batch_start = 0
    count = 0
    base_timestamp = 0
    max_timestamp = 0
    for index in range(row_count):
        row = rows[index]
        timestamp = timestamps[row]
        key_size = -1
        if is_set(key_validity, key_first, row):
            key_size = key_offsets[row + 1] - key_offsets[row]
        value_size = -1
        if is_set(value_validity, value_first, row):
            value_size = value_offsets[row + 1] - value_offsets[row]
        header_start = 0
        header_end = 0
        if has_headers and is_set(list_validity, list_first, row):
            header_start = list_offsets[row]
            header_end = list_offsets[row + 1]
        size = 1 + varint_size(key_size) + varint_size(value_size) + varint_size(header_end - header_start)
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        for header in range(header_start, header_end):
            length = name_offsets[header + 1] - name_offsets[header]
            size += varint_size(length) + length
            length = -1
            if is_set(content_validity, content_first, header):
                length = content_offsets[header + 1] - content_offsets[header]
            size += varint_size(length)
            if length > 0:
                size += length
        in_batch = size + varint_size(timestamp - base_timestamp) + varint_size(count)
        if batch < 0 or pos - batch_start + in_batch + varint_size(in_batch) > batch_bytes_max:
            if batch >= 0:
                at = batch * ENCODED_FIELDS
                found[at + 1] = pos
                found[at + 3] = count
                found[at + 4] = base_timestamp
                found[at + 5] = max_timestamp
            batch += 1
            if batch >= found_max:
                return OUT_OF_ROOM
            batch_start = pos
            found[batch * ENCODED_FIELDS] = pos
            found[batch * ENCODED_FIELDS + 2] = index
            pos += header_room
            count = 0
            base_timestamp = timestamp
            max_timestamp = timestamp
            in_batch = size + 2
        if pos + in_batch + 5 > out_size:
            return OUT_OF_ROOM
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        pos = put_varint(out, pos, in_batch)
        out[pos] = 0
        pos = put_varint(out, pos + 1, timestamp - base_timestamp)
        pos = put_varint(out, pos, count)
        pos = put_varint(out, pos, key_size)
        if key_size > 0:
            copy(out, pos, key_data, key_offsets[row], key_size)
            pos += key_size
        pos = put_varint(out, pos, value_size)
        if value_size > 0:
            copy(out, pos, value_data, value_offsets[row], value_size)
            pos += value_size
        pos = put_varint(out, pos, header_end - header_start)
        for header in range(header_start, header_end):
            start = name_offsets[header]
            length = name_offsets[header + 1] - start
            pos = put_varint(out, pos, length)
            if length > 0:
                copy(out, pos, name_data, start, length)
                pos += length
            length = -1
            start = content_offsets[header]
            if is_set(content_validity, content_first, header):
                length = content_offsets[header + 1] - start
            pos = put_varint(out, pos, length)
            if length > 0:
                copy(out, pos, content_data, start, length)
                pos += length
        count += 1
    if batch >= 0:
        at = batch * ENCODED_FIELDS
        found[at + 1] = pos
        found[at + 3] = count
        found[at + 4] = base_timestamp
        found[at + 5] = max_timestamp
    totals[0] = batch + 1
    return OK


def partition(key_data, key_offsets, key_validity, key_first, rows, partitions, out):
    """The partition of each key by Kafka's own hash, murmur2; -1 where there is no key."""
    for row in range(rows):
        if not is_set(key_validity, key_first, row):
            out[row] = -1
            continue
        pos = key_offsets[row]
        end = key_offsets[row + 1]
        mixed = 0x9747B28C ^ (end - pos)
        while end - pos >= 4:
            word = key_data[pos] | key_data[pos + 1] << 8 | key_data[pos + 2] << 16 | key_data[pos + 3] << 24
            word = word * 0x5BD1E995 & 0xFFFFFFFF
            word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
            mixed = (mixed * 0x5BD1E995 & 0xFFFFFFFF) ^ word
            pos += 4
        if pos < end:
            shift = 0
            while pos < end:
                mixed ^= key_data[pos] << shift
                shift += 8
                pos += 1
            mixed = mixed * 0x5BD1E995 & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
        mixed ^= mixed >> 15
        out[row] = (mixed & 0x7FFFFFFF) % partitions
    return OK
