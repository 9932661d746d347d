"""Decides who may call which method, by the tokens that come along."""

import hmac
from collections.abc import Mapping
from enum import Enum, auto

from naru.v1 import wire
from registry_service.errors import TokenInvalidError
from registry_service.identity.caller import Caller
from registry_service.identity.credentials import parse_basic


class Policy(Enum):
    """Tells who may call a method.

    OPEN: everybody. TOKEN: who has the service token or the admin token. ADMIN: who has the admin token.
    ACCOUNT: as TOKEN, for an account whose credential comes along. EITHER: as ACCOUNT or as ADMIN.
    """

    OPEN = auto()
    TOKEN = auto()
    ADMIN = auto()
    ACCOUNT = auto()
    EITHER = auto()


# A method that is named neither here nor by its service is for the admin.
_POLICIES = {
    "/naru.v1.Registry/ListCatalog": Policy.ACCOUNT,
    "/naru.v1.Accounts/Authenticate": Policy.ACCOUNT,
    "/naru.v1.Accounts/GetUsage": Policy.EITHER,
    "/naru.v1.Execution/CallTool": Policy.ACCOUNT,
    "/naru.v1.Execution/GetCall": Policy.EITHER,
    "/grpc.health.v1.Health": Policy.OPEN,
    "/grpc.reflection.v1alpha.ServerReflection": Policy.TOKEN,
}


def policy_of(method: str) -> Policy:
    """`method` is a full name, `/package.Service/Method`."""
    return _POLICIES.get(method) or _POLICIES.get(method.rpartition("/")[0], Policy.ADMIN)


class Tokens:
    """Checks the tokens of the port. `service` is None where TLS alone guards it."""

    def __init__(self, admin: str, service: str | None) -> None:
        self._admin = admin.encode()
        self._service = None if service is None else service.encode()

    def caller(self, policy: Policy, metadata: Mapping[str, str]) -> Caller:
        """Raises TokenInvalidError, and UnauthenticatedError for a credential that cannot be read."""
        get = metadata.get
        admin = self._is_admin(get(wire.ADMIN_TOKEN_KEY, ""))
        if policy is Policy.ADMIN and not admin:
            raise TokenInvalidError(f"the admin token is absent or wrong: {wire.ADMIN_TOKEN_KEY}")
        if policy is not Policy.OPEN and not admin and not self._is_service(get(wire.SERVICE_TOKEN_KEY, "")):
            raise TokenInvalidError(f"the service token is absent or wrong: {wire.SERVICE_TOKEN_KEY}")
        credential = None
        authorization = get(wire.AUTHORIZATION_KEY, "")
        if authorization and (policy is Policy.ACCOUNT or policy is Policy.EITHER):
            credential = parse_basic(authorization)
        return Caller(
            admin,
            credential,
            get(wire.REQUEST_ID_KEY, ""),
            get(wire.TRACEPARENT_KEY, ""),
            get(wire.TRACESTATE_KEY, ""),
        )

    def _is_service(self, token: str) -> bool:
        return self._service is None or hmac.compare_digest(token.encode(), self._service)

    def _is_admin(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._admin)
