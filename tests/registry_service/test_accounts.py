"""The accounts service over a socket, on both databases."""

import asyncio
import base64
import json
import time
from contextlib import asynccontextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import cast
from zoneinfo import ZoneInfo

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc import error_details_pb2, status_pb2
from sqlalchemy import select

from naru.v1 import accounts_pb2 as pb
from naru.v1 import accounts_pb2_grpc
from registry_service.accounts import AccountsServicer
from registry_service.catalog import Catalog
from registry_service.identity.plans import load_plans
from registry_service.rpc.border import Gate, GuardedServer
from registry_service.rpc.pagination import PageTokens
from registry_service.rpc.tokens import Tokens
from registry_service.storage.models import Secret, Usage

ADMIN, SERVICE = "admin-token-of-the-tests", "service-token-of-the-tests"
AS_ADMIN = (("x-naru-admin-token", ADMIN),)
PEPPER = b"pepper-of-the-tests-of-32-bytes!"


class Client:
    """The service's client, as the admin or with an account's credential."""

    def __init__(self, channel):
        self._stub = accounts_pb2_grpc.AccountsStub(channel)

    async def admin(self, method, request):
        return await getattr(self._stub, method)(request, metadata=AS_ADMIN, timeout=10)

    async def account(self, method, request, client_id, secret):
        basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        metadata = (("x-naru-token", SERVICE), ("authorization", f"Basic {basic}"))
        return await getattr(self._stub, method)(request, metadata=metadata, timeout=10)

    async def create(self, display_name="시험", plan="standard"):
        return await self.admin("CreateAccount", pb.CreateAccountRequest(display_name=display_name, plan=plan))

    async def who(self, client_id, secret):
        return await self.account("Authenticate", pb.AuthenticateRequest(), client_id, secret)

    async def update(self, *paths, **fields):
        mask = FieldMask(paths=paths)
        return await self.admin(
            "UpdateAccount", pb.UpdateAccountRequest(account=pb.Account(**fields), update_mask=mask)
        )


@asynccontextmanager
async def serving(database):
    plans = load_plans(None)
    catalog = Catalog(database, plans, PEPPER)
    await catalog.load()
    gate, server = Gate("starting"), grpc.aio.server()
    servicer = AccountsServicer(
        database=database, catalog=catalog, plans=plans, pages=PageTokens(PEPPER), pepper=PEPPER
    )
    guarded = cast(grpc.aio.Server, GuardedServer(server, gate, Tokens(ADMIN, SERVICE)))
    accounts_pb2_grpc.add_AccountsServicer_to_server(servicer, guarded)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gate.open()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Client(channel)
    finally:
        await server.stop(0)


@pytest.fixture
async def client(database):
    async with serving(database) as client:
        yield client


async def failing(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    facts = {name: json.loads(value) for name, value in info.metadata.items()}
    return SimpleNamespace(reason=info.reason, facts=facts)


async def test_a_new_account_can_authenticate_at_once(client):
    made = await client.create("  서울 팀 ", "lite")
    account = made.account
    assert (account.display_name, account.plan, account.state) == ("서울 팀", "lite", pb.Account.ACTIVE)
    assert account.client_id.startswith("nrci_")
    assert [secret.hint for secret in account.secrets] == [made.secret[-4:]]
    assert account.create_time == account.update_time
    assert abs(account.create_time.seconds - time.time()) < 60
    who = await client.who(account.client_id, made.secret)
    assert (who.client_id, who.plan) == (account.client_id, "lite")
    assert await client.admin("GetAccount", pb.GetAccountRequest(client_id=account.client_id)) == account


async def test_the_secret_is_not_stored(client, database):
    made = await client.create()
    async with database.sessions() as session:
        (row,) = await session.scalars(select(Secret).where(Secret.client_id == made.account.client_id))
    assert len(row.digest) == 32
    assert made.secret.encode() not in row.digest
    assert made.secret not in repr(vars(row))


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "a\0b", "두\n줄"])
async def test_a_bad_display_name(client, name):
    failure = await failing(client.create(name))
    assert (failure.reason, failure.facts["field"]) == ("REQUEST_INVALID", "display_name")


async def test_an_unknown_plan(client):
    failure = await failing(client.create(plan="platinum"))
    assert failure.reason == "PLAN_NOT_FOUND"
    assert failure.facts == {"plan": "platinum", "plans": ["lite", "multi_account", "pro", "standard"]}


async def test_accounts_are_listed_oldest_first_in_pages(client):
    made = [(await client.create(f"계정 {number}")).account for number in range(5)]
    seen, token = [], ""
    for size in (2, 2, 2):
        page = await client.admin("ListAccounts", pb.ListAccountsRequest(page_size=size, page_token=token))
        seen += page.accounts
        token = page.next_page_token
    assert seen == made
    assert token == ""
    everything = await client.admin("ListAccounts", pb.ListAccountsRequest())
    assert list(everything.accounts) == made


@pytest.mark.parametrize(
    "token", ["!", "가", "bm90IGEgdG9rZW4=", "LTE6eA==", "OTk5OTk5OTk5OTk5OTk5OTk5OTk6eA==", "MTp4AA=="]
)
async def test_a_page_token_of_someone_else(client, token):
    failure = await failing(client.admin("ListAccounts", pb.ListAccountsRequest(page_token=token)))
    assert failure.reason == "PAGE_TOKEN_INVALID"


async def test_a_negative_page_size(client):
    failure = await failing(client.admin("ListAccounts", pb.ListAccountsRequest(page_size=-1)))
    assert (failure.reason, failure.facts["field"]) == ("REQUEST_INVALID", "page_size")


async def test_an_update_changes_what_the_mask_names(client):
    account = (await client.create("전")).account
    changed = await client.update(
        "display_name", client_id=account.client_id, display_name="후", plan="lite", state=pb.Account.SUSPENDED
    )
    assert (changed.display_name, changed.plan, changed.state) == ("후", "standard", pb.Account.ACTIVE)
    assert changed.update_time.ToMicroseconds() > account.update_time.ToMicroseconds()
    assert changed.create_time == account.create_time
    assert await client.admin("GetAccount", pb.GetAccountRequest(client_id=account.client_id)) == changed


async def test_an_update_that_changes_nothing_leaves_the_revision(client, database):
    account = (await client.create("이름")).account
    before = await database.revision()
    identity = {"client_id": account.client_id}
    same = await client.update("display_name", "plan", **identity, display_name="이름", plan="standard")
    assert same == account
    assert await database.revision() == before
    await client.update("plan", **identity, plan="pro")
    assert await database.revision() > before


async def test_bad_updates_change_nothing(client):
    account = (await client.create("이름")).account
    identity = {"client_id": account.client_id}
    bad = [
        (client.update(**identity), "REQUEST_INVALID", "update_mask"),
        (client.update("client_id", **identity), "REQUEST_INVALID", "update_mask"),
        (client.update("display_name", **identity), "REQUEST_INVALID", "account.display_name"),
        (client.update("state", **identity), "REQUEST_INVALID", "account.state"),
        (client.update("display_name", display_name="x"), "REQUEST_INVALID", "account.client_id"),
    ]
    for call, reason, field in bad:
        failure = await failing(call)
        assert (failure.reason, failure.facts["field"]) == (reason, field)
    mixed = client.update("display_name", "plan", **identity, display_name="후", plan="platinum")
    assert (await failing(mixed)).reason == "PLAN_NOT_FOUND"
    assert await client.admin("GetAccount", pb.GetAccountRequest(**identity)) == account


@pytest.mark.parametrize("client_id", ["nrci_absent", "nul\0", "x" * 5000])
async def test_an_account_that_does_not_exist(client, client_id):
    for method, request in (
        ("GetAccount", pb.GetAccountRequest(client_id=client_id)),
        ("RotateSecret", pb.RotateSecretRequest(client_id=client_id)),
        ("RevokeSecret", pb.RevokeSecretRequest(client_id=client_id, secret_id="x")),
        ("GetUsage", pb.GetUsageRequest(client_id=client_id)),
    ):
        failure = await failing(client.admin(method, request))
        assert (failure.reason, failure.facts) == ("ACCOUNT_NOT_FOUND", {"client_id": client_id[:64]})


async def test_suspension_is_in_force_when_the_update_returns(client):
    made = await client.create()
    client_id = made.account.client_id
    await client.update("state", client_id=client_id, state=pb.Account.SUSPENDED)
    assert (await failing(client.who(client_id, made.secret))).reason == "ACCOUNT_SUSPENDED"
    assert (await failing(client.who(client_id, "wrong"))).reason == "UNAUTHENTICATED"
    await client.update("state", client_id=client_id, state=pb.Account.ACTIVE)
    assert (await client.who(client_id, made.secret)).client_id == client_id


async def test_rotation_keeps_two_secrets_live(client):
    made = await client.create()
    client_id = made.account.client_id
    secrets = [made.secret]
    for _ in range(2):
        rotated = await client.admin("RotateSecret", pb.RotateSecretRequest(client_id=client_id))
        secrets.append(rotated.secret)
    assert [secret.hint for secret in rotated.account.secrets] == [secret[-4:] for secret in secrets[1:]]
    assert (await failing(client.who(client_id, secrets[0]))).reason == "UNAUTHENTICATED"
    for secret in secrets[1:]:
        await client.who(client_id, secret)


async def test_rotation_may_revoke_all_others(client):
    made = await client.create()
    client_id = made.account.client_id
    request = pb.RotateSecretRequest(client_id=client_id, revoke_others=True)
    rotated = await client.admin("RotateSecret", request)
    assert [secret.hint for secret in rotated.account.secrets] == [rotated.secret[-4:]]
    assert (await failing(client.who(client_id, made.secret))).reason == "UNAUTHENTICATED"
    await client.who(client_id, rotated.secret)


async def test_a_revoked_secret_is_dead_when_the_method_returns(client):
    made, other = await client.create(), await client.create()
    client_id, secret_id = made.account.client_id, made.account.secrets[0].id
    request = pb.RevokeSecretRequest(client_id=client_id, secret_id=secret_id)
    foreign = pb.RevokeSecretRequest(client_id=other.account.client_id, secret_id=secret_id)
    assert (await failing(client.admin("RevokeSecret", foreign))).facts == {"secret_id": secret_id}
    await client.admin("RevokeSecret", request)
    assert (await failing(client.who(client_id, made.secret))).reason == "UNAUTHENTICATED"
    assert (await failing(client.admin("RevokeSecret", request))).reason == "SECRET_NOT_FOUND"
    await client.who(other.account.client_id, other.secret)


async def test_a_change_by_one_replica_is_seen_by_another_at_once(client, database):
    """Two catalogs over one database, as two replicas have."""
    made = await client.create()
    client_id = made.account.client_id
    async with serving(database) as replica:
        await replica.who(client_id, made.secret)
        await client.update("state", client_id=client_id, state=pb.Account.SUSPENDED)
        assert (await failing(replica.who(client_id, made.secret))).reason == "ACCOUNT_SUSPENDED"


async def test_parallel_rotations_leave_two_secrets(client):
    client_id = (await client.create()).account.client_id
    await asyncio.gather(*(client.admin("RotateSecret", pb.RotateSecretRequest(client_id=client_id)) for _ in range(6)))
    account = await client.admin("GetAccount", pb.GetAccountRequest(client_id=client_id))
    assert len(account.secrets) == 2


async def add_usage(database, *rows):
    async with database.sessions.begin() as session:
        session.add_all(Usage(client_id=c, lane=lane, period=period, calls=calls) for c, lane, period, calls in rows)


async def test_usage_is_a_month_and_its_days(client, database):
    one, two = await client.create(), await client.create()
    mine, other = one.account.client_id, two.account.client_id
    await add_usage(
        database,
        (mine, "production", "2026-11-30", 2),
        (mine, "production", "2026-11-02", 1),
        (mine, "real_test", "2026-11-02", 4),
        (mine, "production", "2026-11", 3),
        (mine, "real_test", "2026-11", 4),
        (mine, "production", "2026-12-01", 9),
        (mine, "production", "2026-12", 9),
        (other, "production", "2026-11", 7),
    )
    expected = [
        ("2026-11", "production", 3),
        ("2026-11", "real_test", 4),
        ("2026-11-02", "production", 1),
        ("2026-11-02", "real_test", 4),
        ("2026-11-30", "production", 2),
    ]
    as_admin = await client.admin("GetUsage", pb.GetUsageRequest(client_id=mine, month="2026-11"))
    request = pb.GetUsageRequest(month="2026-11")
    as_account = await client.account("GetUsage", request, mine, one.secret)
    for usage in (as_admin, as_account):
        assert usage.client_id == mine
        assert [(counter.period, counter.lane, counter.calls) for counter in usage.counters] == expected


async def test_usage_of_the_current_month_of_seoul(client, database):
    made = await client.create()
    client_id = made.account.client_id
    month = datetime.now(ZoneInfo("Asia/Seoul")).strftime("%Y-%m")
    await add_usage(database, (client_id, "production", month, 5))
    usage = await client.account("GetUsage", pb.GetUsageRequest(), client_id, made.secret)
    assert [(counter.period, counter.calls) for counter in usage.counters] == [(month, 5)]


async def test_usage_of_all_accounts(client, database):
    first, second = await client.create(), await client.create()
    for made in (first, second):
        await add_usage(database, (made.account.client_id, "production", "2026-07", 2))
    usage = await client.admin("GetUsage", pb.GetUsageRequest(all_accounts=True, month="2026-07"))
    assert usage.client_id == ""
    assert [(counter.period, counter.calls) for counter in usage.counters] == [("2026-07", 4)]
    request = pb.GetUsageRequest(all_accounts=True)
    failure = await failing(client.account("GetUsage", request, first.account.client_id, first.secret))
    assert failure.reason == "TOKEN_INVALID"


async def test_usage_of_another_needs_the_admin(client):
    made, other = await client.create(), await client.create()
    request = pb.GetUsageRequest(client_id=other.account.client_id)
    assert (await failing(client.account("GetUsage", request, made.account.client_id, made.secret))).reason == (
        "TOKEN_INVALID"
    )
    wrong = client.account("GetUsage", pb.GetUsageRequest(), made.account.client_id, "wrong")
    assert (await failing(wrong)).reason == "UNAUTHENTICATED"
    nobody = await failing(client.admin("GetUsage", pb.GetUsageRequest()))
    assert (nobody.reason, nobody.facts["field"]) == ("REQUEST_INVALID", "client_id")


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "2026-00", "2026", "2026-11-01", "가"])
async def test_a_bad_month(client, month):
    failure = await failing(client.admin("GetUsage", pb.GetUsageRequest(client_id="x", month=month)))
    assert (failure.reason, failure.facts["field"]) == ("REQUEST_INVALID", "month")
