"""Where everything is, under the chroot: Kafka 3.x's paths, and one node of ours for what Kafka had none for."""

from urllib.parse import quote, unquote

from headrace.metadata.image import BROKER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG, TOPIC_CONFIG

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
FEATURE = "/feature"
PRODUCER_IDS = "/latest_producer_id_block"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN = "/admin/reassign_partitions"
ELECTION = "/admin/preferred_replica_election"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE = f"{CONFIG_CHANGES}/config_change_"
"""ZooKeeper adds a number."""

OURS = "/headrace"
METADATA = f"{OURS}/metadata"
"""How far metadata has come. Written by every change, so that its version counts them."""
CHANGES = f"{OURS}/changes"
"""The last changes as batches of metadata records, by number: brokers follow these instead of reading all again."""
UNFINISHED = f"{OURS}/unfinished"
"""Topics that are being made or deleted by several multis, and so are no part of the metadata."""
MIGRATION = f"{OURS}/migration"
"""Left by a move of the cluster to ZooKeeper: what was copied here, and whether it is whole."""
LEVELS = f"{OURS}/features"
"""Levels of features. Not in Kafka's `/feature`: a broker of Kafka 3.9 ends when it finds one there that it has not."""
BROKERS = f"{OURS}/brokers"
CONTROLLERS = f"{OURS}/controllers"
QUOTAS = f"{OURS}/quotas"
ACLS = f"{OURS}/acls"
SCRAM = f"{OURS}/scram"
TOKENS = f"{OURS}/tokens"

CONFIGS = {
    TOPIC_CONFIG: "/config/topics",
    BROKER_CONFIG: "/config/brokers",
    CLIENT_METRICS_CONFIG: "/config/client-metrics",
    GROUP_CONFIG: "/config/groups",
}
DEFAULT = "<default>"
"""Kafka's name for what holds for all brokers; KRaft calls it by an empty one."""

PERSISTENT = (
    "/cluster", "/consumers", BROKER_IDS, TOPICS, "/brokers/seqid", *CONFIGS.values(), CONFIG_CHANGES,
    "/config/users", "/config/clients", "/config/ips", DELETE_TOPICS, "/isr_change_notification",
    "/log_dir_event_notification", PRODUCER_IDS, CHANGES, UNFINISHED, LEVELS, BROKERS, CONTROLLERS, QUOTAS,
    ACLS, SCRAM, TOKENS,
)  # fmt: skip
"""What has to be there before anything else is written."""


def broker_id(node_id: int) -> str:
    return f"{BROKER_IDS}/{node_id}"


def registration(node_id: int) -> str:
    return f"{BROKERS}/{node_id}"


def controller(node_id: int) -> str:
    return f"{CONTROLLERS}/{node_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}"


def state(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}/state"


def config(resource_type: int, name: str) -> str:
    return f"{CONFIGS[resource_type]}/{escape(name) if name else DEFAULT}"


def config_name(segment: str) -> str:
    return "" if segment == DEFAULT else unescape(segment)


def change(number: int) -> str:
    return f"{CHANGES}/{number:010d}"


def unfinished(name: str) -> str:
    return f"{UNFINISHED}/{name}"


def escape(name: str) -> str:
    """As Kafka sanitizes what people choose freely: percent signs for all that a path may not hold."""
    return quote(name, safe="").replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def unescape(segment: str) -> str:
    return unquote(segment)


def parents(path: str) -> list[str]:
    """From the top, without the path itself."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]
