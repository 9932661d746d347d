"""Speaks the admin side of the contract: plain blocking gRPC calls with bounded waits."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import yaml

from naru.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    wire,
)

CALL_SECONDS = 10.0

Request = TypeVar("Request")
Response = TypeVar("Response")


class Credential(NamedTuple):
    """Holds an account's id and secret, and the forms in which clients send them."""

    client_id: str
    secret: str

    @property
    def encoded(self) -> str:
        """Returns `base64(id:secret)`: the value behind `Basic` and `Bearer`."""
        return base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()

    @property
    def basic(self) -> str:
        return f"Basic {self.encoded}"

    @property
    def bearer(self) -> str:
        return f"Bearer {self.encoded}"


def read_manifest(path: Path, **values: str) -> dict[str, Any]:
    """Reads a YAML manifest; each `${NAME}` becomes the value of that name."""
    text = path.read_text()
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    manifest: dict[str, Any] = yaml.safe_load(text)
    return manifest


class Admin:
    """Talks to one registry service with the admin token. Failures are grpc.RpcError, unless said otherwise."""

    def __init__(self, address: str, token: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._metadata = ((wire.ADMIN_TOKEN_KEY, token),)
        self.registry = registry_pb2_grpc.RegistryStub(self._channel)
        self.accounts = accounts_pb2_grpc.AccountsStub(self._channel)
        self.execution = execution_pb2_grpc.ExecutionStub(self._channel)

    def call(self, method: Callable[..., Response], request: Request) -> Response:
        """Calls any unary method of the three stubs with the admin token and a time limit."""
        return method(request, metadata=self._metadata, timeout=CALL_SECONDS, wait_for_ready=True)

    def apply(self, manifest: dict[str, Any]) -> Sequence[registry_pb2.ApplyManifestResponse.Change]:
        """Applies a manifest. Raises ValueError with the faults, if there are any."""
        request = registry_pb2.ApplyManifestRequest(manifest=json.dumps(manifest).encode())
        response = self.call(self.registry.ApplyManifest, request)
        if response.faults:
            raise ValueError(str(response.faults))
        return response.changes

    def activate(self, tool: str, version: str, *, keep_others_active: bool = False) -> registry_pb2.Tool:
        request = registry_pb2.ActivateToolVersionRequest(
            tool=tool, version=version, keep_others_active=keep_others_active
        )
        return self.call(self.registry.ActivateToolVersion, request)

    def deactivate(self, tool: str, version: str) -> registry_pb2.Tool:
        request = registry_pb2.DeactivateToolVersionRequest(tool=tool, version=version)
        return self.call(self.registry.DeactivateToolVersion, request)

    def create_account(self, display_name: str = "Test", plan: str = "standard") -> Credential:
        request = accounts_pb2.CreateAccountRequest(display_name=display_name, plan=plan)
        response = self.call(self.accounts.CreateAccount, request)
        return Credential(response.account.client_id, response.secret)

    def get_call(self, call_id: str) -> execution_pb2.Call:
        return self.call(self.execution.GetCall, execution_pb2.GetCallRequest(call_id=call_id))

    def usage(self, client_id: str) -> dict[tuple[str, str], int]:
        """Returns the counters of this month and its days, by (lane, period)."""
        response = self.call(self.accounts.GetUsage, accounts_pb2.GetUsageRequest(client_id=client_id))
        return {(counter.lane, counter.period): counter.calls for counter in response.counters}

    def close(self) -> None:
        self._channel.close()
