"""ApiVersions v0-4. v3: client software name and version (KIP-511), features. v4: a feature may start at level 0.

The router answers a version that is not served, in v0, with what is.
"""

import re
from collections.abc import Callable, Iterable

from headrace.broker.cluster.node import Node
from headrace.broker.net.request import Request
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import Api

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class VersionHandlers:
    """What a listener serves."""

    def __init__(self, node: Node, apis: Callable[[], Iterable[Api]]) -> None:
        self._node = node
        self._apis = apis

    def api_versions(self, request: Request, message: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
        if request.version >= 3:
            software = (message.client_software_name, message.client_software_version)
            if not all(map(SOFTWARE.fullmatch, software)):
                return m.ApiVersionsResponse(error_code=Err.INVALID_REQUEST)
            request.connection.client_software = software
        response = m.ApiVersionsResponse(
            api_keys=[
                m.ApiVersionsResponse.ApiVersion(
                    api_key=api.key, min_version=api.advertised_min, max_version=api.latest_stable
                )
                for api in self._apis()
            ]
        )
        if request.version >= 3:
            self._features(request.version, response)
        return response

    def _features(self, version: int, response: m.ApiVersionsResponse) -> None:
        image = self._node.image
        for name, (low, high) in sorted(self._node.supported_features.items()):
            # Before v4 clients take a minimum of 0 for a mistake, so such a feature is not shown to them.
            if version >= 4 or low > 0:
                response.supported_features.append(
                    m.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                )
        response.finalized_features_epoch = image.offset
        response.finalized_features = [
            m.ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(self._node.finalized_features().items())
        ]
