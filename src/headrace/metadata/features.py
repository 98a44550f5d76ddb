"""Finalizing feature levels: UpdateFeatures v0-2.

v1 replaced the allow-downgrade flag by an upgrade type and added validate-only; v2 answers with one error for all.
`kafka-features upgrade --release-version` asks for all features of a release at once. So levels are kept also for those
that this build does not serve: no client hears of these from it, and other nodes of a mixed cluster may serve them.
"""

from headrace.errors import Err, KafkaError
from headrace.metadata.configs import forget_eligible
from headrace.metadata.image import BROKER_CONFIG, METADATA_VERSION, Image
from headrace.metadata.outcome import Outcome, check_size
from headrace.metadata.policy import MIN_ISR
from headrace.metadata.records import Record
from headrace.metadata.snapshot import config_record
from headrace.metadata.versions import (
    DEPENDENCIES,
    ELR_VERSION,
    KNOWN_FEATURES,
    KRAFT_VERSION,
    LEVELS,
)
from headrace.protocol import messages as m

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3
NOT_AT_ALL = (0, 0)


def update_features(
    image: Image,
    request: m.UpdateFeaturesRequest,
    version: int,
    min_insync_replicas: int,
    kraft_version: int = 1,
    node_id: int = -1,
) -> Outcome[m.UpdateFeaturesResponse]:
    """All updates or none: the first that is refused decides. The minimum is what the file of this node, `node_id`,
    says.

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
            _check_update(image, name, finalized.get(name, 0), new_level, kinds[name], proposed, node_id)
            if name == ELR_VERSION and new_level and name not in image.features:
                # Replicas that were eligible before this was off may lack what a leader has committed alone since.
                records += one_minimum(image, min_insync_replicas) + forget_eligible(image)
            if name == KRAFT_VERSION:
                records.append((m.NoOpRecord(), 0))  # so that the answer waits for what was written before it
            else:
                records.append((m.FeatureLevelRecord(name=name, feature_level=new_level), 0))
        check_size(len(records))
    except KafkaError as error:
        return Outcome([], refusal(error))
    response = m.UpdateFeaturesResponse(error_message=None)
    if version < 2:
        response.results = [
            m.UpdateFeaturesResponse.UpdatableFeatureResult(feature=name, error_message=None) for name in updates
        ]
    return Outcome([] if request.validate_only else records, response)


def refusal(error: KafkaError) -> m.UpdateFeaturesResponse:
    message = f"The update failed for all features since the following feature had an error: {error.message}"
    return m.UpdateFeaturesResponse(error_code=error.error, error_message=message)


def one_minimum(image: Image, min_insync_replicas: int) -> list[Record]:
    """Before leaders are chosen by it, `min.insync.replicas` is one number that all controllers and brokers agree
    on."""
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
    image: Image, name: str, current: int, new_level: int, kind: int, proposed: dict[str, int], node_id: int
) -> None:
    """In Kafka's words: `kafka-features` prints them."""

    def refuse(reason: str) -> KafkaError:
        return KafkaError(
            Err.INVALID_UPDATE_VERSION, f"Invalid update version {new_level} for feature {name}. {reason}"
        )

    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise refuse("The controller does not support the given upgrade type.")
    if new_level < 0:
        raise refuse("A feature version cannot be less than 0.")
    reason = _unsupported(image, name, new_level, node_id)
    if reason is not None:
        raise refuse(reason)
    if new_level < current and kind == UPGRADE:
        raise refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
            " downgrade."
        )
    if new_level > current and kind != UPGRADE:
        raise refuse("Can't downgrade to a newer version.")
    if name == KRAFT_VERSION and new_level < current:
        # The voters would not go back to the configuration.
        raise refuse("Can't downgrade the version of this feature.")
    if name == METADATA_VERSION and any(LEVELS[step].metadata_changed for step in range(new_level + 1, current + 1)):
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if kind == UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        message = f"Unsupported metadata.version downgrade from {current} to {new_level}. {why}"
        raise KafkaError(Err.INVALID_UPDATE_VERSION, message)
    for other, least in DEPENDENCIES.get((name, new_level), {}).items():
        if proposed.get(other, 0) < least:
            raise refuse(f"{name} could not be set to {new_level} because it depends on {other} level {least}")


def _unsupported(image: Image, name: str, new_level: int, node_id: int) -> str | None:
    supported = [(f"Local controller {node_id}", KNOWN_FEATURES.get(name, NOT_AT_ALL))]
    for kind, nodes in (("Broker", image.brokers), ("Controller", image.controllers)):
        supported += [(f"{kind} {node.id}", node.features.get(name, NOT_AT_ALL)) for node in nodes.values()]
    for who, (low, high) in supported:
        if not low <= new_level <= high:
            return f"{who} only supports versions {low}-{high}" if high else f"{who} does not support this feature."
    return None
