"""The answer that says one error of all that a request asks for, for any API: the response's own fields say where an
error can stand, and the request names the topics, partitions or groups."""

from collections.abc import Sequence
from typing import Any

from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import Api, ApiKey
from headrace.protocol.schema import Field, StructSpec

ERRORS = frozenset({"error_code", "partition_error_code"})
SAME = {
    "partition_index": ("partition", "index"),
    "partition": ("partition_index", "index"),
    "index": ("partition_index", "partition"),
    "topic": ("name", "topic_name"),
    "name": ("topic", "topic_name"),
}
"""Other names that requests have for what a response calls so."""
NOT_ROWS = frozenset({"port", "node_id", "host", "metadata", "leader_epoch", "committed_leader_epoch"})
"""Numbers and texts that tell no rows apart."""
NOT_KNOWN = {
    "base_offset": -1, "offset": -1, "timestamp": -1, "committed_offset": -1, "high_watermark": -1, "node_id": -1,
    "producer_id": -1, "producer_epoch": -1, "generation_id": -1, "member_epoch": -1,
}  # fmt: skip
"""What an answer says of what it does not know."""


def error_answer(api: Api, version: int, message: Any, error: Err) -> Any:
    """The response to `message` that says `error` wherever this version can."""
    answer = _mirrored(api.response.root, version, message, error)
    if api.key == ApiKey.FETCH:
        answer.error_code = 0  # of the session; partitions have their own
    return answer


def lost_session() -> Any:
    """To a Fetch that says only what has changed: its client then names all partitions again."""
    return m.FetchResponse(error_code=Err.FETCH_SESSION_ID_NOT_FOUND)


def with_topic_errors(answer: m.MetadataResponse, error: Err) -> m.MetadataResponse:
    """Metadata as it is, but for the topics: without brokers a client would have nobody left to ask."""
    for topic in answer.topics:
        topic.error_code = error
        topic.partitions = []
    return answer


def _mirrored(spec: StructSpec, version: int, asked: Any, error: Err) -> Any:
    found = spec.cls()
    is_plain = isinstance(asked, int | str | bytes)
    for field in spec.fields:
        if version not in field.versions:
            continue
        if field.name in ERRORS:
            setattr(found, field.name, error)
        elif field.name == "error_message":
            found.error_message = f"{error.name}, injected by a test"
        elif field.element == "records":
            setattr(found, field.name, b"")
        elif field.is_array:
            if field.struct is not None and _has_error(field.struct):
                rows = [] if is_plain else _rows(asked, field)
                setattr(found, field.name, [_mirrored(field.struct, version, row, error) for row in rows])
        elif field.struct is None:
            _copy(found, field, asked, is_plain)
    return found


def _copy(found: Any, field: Field, asked: Any, is_plain: bool) -> None:
    """A field of the same meaning, if the request has one."""
    if is_plain:
        # A row of plain numbers, names or ids: the field of that type says which row it is.
        kind = "string" if isinstance(asked, str) else "uuid" if isinstance(asked, bytes) else "int32"
        if field.element == kind and field.name not in NOT_ROWS:
            setattr(found, field.name, asked)
        return
    for name in (field.name, *SAME.get(field.name, ())):
        if getattr(asked, name, None) is not None:
            setattr(found, field.name, getattr(asked, name))
            return
    if field.name in NOT_KNOWN:
        setattr(found, field.name, NOT_KNOWN[field.name])


def _rows(asked: Any, field: Field) -> Sequence[Any]:
    """What the request lists, of which the response lists results."""
    values = ((name, getattr(asked, name)) for name in asked.__struct_fields__)
    lists: dict[str, list[Any]] = {name: value for name, value in values if isinstance(value, list) and value}
    return lists.get(field.name) or next(iter(lists.values()), [])


def _has_error(spec: StructSpec) -> bool:
    return any(field.name in ERRORS or (field.struct is not None and _has_error(field.struct)) for field in spec.fields)
