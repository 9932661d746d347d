"""Serves `naru account …` and `naru usage`: accounts, their secrets and their counters."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from naru.v1 import accounts_pb2
from naru_cli import output as out
from naru_cli.command import AsJson, access, accounts, command, new_app, pages
from naru_cli.failures import CliError, Exit
from naru_cli.secret_file import reserved

app = new_app(help="Makes accounts and changes them.")

ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The account's client id, nrci_….")]
SaveTo = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write id:secret to this file (mode 600) instead of showing it."),
]


def show_account(account: accounts_pb2.Account, as_json: bool) -> None:
    shown = out.account_dict(account)
    if as_json:
        out.show_json(shown)
        return
    secrets = [f"{item['id']} (…{item['hint']}, {item['create_time']})" for item in shown.pop("secrets")]
    out.table(["account", ""], [*shown.items(), ("secrets", ", ".join(secrets) or "none")], "")


NewSecret = accounts_pb2.CreateAccountResponse | accounts_pb2.RotateSecretResponse


def deliver(ask: Callable[[], NewSecret], save: Path | None, *, replace: bool, as_json: bool) -> None:
    """Asks for a secret, and hands it out: to a file that can be written, as is seen to first, or to the screen."""
    if save is None:
        show_secret(ask(), None, as_json)
        return
    with reserved(save, replace=replace) as write:
        answer = ask()
        try:
            write(f"{answer.account.client_id}:{answer.secret}")
        except OSError as error:
            show_secret(answer, None, as_json)
            told = f"--save: cannot write {save}: {error.strerror}; so the credential is shown instead"
            raise CliError(told, Exit.FAILURE) from error
    show_secret(answer, save, as_json)


def show_secret(answer: NewSecret, saved: Path | None, as_json: bool) -> None:
    """Shows a secret the only time that it is seen, unless it was saved."""
    account = answer.account
    credential = f"{account.client_id}:{answer.secret}"
    shown = {} if saved is not None else {"secret": answer.secret, "credential": credential}
    if as_json:
        out.show_json({**out.account_dict(account), **shown})
        return
    show_account(account, as_json=False)
    out.show(f"credential saved in {saved}" if saved else f"credential, shown this once: {credential}")


@command(app, "create")
def account_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for people.")],
    plan: Annotated[str, typer.Option(help="The plan.")] = "standard",
    save: SaveTo = None,
    force: Annotated[bool, typer.Option("--force", help="Let --save replace a file that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Makes an account and shows its credential, this once."""
    request = accounts_pb2.CreateAccountRequest(display_name=name, plan=plan)
    deliver(lambda: accounts("CreateAccount", request), save, replace=force, as_json=as_json)


@command(app, "list")
def account_list(as_json: AsJson = False) -> None:
    """Lists the accounts, oldest first."""
    listed = [
        out.account_dict(item)
        for item in pages(accounts, "ListAccounts", accounts_pb2.ListAccountsRequest(), "accounts")
    ]
    if as_json:
        out.show_json(listed)
        return
    columns = ("client_id", "display_name", "plan", "state", "create_time")
    rows = [[str(account[column]) for column in columns] for account in listed]
    out.table(["account", "name", "plan", "state", "made"], rows, "no accounts: naru account create NAME makes one")


@command(app, "show")
def account_show(client_id: ClientId, as_json: AsJson = False) -> None:
    """Shows an account; secrets by their last four characters."""
    show_account(accounts("GetAccount", accounts_pb2.GetAccountRequest(client_id=client_id)), as_json)


@command(app, "rotate")
def account_rotate(
    client_id: ClientId,
    revoke_others: Annotated[bool, typer.Option("--revoke-others", help="Revoke the earlier secrets at once.")] = False,
    save: SaveTo = None,
    as_json: AsJson = False,
) -> None:
    """Adds a secret and shows it, this once; the oldest of three is revoked.

    Two stay live, so that clients can change over. --save replaces the file, if there is one.
    """
    request = accounts_pb2.RotateSecretRequest(client_id=client_id, revoke_others=revoke_others)
    deliver(lambda: accounts("RotateSecret", request), save, replace=True, as_json=as_json)


@command(app, "revoke")
def account_revoke(
    client_id: ClientId,
    secret_id: Annotated[str, typer.Argument(metavar="SECRET_ID", help="The secret's id, as `show` names it.")],
    as_json: AsJson = False,
) -> None:
    """Revokes one secret of an account."""
    accounts("RevokeSecret", accounts_pb2.RevokeSecretRequest(client_id=client_id, secret_id=secret_id))
    account_show(client_id, as_json)


def change(account: accounts_pb2.Account, paths: list[str], as_json: bool) -> None:
    request = accounts_pb2.UpdateAccountRequest(account=account, update_mask=FieldMask(paths=paths))
    show_account(accounts("UpdateAccount", request), as_json)


@command(app, "suspend")
def account_suspend(client_id: ClientId, as_json: AsJson = False) -> None:
    """Refuses every further request of an account."""
    change(accounts_pb2.Account(client_id=client_id, state=accounts_pb2.Account.SUSPENDED), ["state"], as_json)


@command(app, "resume")
def account_resume(client_id: ClientId, as_json: AsJson = False) -> None:
    """Lets a suspended account call again."""
    change(accounts_pb2.Account(client_id=client_id, state=accounts_pb2.Account.ACTIVE), ["state"], as_json)


@command(app, "update")
def account_update(
    client_id: ClientId,
    plan: Annotated[str | None, typer.Option(help="The new plan.")] = None,
    name: Annotated[str | None, typer.Option(help="The new name for people.")] = None,
    as_json: AsJson = False,
) -> None:
    """Changes an account's plan or name."""
    paths = [path for path, value in (("plan", plan), ("display_name", name)) if value is not None]
    if not paths:
        raise CliError("nothing to change: pass --plan or --name", Exit.USAGE)
    change(accounts_pb2.Account(client_id=client_id, plan=plan or "", display_name=name or ""), paths, as_json)


def usage(
    client_id: Annotated[
        str | None,
        typer.Argument(metavar="[CLIENT_ID]", help="The account; by default the one of NARU_CREDENTIALS."),
    ] = None,
    month: Annotated[str, typer.Option(metavar="YYYY-MM", help="A month in Asia/Seoul; by default this one.")] = "",
    by_tool: Annotated[bool, typer.Option("--by-tool", help="Count each tool apart.")] = False,
    all_accounts: Annotated[bool, typer.Option("--all-accounts", help="Count the calls of all accounts.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows how many calls an account made, or all of them, in a month and on each of its days."""
    if all_accounts and client_id:
        raise CliError(f"CLIENT_ID {client_id} and --all-accounts say two things: use one", Exit.USAGE)
    if not all_accounts:
        client_id = client_id or access().require_credential().partition(":")[0]
    request = accounts_pb2.GetUsageRequest(
        client_id=client_id or "", month=month, by_tool=by_tool, all_accounts=all_accounts
    )
    answer = accounts("GetUsage", request)
    names = ["period", "lane", "tool", "calls"] if by_tool else ["period", "lane", "calls"]
    counters = [{name: getattr(item, name) for name in names} for item in answer.counters]
    if as_json:
        out.show_json({"client_id": answer.client_id or None, "counters": counters})
        return
    rows = [[str(value) for value in counter.values()] for counter in counters]
    out.table(names, rows, f"{answer.client_id or 'all accounts'}: no calls")
