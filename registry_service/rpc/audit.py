"""Logs an admin's RPC: what it was about and what it changed, never a secret or a definition."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from naru.v1 import accounts_pb2, registry_pb2
from registry_service.identity.credentials import CLIENT_ID_PREFIX, SECRET_PREFIX

_NAMES = ("client_id", "tool", "name", "version", "secret_id", "plan", "month")
_NAME_LIMIT = 128
_MAX_CHANGES = 20


def subject_of(request: object) -> dict[str, Any]:
    """Returns the names in a request, the switches that are on, and what an update changes."""
    if isinstance(request, accounts_pb2.UpdateAccountRequest):
        return {"client_id": _name("client_id", request.account.client_id), "changes": _updates(request)}
    if not isinstance(request, Message):
        return {}
    facts: dict[str, Any] = {}
    for field, value in request.ListFields():
        if field.type == FieldDescriptor.TYPE_BOOL:
            facts[field.name] = True
        elif field.name in _NAMES:
            facts[field.name] = _name(field.name, value)
    return facts


def outcome_of(answer: object) -> dict[str, Any]:
    """Returns what an answer says of what was done: the account, or the versions that changed."""
    if isinstance(answer, accounts_pb2.CreateAccountResponse):
        return {"client_id": answer.account.client_id, "secret_id": answer.account.secrets[-1].id}
    if isinstance(answer, accounts_pb2.RotateSecretResponse):
        return {"secret_id": answer.account.secrets[-1].id}
    if isinstance(answer, registry_pb2.ApplyManifestResponse):
        return _applied(answer)
    return {}


def _name(field: str, value: str) -> str:
    """Returns the name, unless something else was given for one, which may be a secret."""
    is_name = value.startswith(CLIENT_ID_PREFIX) if field == "client_id" else SECRET_PREFIX not in value
    return value[:_NAME_LIMIT] if is_name else "…"


def _updates(request: accounts_pb2.UpdateAccountRequest) -> list[str]:
    """Lists the fields that change, with the new value where it isn't a text for people."""
    account = request.account
    values = {"plan": account.plan[:_NAME_LIMIT], "state": _state(account.state)}
    changed = request.update_mask.paths[:_MAX_CHANGES]
    return [f"{path}={values[path]}" if path in values else path[:_NAME_LIMIT] for path in changed]


def _state(state: int) -> str:
    known = state in accounts_pb2.Account.State.values()
    return accounts_pb2.Account.State.Name(state) if known else str(state)  # type: ignore[arg-type]


def _applied(answer: registry_pb2.ApplyManifestResponse) -> dict[str, Any]:
    action = registry_pb2.ApplyManifestResponse.Change.Action
    changes = [
        f"{change.tool} {change.version} {action.Name(change.action)}"
        for change in answer.changes
        if change.action != action.UNCHANGED
    ]
    facts: dict[str, Any] = {"changes": changes[:_MAX_CHANGES]}
    if len(changes) > _MAX_CHANGES:
        facts["more_changes"] = len(changes) - _MAX_CHANGES
    if answer.faults:
        facts["faults"] = len(answer.faults)
    return facts
