"""Accounts, their secrets and their usage."""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import grpc
from google.protobuf.empty_pb2 import Empty
from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from naru.v1 import accounts_pb2, accounts_pb2_grpc
from registry_service.catalog import Catalog
from registry_service.errors import (
    AccountNotFoundError,
    PlanNotFoundError,
    RequestInvalidError,
    SecretNotFoundError,
    TokenInvalidError,
)
from registry_service.identity.caller import CALLER
from registry_service.identity.credentials import LIVE_SECRETS, digest, new_client_id, new_secret
from registry_service.identity.plans import Plan
from registry_service.ledger.usage import usage_of_month
from registry_service.rpc.pagination import PageTokens, page_size, timestamp
from registry_service.storage.database import Database
from registry_service.storage.models import Account, Secret, now_micros

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

SEOUL = ZoneInfo("Asia/Seoul")
MAX_DISPLAY_NAME = 200

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_FIELDS = ("display_name", "plan", "state")


class AccountsServicer(accounts_pb2_grpc.AccountsServicer):
    """A change is in force on every replica once its method has returned: the next admission sees its revision."""

    def __init__(
        self, *, database: Database, catalog: Catalog, plans: Mapping[str, Plan], pages: PageTokens, pepper: bytes
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._plans = plans
        self._pages = pages
        self._pepper = pepper

    async def CreateAccount(  # noqa: N802
        self, request: accounts_pb2.CreateAccountRequest, context: Context
    ) -> accounts_pb2.CreateAccountResponse:
        now = now_micros()
        account = Account(
            client_id=new_client_id(),
            display_name=_display_name(request.display_name, "display_name"),
            plan=self._plan(request.plan),
            state=accounts_pb2.Account.ACTIVE,
            create_time=now,
            update_time=now,
        )
        async with self._database.change() as session:
            session.add(account)
            await session.flush()
            row, secret = self._new_secret(account.client_id)
            session.add(row)
            message = _account(account, [row])
        await self._catalog.load()
        return accounts_pb2.CreateAccountResponse(account=message, secret=secret)

    async def ListAccounts(  # noqa: N802
        self, request: accounts_pb2.ListAccountsRequest, context: Context
    ) -> accounts_pb2.ListAccountsResponse:
        size = page_size(request.page_size)
        query = select(Account).order_by(Account.create_time, Account.client_id).limit(size + 1)
        if request.page_token:
            after = _position(self._pages.key_after("accounts", request.page_token))
            query = query.where(tuple_(Account.create_time, Account.client_id) > after)
        async with self._database.sessions() as session:
            rows = list(await session.scalars(query))
            page, rest = rows[:size], rows[size:]
            live = await _live_secrets(session, [row.client_id for row in page])
        accounts = [_account(row, live.get(row.client_id, [])) for row in page]
        last = f"{page[-1].create_time}:{page[-1].client_id}" if rest else None
        return accounts_pb2.ListAccountsResponse(accounts=accounts, next_page_token=self._pages.issue("accounts", last))

    async def GetAccount(  # noqa: N802
        self, request: accounts_pb2.GetAccountRequest, context: Context
    ) -> accounts_pb2.Account:
        async with self._database.sessions() as session:
            return await _read(session, await _find(session, request.client_id))

    async def UpdateAccount(  # noqa: N802
        self, request: accounts_pb2.UpdateAccountRequest, context: Context
    ) -> accounts_pb2.Account:
        changes = self._changes(request.account, request.update_mask.paths)
        async with self._database.change() as session:
            account = await _find(session, request.account.client_id, "account.client_id")
            if all(getattr(account, name) == value for name, value in changes.items()):
                session.info["unchanged"] = True
            else:
                for name, value in changes.items():
                    setattr(account, name, value)
                account.update_time = now_micros()
            message = await _read(session, account)
        await self._catalog.load()
        return message

    async def RotateSecret(  # noqa: N802
        self, request: accounts_pb2.RotateSecretRequest, context: Context
    ) -> accounts_pb2.RotateSecretResponse:
        async with self._database.change() as session:
            account = await _find(session, request.client_id)
            live = (await _live_secrets(session, [account.client_id])).get(account.client_id, [])
            row, secret = self._new_secret(account.client_id)
            kept = 0 if request.revoke_others else LIVE_SECRETS - 1
            for old in live[: max(len(live) - kept, 0)]:
                old.revoke_time = row.create_time
            session.add(row)
            account.update_time = row.create_time
            message = await _read(session, account)
        await self._catalog.load()
        return accounts_pb2.RotateSecretResponse(account=message, secret=secret)

    async def RevokeSecret(  # noqa: N802
        self, request: accounts_pb2.RevokeSecretRequest, context: Context
    ) -> Empty:
        async with self._database.change() as session:
            account = await _find(session, request.client_id)
            live = (await _live_secrets(session, [account.client_id])).get(account.client_id, [])
            secret = next((row for row in live if row.id == request.secret_id), None)
            if secret is None:
                raise SecretNotFoundError("the account has no live secret of this id", secret_id=request.secret_id)
            secret.revoke_time = account.update_time = now_micros()
        await self._catalog.load()
        return Empty()

    async def Authenticate(  # noqa: N802
        self, request: accounts_pb2.AuthenticateRequest, context: Context
    ) -> accounts_pb2.AuthenticateResponse:
        entry = (await self._catalog.fresh()).authenticate(CALLER.get().credential)
        return accounts_pb2.AuthenticateResponse(client_id=entry.client_id, plan=entry.plan.name)

    async def GetUsage(  # noqa: N802
        self, request: accounts_pb2.GetUsageRequest, context: Context
    ) -> accounts_pb2.GetUsageResponse:
        month = _month(request.month)
        client_id = None
        if request.all_accounts:
            if not CALLER.get().admin:
                raise TokenInvalidError("the usage of all accounts needs the admin token")
        else:
            client_id = await self._whose_usage(request.client_id)
            async with self._database.sessions() as session:
                await _find(session, client_id)
        counted = await usage_of_month(self._database, month, client_id, by_tool=request.by_tool)
        counter = accounts_pb2.GetUsageResponse.Counter
        return accounts_pb2.GetUsageResponse(
            client_id=client_id or "",
            counters=[
                counter(period=period, lane=lane, tool=tool, calls=calls)
                for (period, lane, tool), calls in counted.items()
            ],
        )

    async def _whose_usage(self, requested: str) -> str:
        """The admin asks for anyone, an account for itself alone."""
        caller = CALLER.get()
        if caller.admin:
            return requested
        entry = (await self._catalog.fresh()).authenticate(caller.credential)
        if requested not in ("", entry.client_id):
            raise TokenInvalidError("the usage of another account needs the admin token")
        return entry.client_id

    def _plan(self, name: str) -> str:
        if name not in self._plans:
            raise PlanNotFoundError("there is no plan of this name", plan=name[:64], plans=[*sorted(self._plans)])
        return name

    def _changes(self, account: accounts_pb2.Account, paths: Iterable[str]) -> dict[str, str | int]:
        """Returns the checked new values of the columns that the mask names."""
        names = set(paths)
        if not names or not names <= set(_FIELDS):
            raise RequestInvalidError(
                f"update_mask must name some of {', '.join(_FIELDS)}", field="update_mask", detail="unknown or no field"
            )
        changes: dict[str, str | int] = {}
        if "display_name" in names:
            changes["display_name"] = _display_name(account.display_name, "account.display_name")
        if "plan" in names:
            changes["plan"] = self._plan(account.plan)
        if "state" in names:
            changes["state"] = _state(account.state)
        return changes

    def _new_secret(self, client_id: str) -> tuple[Secret, str]:
        """Returns the row and the secret that it does not hold."""
        secret = new_secret()
        row = Secret(
            id=secrets.token_hex(8),
            client_id=client_id,
            digest=digest(self._pepper, secret),
            hint=secret[-4:],
            create_time=now_micros(),
        )
        return row, secret


async def _find(session: AsyncSession, client_id: str, field: str = "client_id") -> Account:
    if not client_id:
        raise RequestInvalidError(f"{field} is empty", field=field, detail="empty")
    account = await session.get(Account, client_id) if "\0" not in client_id else None
    if account is None:
        raise AccountNotFoundError("there is no account of this client id", client_id=client_id[:64])
    return account


async def _live_secrets(session: AsyncSession, client_ids: Sequence[str]) -> dict[str, list[Secret]]:
    """Returns the live secrets by client id, oldest first."""
    live: dict[str, list[Secret]] = {}
    query = select(Secret).where(Secret.client_id.in_(client_ids), Secret.revoke_time.is_(None))
    for row in await session.scalars(query.order_by(Secret.create_time, Secret.id)):
        live.setdefault(row.client_id, []).append(row)
    return live


async def _read(session: AsyncSession, account: Account) -> accounts_pb2.Account:
    """Returns the account with its live secrets, as they stand within the session's transaction."""
    live = await _live_secrets(session, [account.client_id])
    return _account(account, live.get(account.client_id, []))


def _account(account: Account, live: Iterable[Secret]) -> accounts_pb2.Account:
    secret = accounts_pb2.Account.Secret
    return accounts_pb2.Account(
        client_id=account.client_id,
        display_name=account.display_name,
        plan=account.plan,
        state=accounts_pb2.Account.State.ValueType(account.state),
        secrets=[secret(id=row.id, hint=row.hint, create_time=timestamp(row.create_time)) for row in live],
        create_time=timestamp(account.create_time),
        update_time=timestamp(account.update_time),
    )


def _display_name(text: str, field: str) -> str:
    name = text.strip()
    if not 1 <= len(name) <= MAX_DISPLAY_NAME or not name.isprintable():
        detail = f"wanted: 1 to {MAX_DISPLAY_NAME} printable characters"
        raise RequestInvalidError(f"{field}: {detail}", field=field, detail=detail)
    return name


def _state(state: int) -> int:
    if state not in (accounts_pb2.Account.ACTIVE, accounts_pb2.Account.SUSPENDED):
        raise RequestInvalidError("account.state is not a state", field="account.state", detail="wanted: a state")
    return state


def _month(text: str) -> str:
    if text and not _MONTH.fullmatch(text):
        raise RequestInvalidError("month is not of the form YYYY-MM", field="month", detail="wanted: YYYY-MM")
    return text or datetime.now(SEOUL).strftime("%Y-%m")


def _position(key: str) -> tuple[int, str]:
    """Returns where a page continues: after the account of this time of creation and this client id."""
    time, _, client_id = key.partition(":")
    return int(time), client_id
