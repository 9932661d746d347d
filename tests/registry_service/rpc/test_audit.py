"""The log says what an admin's RPC was about and what it changed, and holds no secret and no definition."""

import json

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from naru.v1 import accounts_pb2, registry_pb2
from registry_service.rpc.audit import outcome_of, subject_of

ACCOUNT = accounts_pb2.Account
CHANGE = registry_pb2.ApplyManifestResponse.Change
SECRET = "nrcs_" + "s" * 49


@pytest.mark.parametrize(
    ("request_", "facts"),
    [
        (accounts_pb2.GetAccountRequest(client_id="nrci_a"), {"client_id": "nrci_a"}),
        (
            accounts_pb2.RotateSecretRequest(client_id="nrci_a", revoke_others=True),
            {"client_id": "nrci_a", "revoke_others": True},
        ),
        (
            accounts_pb2.UpdateAccountRequest(
                account=ACCOUNT(client_id="nrci_a", plan="pro", state=ACCOUNT.SUSPENDED, display_name="홍길동"),
                update_mask=FieldMask(paths=["plan", "state", "display_name"]),
            ),
            {"client_id": "nrci_a", "changes": ["plan=pro", "state=SUSPENDED", "display_name"]},
        ),
        (accounts_pb2.CreateAccountRequest(display_name="홍길동", plan="pro"), {"plan": "pro"}),
        (
            registry_pb2.ActivateToolVersionRequest(tool="t", version="1.0.0", keep_others_active=True),
            {"tool": "t", "version": "1.0.0", "keep_others_active": True},
        ),
        (
            registry_pb2.CreateToolVersionRequest(tool="t", version="1.0.0", definition=b"secret"),
            {"tool": "t", "version": "1.0.0"},
        ),
        (registry_pb2.ApplyManifestRequest(manifest=b"secret", validate_only=True), {"validate_only": True}),
        (registry_pb2.DeleteToolRequest(name="t" * 200), {"name": "t" * 128}),
        (registry_pb2.ListToolsRequest(page_token="x"), {}),
        ("what a generator of requests is", {}),
    ],
)
def test_names_and_switches_are_logged(request_, facts):
    assert subject_of(request_) == facts


@pytest.mark.parametrize("message", [accounts_pb2.GetAccountRequest, accounts_pb2.RotateSecretRequest])
@pytest.mark.parametrize("given", [SECRET, f"x{SECRET}", "password"])
def test_what_is_no_client_id_is_not_logged_as_one(message, given):
    assert subject_of(message(client_id=given)) == {"client_id": "…"}


def test_a_secret_in_the_place_of_a_name_is_not_logged():
    assert subject_of(registry_pb2.GetToolRequest(name=SECRET)) == {"name": "…"}


def test_an_update_with_an_odd_state_and_endless_fields_is_logged_in_short():
    facts = subject_of(
        accounts_pb2.UpdateAccountRequest(
            account=ACCOUNT(state=99),  # type: ignore[arg-type]
            update_mask=FieldMask(paths=["state", *("x" * 300 for _ in range(50))]),
        )
    )
    assert facts["changes"][0] == "state=99"
    assert len(json.dumps(facts)) < 4000


def test_the_secret_of_an_answer_is_not_logged():
    account = ACCOUNT(client_id="nrci_a", secrets=[ACCOUNT.Secret(id="s1"), ACCOUNT.Secret(id="s2")])
    created = outcome_of(accounts_pb2.CreateAccountResponse(account=account, secret=SECRET))
    assert created == {"client_id": "nrci_a", "secret_id": "s2"}
    assert outcome_of(accounts_pb2.RotateSecretResponse(account=account, secret=SECRET)) == {"secret_id": "s2"}
    assert outcome_of(account) == {}


def test_the_versions_that_a_manifest_changed_are_logged():
    answer = registry_pb2.ApplyManifestResponse(
        changes=[
            CHANGE(tool="a", version="1.0.0", action=CHANGE.UNCHANGED),
            CHANGE(tool="b", version="2.0.0", action=CHANGE.CREATED_AND_ACTIVATED),
            *(CHANGE(tool="c", version=f"{number}.0.0", action=CHANGE.CREATED) for number in range(25)),
        ]
    )
    facts = outcome_of(answer)
    assert facts["changes"][:2] == ["b 2.0.0 CREATED_AND_ACTIVATED", "c 0.0.0 CREATED"]
    assert (len(facts["changes"]), facts["more_changes"]) == (20, 6)
    assert outcome_of(registry_pb2.ApplyManifestResponse(faults=[registry_pb2.ApplyManifestResponse.Fault()])) == {
        "changes": [],
        "faults": 1,
    }
