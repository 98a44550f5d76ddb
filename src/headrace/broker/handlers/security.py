"""What is asked about access: who may do what, who has a password, and tokens that stand for one.

There is no authorizer and nobody logs in, so these are the answers of a Kafka whose security is off. DescribeAcls,
CreateAcls, DeleteAcls v1-3. CreateDelegationToken v1-3 (v3: for another owner), RenewDelegationToken v1-2,
ExpireDelegationToken v1-2, DescribeDelegationToken v1-3. DescribeUserScramCredentials v0.
"""

from collections import Counter
from typing import Any

from headrace.broker.cluster.node import Node
from headrace.broker.net.request import Request
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.primitives import ProtocolError

UNKNOWN = 0
NOBODY_DECIDES = "No Authorizer is configured."
ANYBODY = "User", "ANONYMOUS"


class SecurityHandlers:
    """Of a cluster where anybody may do everything."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def describe_acls(self, request: Request, message: m.DescribeAclsRequest) -> m.DescribeAclsResponse:
        _of_known_kinds(
            message.resource_type_filter, message.pattern_type_filter, message.operation, message.permission_type
        )
        return m.DescribeAclsResponse(error_code=Err.SECURITY_DISABLED, error_message=NOBODY_DECIDES)

    def create_acls(self, request: Request, message: m.CreateAclsRequest) -> m.CreateAclsResponse:
        R = m.CreateAclsResponse
        for acl in message.creations:
            _of_known_kinds(acl.resource_type, acl.resource_pattern_type, acl.operation, acl.permission_type)
        refused = R.AclCreationResult(error_code=Err.SECURITY_DISABLED, error_message=NOBODY_DECIDES)
        return R(results=[refused] * len(message.creations))

    def delete_acls(self, request: Request, message: m.DeleteAclsRequest) -> m.DeleteAclsResponse:
        R = m.DeleteAclsResponse
        for acls in message.filters:
            _of_known_kinds(acls.resource_type_filter, acls.pattern_type_filter, acls.operation, acls.permission_type)
        refused = R.DeleteAclsFilterResult(error_code=Err.SECURITY_DISABLED, error_message=NOBODY_DECIDES)
        return R(filter_results=[refused] * len(message.filters))

    def create_token(
        self, request: Request, message: m.CreateDelegationTokenRequest
    ) -> m.CreateDelegationTokenResponse:
        kind, name = message.owner_principal_type, message.owner_principal_name
        owner = (kind, name) if kind and name else ANYBODY
        requester = ANYBODY if request.version >= 3 else ("", "")
        return m.CreateDelegationTokenResponse(
            error_code=Err.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            principal_type=owner[0],
            principal_name=owner[1],
            token_requester_principal_type=requester[0],
            token_requester_principal_name=requester[1],
            issue_timestamp_ms=-1,
            expiry_timestamp_ms=-1,
            max_timestamp_ms=-1,
        )

    def renew_token(self, request: Request, message: m.RenewDelegationTokenRequest) -> m.RenewDelegationTokenResponse:
        return m.RenewDelegationTokenResponse(
            error_code=Err.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
        )

    def expire_token(
        self, request: Request, message: m.ExpireDelegationTokenRequest
    ) -> m.ExpireDelegationTokenResponse:
        return m.ExpireDelegationTokenResponse(
            error_code=Err.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
        )

    def describe_tokens(
        self, request: Request, message: m.DescribeDelegationTokenRequest
    ) -> m.DescribeDelegationTokenResponse:
        return m.DescribeDelegationTokenResponse(error_code=Err.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)

    def describe_user_scram_credentials(
        self, request: Request, message: m.DescribeUserScramCredentialsRequest
    ) -> m.DescribeUserScramCredentialsResponse:
        """Which users have a password, and how it is hashed; never the hash."""
        R = m.DescribeUserScramCredentialsResponse
        credentials: dict[str, list[Any]] = {}
        for (user, mechanism), record in sorted(self._node.image.scrams.items()):
            info = R.CredentialInfo(mechanism=mechanism, iterations=record.iterations)
            credentials.setdefault(user, []).append(info)
        asked = Counter(user.name for user in message.users or ()) or dict.fromkeys(credentials, 1)
        response = R()
        for user, times in asked.items():
            result = R.DescribeUserScramCredentialsResult(user=user, error_message=None)
            if times > 1:
                result.error_code, result.error_message = Err.DUPLICATE_RESOURCE, f"{user} is named twice"
            elif user not in credentials:
                result.error_code, result.error_message = Err.RESOURCE_NOT_FOUND, f"{user} has no credentials"
            else:
                result.credential_infos = credentials[user]
            response.results.append(result)
        return response


def _of_known_kinds(*kinds: int) -> None:
    # Kafka takes such a request for one that cannot be read, and closes the connection.
    if UNKNOWN in kinds:
        raise ProtocolError("asks about access of an unknown kind")
