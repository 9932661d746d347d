"""Reads what the `naru` command talks to, and with which secrets.

Each of these is taken from the environment, else from the `.naru/` that a `make run` leaves in the current directory,
else a default:

- `NARU_REGISTRY`: where the registry service listens, `host:port` or a gRPC target (127.0.0.1:50051)
- `NARU_EXECUTION`: where the process listens that runs the calls, if it is another one (as NARU_REGISTRY)
- `NARU_ADMIN_TOKEN`: the admin token of both; `NARU_ADMIN_TOKEN_FILE` names a file that holds it
- `NARU_REGISTRY_CA_FILE`, `NARU_REGISTRY_CERT_FILE`, `NARU_REGISTRY_KEY_FILE`: TLS, and a client certificate
- `NARU_URL`: the gateway's MCP endpoint (http://127.0.0.1:8080/mcp)
- `NARU_ENDPOINT_CA_FILE`: the registry's REGISTRY_ENDPOINT_CA_FILE, so that `naru doctor` trusts what it trusts
- `NARU_META_PREFIX`: the gateway's GATEWAY_META_PREFIX, under which it says why a call failed (xdata.kr)
- `NARU_CREDENTIALS`: an account's `id:secret`, or the path of a file that holds it (what has no colon is a path)

A secret of `.naru/` is never sent to an address that came from the environment.
`naru` looks for `.naru/` in the current directory alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from naru.environment import Environment, SettingError, UnknownVariable, visible
from naru_cli.failures import CliError, Exit
from naru_cli.state import ADMIN_TOKEN_FILE, CREDENTIAL_FILE, FROM_RUN, STATE_DIRECTORY, read_run, read_text

DEFAULT_REGISTRY = "127.0.0.1:50051"
DEFAULT_URL = "http://127.0.0.1:8080/mcp"
DEFAULT_META_PREFIX = "xdata.kr"


@dataclass(frozen=True, slots=True)
class Tls:
    ca: bytes
    certificate: bytes | None
    key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """Names a gRPC service. `setting` and `token_from` name the settings that address and admin token came from."""

    address: str
    setting: str
    token: str | None = field(repr=False)
    token_from: str

    def __str__(self) -> str:
        return f"{self.address} ({self.setting})"


@dataclass(frozen=True, slots=True)
class Access:
    """Holds addresses and secrets. `…_from` say which setting a value came from, so that messages can name it.

    `state` is the `.naru/` that was looked for; `endpoint_ca` names a file with the private authorities that the
    registry trusts of endpoints. `unknown` are variables that nothing reads.
    """

    registry: Target
    execution: Target
    url: str
    url_from: str
    credential: str | None = field(repr=False)
    credential_from: str
    tls: Tls | None
    meta_prefix: str
    state: Path
    endpoint_ca: str
    unknown: tuple[UnknownVariable, ...]

    @classmethod
    def from_env(cls, environ: Mapping[str, str], directory: Path) -> "Access":
        """Raises CliError (USAGE) for a value or a file that cannot be used."""
        try:
            return cls._read(Environment(environ), directory / STATE_DIRECTORY)
        except SettingError as error:
            raise CliError(str(error), Exit.USAGE) from error

    @classmethod
    def _read(cls, env: Environment, state: Path) -> "Access":
        run = read_run(state)
        registry, execution = targets(env, run, state)
        url, url_from = address(env, "NARU_URL", run.get("url"), DEFAULT_URL)
        if not is_http(url):
            raise CliError(f"{url_from}: {url} is not a URL that begins with http:// or https://", Exit.USAGE)
        credential, credential_from = account_credential(env, state if url_from == FROM_RUN else None)
        prefix = env.text("NARU_META_PREFIX") or (run.get("meta_prefix", "") if url_from == FROM_RUN else "")
        authorities = run.get("endpoint_ca", "") if registry.setting == FROM_RUN else ""
        return cls(
            registry=registry,
            execution=execution,
            url=url,
            url_from=url_from,
            credential=credential,
            credential_from=credential_from,
            tls=registry_tls(env),
            meta_prefix=prefix or DEFAULT_META_PREFIX,
            state=state,
            endpoint_ca=env.text("NARU_ENDPOINT_CA_FILE") or authorities,
            unknown=env.unknown("NARU_"),
        )

    def require_admin_token(self, target: Target) -> str:
        if target.token is None:
            told = self.absent("NARU_ADMIN_TOKEN", ADMIN_TOKEN_FILE, target.setting)
            raise CliError(f"{told}: the registry's REGISTRY_ADMIN_TOKEN is needed", Exit.REFUSED)
        return target.token

    def require_credential(self) -> str:
        if self.credential is None:
            told = self.absent("NARU_CREDENTIALS", CREDENTIAL_FILE, self.url_from)
            raise CliError(f"{told}: an account's id:secret is needed", Exit.REFUSED)
        return self.credential

    def absent(self, setting: str, file: str, address_from: str) -> str:
        """Says that a secret is not set, and why the one of a `make run` does not stand in for it."""
        said = f"{setting} is not set"
        if (self.state / file).exists():
            return (
                f"{said}; the one in {STATE_DIRECTORY}/ is only used with the address of that run, not {address_from}'s"
            )
        return f"{said}, and there is no {STATE_DIRECTORY}/{file} in the current directory ({self.state.parent})"


def targets(env: Environment, run: Mapping[str, str], state: Path) -> tuple[Target, Target]:
    """Returns who serves tools and accounts, and who serves calls, which NARU_EXECUTION may name apart."""
    where, setting = address(env, "NARU_REGISTRY", run.get("registry"), DEFAULT_REGISTRY)
    registry = Target(where, setting, *admin_token(env, state if setting == FROM_RUN else None))
    if elsewhere := env.text("NARU_EXECUTION"):
        return registry, Target(elsewhere, "NARU_EXECUTION", *admin_token(env, None))
    return registry, registry


def address(env: Environment, name: str, of_run: str | None, default: str) -> tuple[str, str]:
    """Returns an address and the setting that it came from."""
    if value := env.text(name):
        return value, name
    if of_run:
        return of_run, FROM_RUN
    return default, f"the default of {name}, for there is no {FROM_RUN} in the current directory"


def is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        return False


def admin_token(env: Environment, state: Path | None) -> tuple[str | None, str]:
    """Returns the admin token, if there is one, and the setting that it came from."""
    if token := env.optional_secret("NARU_ADMIN_TOKEN", visible):
        path = env.text("NARU_ADMIN_TOKEN_FILE")
        return token, f"NARU_ADMIN_TOKEN_FILE ({path})" if path else "NARU_ADMIN_TOKEN"
    if state is not None and (state / ADMIN_TOKEN_FILE).exists():
        return read_text(state / ADMIN_TOKEN_FILE, ADMIN_TOKEN_FILE), f"{STATE_DIRECTORY}/{ADMIN_TOKEN_FILE}"
    return None, "NARU_ADMIN_TOKEN"


def account_credential(env: Environment, state: Path | None) -> tuple[str | None, str]:
    """Returns the account's credential, if there is one, and the setting that it came from."""
    if value := env.text("NARU_CREDENTIALS"):
        if ":" in value:
            return value, "NARU_CREDENTIALS"
        return read_text(Path(value), "NARU_CREDENTIALS"), f"NARU_CREDENTIALS ({value})"
    if state is not None and (state / CREDENTIAL_FILE).exists():
        return read_text(state / CREDENTIAL_FILE, CREDENTIAL_FILE), f"{STATE_DIRECTORY}/{CREDENTIAL_FILE}"
    return None, "NARU_CREDENTIALS"


def registry_tls(env: Environment) -> Tls | None:
    authority = env.authority("NARU_REGISTRY_CA_FILE")
    certificate, key = env.key_pair("NARU_REGISTRY_CERT_FILE", "NARU_REGISTRY_KEY_FILE") or (None, None)
    return None if authority is None else Tls(authority, certificate, key)
