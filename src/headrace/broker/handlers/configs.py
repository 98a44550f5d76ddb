"""DescribeConfigs v1-4 (v1: synonyms, v3: types and documentation), AlterConfigs v0-2, IncrementalAlterConfigs v0-1,
ListConfigResources v0-1 (v0: client metrics only, v1: any type).

Topics' and brokers' overrides are metadata records; a change takes effect at once, when its record is committed.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.cluster.node import Node
from headrace.broker.net.request import Request
from headrace.broker.net.router import Handler
from headrace.config import BrokerConfig, describe
from headrace.config.alter import Resource, alter_loggers
from headrace.errors import Err, KafkaError
from headrace.metadata.image import BROKER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG, TOPIC_CONFIG
from headrace.metadata.names import check_topic_name
from headrace.protocol import messages as m

ROOT = "root"
# Kafka's level names; Python has no FATAL and TRACE of its own.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


LISTED = (TOPIC_CONFIG, BROKER_CONFIG, Resource.BROKER_LOGGER, CLIENT_METRICS_CONFIG, GROUP_CONFIG)


class ConfigHandlers:
    """What is configured, described and changed."""

    def __init__(
        self, node_id: int, node: Node, config: Callable[[], BrokerConfig], forward: Handler, forward_part: Handler
    ) -> None:
        self._node_id = node_id
        self._node = node
        self._config = config
        self._forward = forward
        self._forward_part = forward_part

    def describe_configs(self, request: Request, message: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse:
        R = m.DescribeConfigsResponse
        response = R()
        for resource in message.resources:
            result = R.DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
            try:
                entries = self._entries(resource)
                result.configs = [_encoded(entry, message) for entry in entries]
            except KafkaError as error:
                result.error_code, result.error_message = error.error, error.message
            response.results.append(result)
        return response

    def _entries(self, resource: Any) -> list[describe.Entry]:
        name, asked, image, config = (
            resource.resource_name,
            resource.configuration_keys,
            self._node.image,
            self._config(),
        )
        match resource.resource_type:
            case Resource.TOPIC:
                check_topic_name(name)
                if name not in image.topic_ids:
                    raise KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)
                return describe.describe_topic(image.config(TOPIC_CONFIG, name), config, asked)
            case Resource.BROKER:
                if name == "":
                    return describe.describe_cluster_defaults(config, asked)
                self._require_this_broker(name)
                return describe.describe_broker(config, asked)
            case Resource.BROKER_LOGGER:
                if name == "":
                    raise KafkaError(Err.INVALID_REQUEST, "a broker id must be given for its loggers")
                self._require_this_broker(name)
                return describe.describe_loggers(logger_levels(), asked)
            case Resource.CLIENT_METRICS:
                if name == "":
                    raise KafkaError(Err.INVALID_REQUEST, "a client metrics subscription has a name")
                return describe.describe_client_metrics(image.config(CLIENT_METRICS_CONFIG, name), config, asked)
            case Resource.GROUP:
                if name == "":
                    raise KafkaError(Err.INVALID_REQUEST, "a group has a name")
                return describe.describe_group(image.config(GROUP_CONFIG, name), config, asked)
        raise KafkaError(Err.INVALID_REQUEST, f"resource type {resource.resource_type} has no configuration")

    def _require_this_broker(self, name: str) -> None:
        try:
            asked = int(name)
        except ValueError:
            raise KafkaError(Err.INVALID_REQUEST, f"{name!r} is not a broker id") from None
        if asked != self._node_id:
            raise KafkaError(Err.INVALID_REQUEST, f"this is broker {self._node_id}; ask {asked} itself")

    def _alter_loggers(self, resource: Any, validate_only: bool) -> None:
        self._require_this_broker(resource.resource_name)
        changes = [(change.name, change.config_operation, change.value) for change in resource.configs]
        wanted = alter_loggers(changes, logger_levels().__contains__)
        if not validate_only:
            for name, level in wanted.items():
                target = logging.getLogger(None if name == ROOT else name)
                target.setLevel(LEVELS[level] if level is not None else logging.NOTSET)

    def incremental_alter_configs(
        self, request: Request, message: m.IncrementalAlterConfigsRequest
    ) -> Awaitable[m.IncrementalAlterConfigsResponse]:
        """Loggers belong to this process, all else is for the controller to decide."""

        def answer_here(resource: Any) -> bool:
            if resource.resource_type == Resource.BROKER_LOGGER:
                self._alter_loggers(resource, message.validate_only)
                return True
            return self._is_mine(resource)

        part = m.IncrementalAlterConfigsRequest(validate_only=message.validate_only)
        return self._alter(request, message, part, m.IncrementalAlterConfigsResponse, answer_here)

    def alter_configs(self, request: Request, message: m.AlterConfigsRequest) -> Awaitable[m.AlterConfigsResponse]:
        part = m.AlterConfigsRequest(validate_only=message.validate_only)
        return self._alter(request, message, part, m.AlterConfigsResponse, lambda resource: self._is_mine(resource))

    def _is_mine(self, resource: Any) -> bool:
        """Raises unless a broker's configuration is asked of that broker itself, which alone can check it. Never
        answers."""
        if resource.resource_type == Resource.BROKER and resource.resource_name:
            self._require_this_broker(resource.resource_name)
        return False

    def _alter(
        self, request: Request, message: Any, part: Any, R: Any, answer_here: Callable[[Any], bool]
    ) -> Awaitable[Any]:
        """Answer what can be answered here, and have the controller answer the rest."""
        counts = Counter((resource.resource_type, resource.resource_name) for resource in message.resources)
        answers: dict[int, Any] = {}
        for at, resource in enumerate(message.resources):
            error, text = Err.NONE, None
            try:
                if counts[resource.resource_type, resource.resource_name] > 1:
                    raise KafkaError(Err.INVALID_REQUEST, "the resource appears twice in the request")
                if not answer_here(resource):
                    part.resources.append(resource)
                    continue
            except KafkaError as refused:
                error, text = refused.error, refused.message
            answers[at] = R.AlterConfigsResourceResponse(
                error_code=error,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        if not answers:
            return self._forward(request, message)
        decided = self._forward_part(request, part) if part.resources else None
        return _joined(R, answers, decided, len(message.resources))

    def list_config_resources(
        self, request: Request, message: m.ListConfigResourcesRequest
    ) -> m.ListConfigResourcesResponse:
        R = m.ListConfigResourcesResponse
        if request.version == 0:
            types = {CLIENT_METRICS_CONFIG}
        else:
            types = set(message.resource_types) or set(LISTED)
        if not types <= set(LISTED):
            return R(error_code=Err.UNSUPPORTED_VERSION)
        image = self._node.image
        found: list[tuple[str, int]] = []
        if TOPIC_CONFIG in types:
            found += [(name, TOPIC_CONFIG) for name in sorted(image.topic_ids)]
        for kind in (BROKER_CONFIG, Resource.BROKER_LOGGER):
            if kind in types:
                found += [(str(broker_id), kind) for broker_id in sorted(image.brokers)]
        for kind in (CLIENT_METRICS_CONFIG, GROUP_CONFIG):
            if kind in types:
                found += sorted((name, kind) for resource, name in image.configs if resource == kind)
        return R(config_resources=[R.ConfigResource(resource_name=name, resource_type=kind) for name, kind in found])


def _encoded(entry: describe.Entry, message: m.DescribeConfigsRequest) -> Any:
    R = m.DescribeConfigsResponse
    synonyms = entry.synonyms if message.include_synonyms else ()
    return R.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[R.DescribeConfigsSynonym(s.name, s.value, s.source) for s in synonyms],
        config_type=entry.type,
        documentation=entry.doc if message.include_documentation else None,
    )


# ---- loggers: they belong to the process, nothing is recorded


def logger_levels() -> dict[str, str]:
    """Every logger of the broker and its effective level, in Kafka's words."""
    names = {level: name for name, level in LEVELS.items()}
    loggers = {
        name: known
        for name, known in logging.root.manager.loggerDict.items()
        if name.startswith("headrace") and isinstance(known, logging.Logger)
    }
    loggers[ROOT] = logging.getLogger()
    return {name: names.get(one.getEffectiveLevel(), "INFO") for name, one in sorted(loggers.items())}


async def _joined(R: Any, answers: dict[int, Any], decided: Awaitable[Any] | None, count: int) -> Any:
    """All answers in the order in which they were asked for."""
    rest = iter((await decided).responses if decided is not None else ())
    return R(responses=[answers[at] if at in answers else next(rest) for at in range(count)])
