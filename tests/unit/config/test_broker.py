"""A broker's configuration: layers, names, synonyms, and combinations that cannot work."""

import pytest

from headrace.config import BrokerConfig, ConfigError, parse_properties
from headrace.config.broker import HEADRACE_DEFAULTS, Source, environment_name
from headrace.config.conflicts import warnings
from headrace.config.listeners import Listener
from headrace.config.table import broker_options

# The settings of the server.properties that Apache Kafka ships for a combined node.
KAFKA_SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def load(**settings: str) -> BrokerConfig:
    return BrokerConfig.load({name.replace("_", "."): text for name, text in settings.items()})


def refused(**settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**settings)
    return str(caught.value)


def test_kafkas_own_file_loads_unchanged() -> None:
    config = BrokerConfig.load(parse_properties(KAFKA_SERVER_PROPERTIES))
    assert config.node_id == 1
    assert config.roles == {"broker", "controller"}
    assert config.log_dirs == ["/tmp/kraft-combined-logs"]
    assert config.broker_listeners == (Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),)
    assert config.controller_listeners == (Listener("CONTROLLER", "", 9093, "PLAINTEXT"),)
    assert config.advertised_listeners[0] == Listener("PLAINTEXT", "localhost", 9092, "PLAINTEXT")
    assert config.quorum_bootstrap_servers == [("localhost", 9093)]
    assert config.inter_broker_listener == "PLAINTEXT"


def test_nothing_set_is_a_cluster_of_one() -> None:
    config = BrokerConfig.load()
    assert config.node_id == config["broker.id"] == 1
    assert config.roles == {"broker", "controller"}
    assert config["durability"] == "fsync"
    assert config["record.validation"] == "header"
    assert config.source("log.segment.bytes") is Source.DEFAULT
    assert not config.raw


def test_every_default_can_be_read() -> None:
    config = BrokerConfig.load()
    for name in config:
        config[name]
    assert set(HEADRACE_DEFAULTS) <= set(broker_options())


def test_layers() -> None:
    config = BrokerConfig.load(
        {"num.partitions": "2", "log.dir": "/file", "fetch.max.bytes": "2000"},
        {
            "HEADRACE_LOG_DIR": "/env",
            "HEADRACE_FETCH_MAX_BYTES": "3000",
            "HOME": "/root",
            "HEADRACE_KAFKA_LIBS": "/x",
        },
        {"fetch.max.bytes": "4000"},
    )
    assert (config["num.partitions"], config.source("num.partitions")) == (2, Source.FILE)
    assert (config["log.dir"], config.source("log.dir")) == (["/env"], Source.ENVIRONMENT)
    assert (config["fetch.max.bytes"], config.source("fetch.max.bytes")) == (4000, Source.COMMAND_LINE)
    assert config.raw["fetch.max.bytes"] == "4000"


def test_environment_names_are_one_to_one() -> None:
    assert environment_name("log.segment.bytes") == "HEADRACE_LOG_SEGMENT_BYTES"
    assert len({environment_name(name) for name in broker_options()}) == len(broker_options())


def test_unknown_option_is_named_with_its_likeliest_correction() -> None:
    assert refused(log_segment_byte="5") == "Unknown option log.segment.byte (did you mean log.segment.bytes?)"
    assert refused(zzz="5") == "Unknown option zzz"
    with pytest.raises(ConfigError, match=r"HEADRACE_LOG_SEGMENT_BYTE .did you mean HEADRACE_LOG_SEGMENT_BYTES"):
        BrokerConfig.load({}, {"HEADRACE_LOG_SEGMENT_BYTE": "5"})


def test_values_are_checked_at_load() -> None:
    assert refused(log_segment_bytes="abc") == "log.segment.bytes: 'abc' is not an integer"
    assert "least allowed, 1048576" in refused(log_segment_bytes="5")


def test_listener_and_plugin_options_are_known_by_their_prefix() -> None:
    config = BrokerConfig.load(
        {
            "listener.name.plaintext.max.connections": "5",
            "config.providers.file.param.x": "y",
            "rsm.config.a": "b",
        }
    )
    assert config["listener.name.plaintext.max.connections"] == 5
    with pytest.raises(ConfigError, match="not an integer"):
        BrokerConfig.load({"listener.name.plaintext.max.connections": "x"})
    with pytest.raises(ConfigError, match="Unknown option"):
        BrokerConfig.load({"listener.name.plaintext.nonsense": "x"})


def test_ids_give_each_other() -> None:
    assert load(broker_id="7").node_id == 7
    assert load(node_id="7")["broker.id"] == 7
    assert "differs from node.id" in refused(node_id="7", broker_id="8")


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({}, 168 * 3_600_000),
        ({"log_retention_hours": "1"}, 3_600_000),
        ({"log_retention_hours": "1", "log_retention_minutes": "2"}, 120_000),
        ({"log_retention_hours": "1", "log_retention_minutes": "2", "log_retention_ms": "3"}, 3),
        ({"log_retention_ms": "-1"}, -1),
        ({"log_retention_hours": "-1"}, -1),
        ({"log_retention_minutes": "-5"}, -1),
    ],
)
def test_retention_units(settings: dict[str, str], retention_ms: int) -> None:
    assert load(**settings).log_defaults.retention_ms == retention_ms


def test_other_synonyms() -> None:
    config = load(log_roll_hours="2", log_roll_jitter_hours="1", log_flush_scheduler_interval_ms="9")
    assert config.log_defaults.segment_ms == 7_200_000
    assert config.log_defaults.segment_jitter_ms == 3_600_000
    assert config.log_defaults.flush_ms == 9
    assert load(log_roll_hours="2", log_roll_ms="5").log_defaults.segment_ms == 5
    assert load(log_flush_scheduler_interval_ms="9", log_flush_interval_ms="4").log_defaults.flush_ms == 4
    assert load(log_dir="/a", log_dirs="/b, /c").log_dirs == ["/b", "/c"]
    assert load(log_dir="/a").metadata_log_dir == "/a"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log_retention_ms": "0"}, "log.retention.ms: must be -1"),
        ({"log_roll_ms": "0"}, "log.roll.ms: 0 is below"),
        ({"log_cleaner_threads": "200"}, "log.cleaner.dedupe.buffer.size"),
        (
            {"log_cleaner_min_compaction_lag_ms": "5", "log_cleaner_max_compaction_lag_ms": "4"},
            "min.compaction.lag.ms",
        ),
        ({"replica_fetch_wait_max_ms": "40000"}, "replica.fetch.wait.max.ms"),
        ({"listeners": "PLAINTEXT://:9092,X://:9093"}, "X has no entry in listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://:9092,PLAINTEXT://:9093"}, "PLAINTEXT is used twice"),
        ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:9092"}, "port 9092 is used by"),
        ({"listeners": "9092"}, "not NAME://host:port"),
        ({"listeners": "PLAINTEXT://:99999"}, "not NAME://host:port"),
        ({"listeners": "SSL://:9092"}, "asks for SSL, which is not supported"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect"),
        ({"advertised_listeners": "SSL://a:9092"}, "SSL is not among listeners"),
        ({"listener_security_protocol_map": "A:B"}, "not NAME:PROTOCOL"),
        ({"inter_broker_listener_name": "A", "security_inter_broker_protocol": "PLAINTEXT"}, "not both"),
        ({"process_roles": "broker"}, "must name the controllers"),
        ({"process_roles": "queen"}, "process.roles: 'queen' is not allowed"),
        ({"process_roles": "broker", "node_id": "1", "controller_quorum_voters": "1@h:1"}, "cannot vote"),
        (
            {"process_roles": "controller", "node_id": "2", "controller_quorum_voters": "1@h:1"},
            "is not among them",
        ),
        (
            {"process_roles": "broker,controller", "controller_quorum_voters": "1@h:1"},
            "CONTROLLER is not among listeners",
        ),
        (
            {
                "process_roles": "controller",
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
                "controller_quorum_voters": "1@h:1",
            },
            "only controller listeners",
        ),
        (
            {
                "process_roles": "broker",
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
                "node_id": "2",
                "controller_quorum_voters": "1@h:1",
            },
            "cannot have a controller listener",
        ),
        ({"max_connections_per_ip_overrides": "localhost"}, "not host:count"),
        ({"authorizer_class_name": "org.x.Y"}, "authorizers are not supported"),
        ({"remote_log_storage_system_enable": "true"}, "tiered storage is not supported"),
        ({"group_consumer_session_timeout_ms": "1000"}, "below group.consumer.min.session.timeout.ms, 45000"),
        ({"group_consumer_session_timeout_ms": "60001"}, "above group.consumer.max.session.timeout.ms, 60000"),
        ({"group_consumer_heartbeat_interval_ms": "1000"}, "below group.consumer.min.heartbeat.interval.ms, 5000"),
        ({"group_consumer_assignment_interval_ms": "16000"}, "above group.consumer.max.assignment.interval.ms, 15000"),
        ({"group_consumer_min_session_timeout_ms": "70000"}, "group.consumer.max.session.timeout.ms: 60000 is below"),
        (
            {
                "group_consumer_heartbeat_interval_ms": "5000",
                "group_consumer_session_timeout_ms": "5000",
                "group_consumer_min_session_timeout_ms": "1",
            },
            "group.consumer.heartbeat.interval.ms: must be below group.consumer.session.timeout.ms",
        ),
        (
            {"group_share_delivery_count_limit": "2", "group_share_min_delivery_count_limit": "3"},
            "below group.share.min.delivery.count.limit, 3",
        ),
        ({"group_consumer_assignors": "uniform,org.x.Mine"}, "'org.x.Mine' is none of uniform, range"),
        (
            {"offsets_topic_segment_bytes": "1000"},
            "offsets.topic.segment.bytes: __consumer_offsets could not be created with segment.bytes: '1000'",
        ),
        (
            {"transaction_state_log_segment_bytes": "1048575"},
            "set transaction.state.log.segment.bytes to at least that",
        ),
        ({"share_coordinator_state_topic_segment_bytes": "1"}, "__share_group_state could not be created"),
        ({"offsets_topic_compression_codec": "5"}, "offsets.topic.compression.codec: 5 is no codec"),
        ({"share_coordinator_state_topic_compression_codec": "-1"}, "-1 is no codec"),
        ({"broker_heartbeat_interval_ms": "9000"}, "9000 is not below broker.session.timeout.ms, 9000"),
        (
            {"broker_session_timeout_ms": "500"},
            "set broker.session.timeout.ms to several times broker.heartbeat.interval.ms",
        ),
        ({"group_min_session_timeout_ms": "1800001"}, "above group.max.session.timeout.ms, 1800000"),
        ({"group_coordinator_rebalance_protocols": "consumer"}, "classic is missing"),
        ({"queued_max_request_bytes": "1000"}, "1000 is below socket.request.max.bytes, 104857600"),
        ({"max_connections_per_ip": "0"}, "name who may in max.connections.per.ip.overrides"),
        ({"connections_max_idle_ms": "100"}, "not above connection.failed.authentication.delay.ms, 100"),
        ({"durability": "hope"}, "durability: 'hope' is not allowed; allowed: fsync, replicated"),
    ],
)
def test_combinations_that_cannot_work(settings: dict[str, str], message: str) -> None:
    assert message in refused(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"broker_heartbeat_interval_ms": "4000"},
        {"replica_fetch_wait_max_ms": "20000"},
        {"min_insync_replicas": "2", "default_replication_factor": "1"},
        {"transaction_state_log_replication_factor": "1"},
        {"offsets_topic_replication_factor": "1", "offsets_topic_segment_bytes": "1048576"},
        {"log_segment_bytes": "1048576"},
        {"message_max_bytes": "2000000", "log_segment_bytes": "1048576", "socket_request_max_bytes": "1000"},
        {"replica_fetch_max_bytes": "1", "log_retention_bytes": "1", "connections_max_idle_ms": "-1"},
        {"max_connections_per_ip": "0", "max_connections_per_ip_overrides": "127.0.0.1:5"},
        {"queued_max_request_bytes": "-1", "metadata_log_max_snapshot_interval_ms": "0"},
    ],
)
def test_what_kafka_starts_with_starts_here(settings: dict[str, str]) -> None:
    """With each of these Apache Kafka 4.3.1 starts; a default of ours that is shorter than Kafka's must not come
    between."""
    load(**settings)


def test_half_of_a_pair_counts_on_kafkas_default_of_the_other() -> None:
    assert load(broker_heartbeat_interval_ms="4000")["broker.session.timeout.ms"] == 9000
    assert load(broker_heartbeat_interval_ms="1000")["broker.session.timeout.ms"] == 3000
    assert load(replica_fetch_wait_max_ms="20000")["replica.lag.time.max.ms"] == 30000


def test_what_works_only_in_part_is_said() -> None:
    assert warnings(load(log_segment_bytes="1048576")) == []
    (line,) = warnings(load(message_max_bytes="2000000", log_segment_bytes="1048576"))
    assert "message.max.bytes, 2000000, is above log.segment.bytes, 1048576" in line
    assert "RECORD_LIST_TOO_LARGE" in line
    (line,) = warnings(load(socket_request_max_bytes="1000000"))
    assert "is above socket.request.max.bytes, 1000000" in line
    (line,) = warnings(load(replica_fetch_min_bytes="20", replica_fetch_response_max_bytes="10"))
    assert "replica.fetch.min.bytes, 20, is above replica.fetch.response.max.bytes, 10" in line


def test_the_documents_name_of_an_option_is_taken_for_it() -> None:
    assert load(log_segment_ms="5000").log_defaults.segment_ms == 5000
    assert BrokerConfig.load({}, {"HEADRACE_LOG_SEGMENT_MS": "6000"})["log.roll.ms"] == 6000
    assert load(log_segment_ms="5000", log_roll_ms="7000")["log.roll.ms"] == 7000
    assert BrokerConfig.load({"log.roll.ms": "1"}, {}, {"log.segment.ms": "2"})["log.roll.ms"] == 2


def test_one_port_may_serve_both_ip_versions() -> None:
    config = BrokerConfig.load(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,SIX://[::1]:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT",
        }
    )
    assert config.listeners[1].host == "::1"
    assert str(config.listeners[1]) == "SIX://[::1]:9092"


def test_separate_roles() -> None:
    broker = BrokerConfig.load(
        {"process.roles": "broker", "node.id": "4", "controller.quorum.voters": "1@a:9093,2@[::1]:9094"}
    )
    assert broker.quorum_voters == {1: ("a", 9093), 2: ("::1", 9094)}
    controller = load(
        process_roles="controller",
        node_id="1",
        listeners="CONTROLLER://:9093",
        controller_quorum_voters="1@a:9093",
    )
    assert controller.broker_listeners == ()


def test_limits_for_single_addresses() -> None:
    config = load(max_connections_per_ip_overrides="127.0.0.1:5, ::1:6,[fe80::1]:7")
    assert config.max_connections_per_ip_overrides == {"127.0.0.1": 5, "::1": 6, "fe80::1": 7}


def test_dynamic_overrides_win_and_can_be_taken_back() -> None:
    static = load(message_max_bytes="1000")
    both = static.with_dynamic(
        {"message.max.bytes": "2000", "log.segment.bytes": "2000000"}, {"message.max.bytes": "3000"}
    )
    assert both["message.max.bytes"] == 3000
    assert both.log_defaults.max_message_bytes == 3000
    assert both.log_defaults.segment_bytes == 2_000_000
    assert both.source("message.max.bytes") is Source.DYNAMIC_BROKER
    assert both.source("log.segment.bytes") is Source.DYNAMIC_DEFAULT
    assert both.with_dynamic({}, {})["message.max.bytes"] == 1000
    assert static["message.max.bytes"] == 1000
    assert both.static is static


def test_unusable_dynamic_overrides_are_left_out_and_reported() -> None:
    config = load().with_dynamic({"node.id": "5", "message.max.bytes": "x"}, {"zork": "1"})
    assert config.node_id == 1
    assert config["message.max.bytes"] == 1048588
    assert set(config.ignored) == {"node.id", "message.max.bytes", "zork"}


KAFKA_3_SERVER_PROPERTIES = """
broker.id=3
listeners=PLAINTEXT://10.0.0.3:9092
zookeeper.connect=a:2181,b:2181/kafka
zookeeper.connection.timeout.ms=18000
"""


def test_kafka_3s_file_of_zookeepers_time_loads_unchanged() -> None:
    config = BrokerConfig.load(parse_properties(KAFKA_3_SERVER_PROPERTIES))
    assert config.zookeeper_connect == "a:2181,b:2181/kafka"
    assert config["zookeeper.session.timeout.ms"] == 6_000
    assert config.controller_listeners == (Listener("CONTROLLER", "10.0.0.3", 0, "PLAINTEXT"),)
    assert config.is_broker and config.is_controller


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"zookeeper.connect": ""}, "zookeeper.connect: it is empty; name ZooKeeper's host:port"),
        ({"zookeeper.connect": "a"}, "zookeeper.connect: 'a' is not host:port"),
        ({"zookeeper.connect": "a:1,b:x"}, "zookeeper.connect: 'b:x' is not host:port"),
        ({"zookeeper.connect": "a:1/b/"}, "zookeeper.connect: /b/ is no path for a chroot"),
        ({"controller.quorum.voters": "1@a:9093"}, "controller.quorum.voters: set this or zookeeper.connect, not both"),
        ({"process.roles": "broker"}, "process.roles: with zookeeper.connect every node is broker,controller"),
    ],
)
def test_what_cannot_go_with_zookeeper(more: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BrokerConfig.load({"zookeeper.connect": "a:2181", **more})
