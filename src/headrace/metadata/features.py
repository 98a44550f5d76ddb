"""Finalizing feature levels: UpdateFeatures v0-2.

v1 replaced the allow-downgrade flag by an upgrade type and added validate-only; v2 answers with one error for all.
"""

from headrace.errors import Err, KafkaError
from headrace.metadata.image import BROKER_CONFIG, METADATA_VERSION, METADATA_VERSION_MIN, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.policy import MIN_ISR
from headrace.metadata.records import Record
from headrace.metadata.snapshot import config_record
from headrace.metadata.versions import (
    DEPENDENCIES,
    ELR_VERSION,
    KNOWN_FEATURES,
    KRAFT_VERSION,
    LEVELS,
    SERVED_FEATURES,
)
from headrace.protocol import messages as m

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


def update_features(
    image: Image, request: m.UpdateFeaturesRequest, version: int, min_insync_replicas: int, kraft_version: int = 1
) -> Outcome[m.UpdateFeaturesResponse]:
    """All updates or none: the first that is refused decides. The minimum is what this node's own file says.

    `kraft_version` is kept by the quorum, which is asked to raise it before this; here it is only looked at.
    """
    updates = {}
    kinds = {}
    for update in request.feature_updates:
        updates[update.feature] = update.max_version_level
        kinds[update.feature] = (
            update.upgrade_type if version > 0 else SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
        )
    finalized = {METADATA_VERSION: image.metadata_version, **image.features, KRAFT_VERSION: kraft_version}
    proposed = {**finalized, **updates}
    records: list[Record] = []
    try:
        for name, new_level in updates.items():
            _check_update(image, name, finalized.get(name, 0), new_level, kinds[name], proposed)
            if name == ELR_VERSION and new_level and name not in image.features:
                records += one_minimum(image, min_insync_replicas)
            if name == KRAFT_VERSION:
                records.append((m.NoOpRecord(), 0))  # so that the answer waits for what was written before it
            else:
                records.append((m.FeatureLevelRecord(name=name, feature_level=new_level), 0))
    except KafkaError as error:
        response = m.UpdateFeaturesResponse(error_code=error.error, error_message=error.message)
        return Outcome([], response)
    response = m.UpdateFeaturesResponse(error_message=None)
    if version < 2:
        response.results = [
            m.UpdateFeaturesResponse.UpdatableFeatureResult(feature=name, error_message=None)
            for name in updates
        ]
    return Outcome([] if request.validate_only else records, response)


def one_minimum(image: Image, min_insync_replicas: int) -> list[Record]:
    """Before leaders are chosen by it, `min.insync.replicas` is one number that all controllers and brokers agree on."""
    records: list[Record] = []
    if MIN_ISR not in image.config(BROKER_CONFIG, ""):
        records.append(config_record(BROKER_CONFIG, "", MIN_ISR, str(min_insync_replicas)))
    for (kind, name), overrides in sorted(image.configs.items()):
        if kind == BROKER_CONFIG and name and MIN_ISR in overrides:
            records.append(config_record(kind, name, MIN_ISR, None))
    return records


def asked_kraft_version(request: m.UpdateFeaturesRequest) -> int | None:
    levels = [update.max_version_level for update in request.feature_updates if update.feature == KRAFT_VERSION]
    return levels[-1] if levels else None


def _check_update(
    image: Image, name: str, current: int, new_level: int, kind: int, proposed: dict[str, int]
) -> None:
    def refuse(reason: str) -> KafkaError:
        return KafkaError(Err.INVALID_UPDATE_VERSION, f"{name} cannot be set to {new_level}: {reason}")

    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise refuse(f"upgrade type {kind} is unknown")
    if new_level < 0:
        raise refuse("a level is not negative")
    reason = _unsupported(image, name, new_level)
    if reason is not None:
        raise refuse(reason)
    if new_level < current and kind == UPGRADE:
        raise refuse(f"it is at {current}, and a downgrade has to be asked for as such")
    if new_level > current and kind != UPGRADE:
        raise refuse(f"it is at {current}, so this is no downgrade")
    if name == KRAFT_VERSION and new_level < current:
        raise refuse(f"it is at {current}, and the voters would not go back to the configuration")
    if name == METADATA_VERSION:
        if new_level < METADATA_VERSION_MIN:
            raise refuse(f"the lowest level is {METADATA_VERSION_MIN}")
        lossy = any(LEVELS[step].metadata_changed for step in range(new_level + 1, current + 1))
        if new_level < current and lossy:
            raise refuse("metadata written since could not be expressed and would be lost")
    for other, least in DEPENDENCIES.get((name, new_level), {}).items():
        if proposed.get(other, 0) < least:
            raise refuse(f"it needs {other} at {least} or above")


def _unsupported(image: Image, name: str, new_level: int) -> str | None:
    if new_level == 0 and name in KNOWN_FEATURES and name not in SERVED_FEATURES:
        return None  # switching off what an Apache Kafka controller had switched on
    if name not in SERVED_FEATURES:
        return "this controller does not change it"
    low, high = SERVED_FEATURES[name]
    if new_level and not low <= new_level <= high:
        return f"this controller supports {low} to {high}"
    for kind, nodes in (("broker", image.brokers), ("controller", image.controllers)):
        for node in nodes.values():
            low, high = node.features.get(name, (0, 0))
            if new_level and not low <= new_level <= high:
                return f"{kind} {node.id} supports {low} to {high}"
    return None
