"""Client quotas: AlterClientQuotas v0-1 and DescribeClientQuotas v0-1."""

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

from headrace.errors import Err, KafkaError
from headrace.metadata.delta import quota_entity
from headrace.metadata.image import Image, QuotaEntity
from headrace.metadata.outcome import Outcome, check_size
from headrace.metadata.records import Record
from headrace.protocol import messages as m

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

_INT = (1 << 31) - 1
_LONG = (1 << 63) - 1
_ANY: int | None = None

# The largest whole number each quota takes, or None for any positive number.
_CLIENT_KEYS: Mapping[str, int | None] = {
    "producer_byte_rate": _LONG,
    "consumer_byte_rate": _LONG,
    "request_percentage": _ANY,
    "controller_mutation_rate": _ANY,
}
_IP_KEYS: Mapping[str, int | None] = {"connection_creation_rate": _INT}

MATCH_EXACT = 0
MATCH_DEFAULT = 1
MATCH_SPECIFIED = 2


def is_ip_literal(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


# --- alter ------------------------------------------------------------------------------------------------------------


def alter_client_quotas(
    image: Image,
    request: m.AlterClientQuotasRequest,
    resolvable: Callable[[str], bool] = is_ip_literal,
) -> Outcome[m.AlterClientQuotasResponse]:
    """`resolvable` says whether a quota's ip is an address or a host that has one."""
    records: list[Record] = []
    entries: list[Any] = []
    seen: set[QuotaEntity] = set()
    for entry in request.entries:
        error, message = Err.NONE, None
        try:
            entity = _entity(entry, resolvable)
            if entity in seen:
                raise KafkaError(Err.INVALID_REQUEST, "the entity appears twice in the request")
            seen.add(entity)
            records += _alter_entity(image, entity, entry.ops)
        except KafkaError as refused:
            error, message = refused.error, refused.message
        entries.append(
            m.AlterClientQuotasResponse.EntryData(
                error_code=error,
                error_message=message,
                entity=[
                    m.AlterClientQuotasResponse.EntityData(entity_type=e.entity_type, entity_name=e.entity_name)
                    for e in entry.entity
                ],
            )
        )
    check_size(len(records))
    response = m.AlterClientQuotasResponse(entries=entries)
    return Outcome([] if request.validate_only else records, response)


def _entity(entry: Any, resolvable: Callable[[str], bool]) -> QuotaEntity:
    parts: dict[str, str | None] = {}
    for part in entry.entity:
        if part.entity_type in parts:
            raise KafkaError(Err.INVALID_REQUEST, f"the entity has two parts of type {part.entity_type}")
        if part.entity_type not in (USER, CLIENT_ID, IP):
            raise KafkaError(Err.INVALID_REQUEST, f"unknown client quota entity type {part.entity_type}")
        if part.entity_name == "":
            raise KafkaError(Err.INVALID_REQUEST, f"an empty {part.entity_type} is not supported")
        parts[part.entity_type] = part.entity_name
    if not parts:
        raise KafkaError(Err.INVALID_REQUEST, "the client quota entity is empty")
    if IP in parts:
        if len(parts) > 1:
            raise KafkaError(Err.INVALID_REQUEST, "an ip quota cannot be combined with user or client-id")
        ip = parts[IP]
        if ip is not None and not resolvable(ip):
            raise KafkaError(Err.INVALID_REQUEST, f"{ip} is no IP address and no host that has one")
    return quota_entity(parts.items())


def _alter_entity(image: Image, entity: QuotaEntity, ops: list[Any]) -> list[Record]:
    keys = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    current: Mapping[str, float] = image.quotas.get(entity, {})
    if len({op.key for op in ops}) != len(ops):
        raise KafkaError(Err.INVALID_REQUEST, "a quota is given twice for one entity")
    records: list[Record] = []
    for op in ops:
        if op.remove:
            if op.key in current:
                records.append(_record(entity, op.key, 0.0, remove=True))
            continue
        _check_value(keys, op.key, op.value)
        if current.get(op.key) != op.value:
            records.append(_record(entity, op.key, op.value, remove=False))
    return records


def _record(entity: QuotaEntity, key: str, value: float, *, remove: bool) -> Record:
    data = [m.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return m.ClientQuotaRecord(entity=data, key=key, value=value, remove=remove), 0


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise KafkaError(Err.INVALID_REQUEST, f"{key} is no quota of this kind of entity")
    if value <= 0:
        raise KafkaError(Err.INVALID_REQUEST, f"quota {key} must be above 0")
    largest = keys[key]
    if largest is None:
        return
    if value > largest:
        raise KafkaError(Err.INVALID_REQUEST, f"quota {key} is larger than {largest}")
    if abs(value % 1.0) > 1e-6:
        raise KafkaError(Err.INVALID_REQUEST, f"quota {key} must be a whole number")


# --- describe ---------------------------------------------------------------------------------------------------------


def describe_client_quotas(image: Image, request: m.DescribeClientQuotasRequest) -> m.DescribeClientQuotasResponse:
    exact, kinds = _filter(request.components or [])
    entries = [
        m.DescribeClientQuotasResponse.EntryData(
            entity=[
                m.DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
            ],
            values=[m.DescribeClientQuotasResponse.ValueData(key=k, value=v) for k, v in sorted(quotas.items())],
        )
        for entity, quotas in image.quotas.items()
        if _matches(dict(entity), exact, kinds, strict=request.strict)
    ]
    return m.DescribeClientQuotasResponse(entries=entries)


def _filter(components: list[Any]) -> tuple[dict[str, str | None], set[str]]:
    exact: dict[str, str | None] = {}
    kinds: set[str] = set()
    for part in components:
        kind = part.entity_type
        if not kind:
            raise KafkaError(Err.INVALID_REQUEST, "the filter has an empty entity type")
        if kind in exact or kind in kinds:
            raise KafkaError(Err.INVALID_REQUEST, f"the filter names the entity type {kind} twice")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(Err.UNSUPPORTED_VERSION, f"unknown client quota entity type {kind}")
        if part.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED):
            raise KafkaError(Err.INVALID_REQUEST, f"unknown match type {part.match_type}")
        if (part.match_type == MATCH_EXACT) != (part.match is not None):
            raise KafkaError(Err.INVALID_REQUEST, "an exact match needs a name, and only that has one")
        if part.match_type == MATCH_SPECIFIED:
            kinds.add(kind)
        else:
            exact[kind] = part.match
    asked = kinds | exact.keys()
    if IP in asked and len(asked) > 1:
        raise KafkaError(Err.INVALID_REQUEST, "an ip filter cannot be combined with user or client-id")
    return exact, kinds


def _matches(entity: dict[str, str | None], exact: dict[str, str | None], kinds: set[str], *, strict: bool) -> bool:
    if strict and len(entity) != len(exact) + len(kinds):
        return False
    return all(kind in entity and entity[kind] == name for kind, name in exact.items()) and kinds <= entity.keys()
