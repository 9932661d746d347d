"""What the `naru` command talks to and with which secrets; how failures become exit codes.

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

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import msgspec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from naru.v1 import wire

STATE_DIRECTORY = ".naru"
RUN_FILE, ADMIN_TOKEN_FILE, CREDENTIAL_FILE = "run.json", "admin.token", "demo.credentials"
FROM_RUN = f"{STATE_DIRECTORY}/{RUN_FILE}"
ANEW = f"removing {STATE_DIRECTORY}/ and a new `make run` start anew"
DEFAULT_REGISTRY = "127.0.0.1:50051"
DEFAULT_URL = "http://127.0.0.1:8080/mcp"
DEFAULT_META_PREFIX = "xdata.kr"
# What an RPC may take, in seconds. None waits for anything, but a large manifest takes its time.
RPC_TIMEOUT = 15.0
RPC_TIMEOUTS = {"ApplyManifest": 120.0}
# What the registry takes at once. It keeps its own pages well below.
MAX_MESSAGE = 16 << 20


class Exit(IntEnum):
    """The exit codes. They are part of the interface: scripts branch on them."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    TOOL_ERROR = 6
    INVALID = 7
    INTERRUPTED = 130


EXITS_BY_REASON = {
    **dict.fromkeys(
        [
            "TOOL_NOT_FOUND",
            "TOOL_NOT_ACTIVE",
            "TOOL_VERSION_NOT_FOUND",
            "ACCOUNT_NOT_FOUND",
            "SECRET_NOT_FOUND",
            "CALL_NOT_FOUND",
        ],
        Exit.NOT_FOUND,
    ),
    **dict.fromkeys(["TOKEN_INVALID", "UNAUTHENTICATED", "ACCOUNT_SUSPENDED", "PERMISSION_DENIED"], Exit.REFUSED),
    **dict.fromkeys(
        [
            "REQUEST_INVALID",
            "DEFINITION_INVALID",
            "PLAN_NOT_FOUND",
            "TOOL_VERSION_EXISTS",
            "ARGUMENTS_INVALID",
            "LANE_INVALID",
            "LANE_NOT_ALLOWED",
            "LANE_NOT_CONFIGURED",
        ],
        Exit.INVALID,
    ),
    **dict.fromkeys(
        [
            "TOOL_UNREACHABLE",
            "TOOL_TIMED_OUT",
            "TOOL_BUSY",
            "TOOL_REFUSED",
            "TOOL_HTTP_ERROR",
            "TOOL_RESPONSE_INVALID",
            "RESULT_TOO_LARGE",
        ],
        Exit.TOOL_ERROR,
    ),
    "SERVICE_UNAVAILABLE": Exit.UNREACHABLE,
}


class CliError(Exception):
    """What stops a command: a message for people, the exit code, and for `--json` the reason and its facts."""

    def __init__(
        self, message: str, code: Exit = Exit.FAILURE, reason: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.facts = dict(facts or {})


@dataclass(frozen=True, slots=True)
class Tls:
    ca: bytes
    certificate: bytes | None
    key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """A gRPC service. `setting` and `token_from` name the settings that address and admin token came from."""

    address: str
    setting: str
    token: str | None = field(repr=False)
    token_from: str

    def __str__(self) -> str:
        return f"{self.address} ({self.setting})"


@dataclass(frozen=True, slots=True)
class Access:
    """`…_from` say which setting a value came from, so that messages can name it.

    `state` is the `.naru/` that was looked for; `endpoint_ca` names a file with the private authorities that the
    registry trusts of endpoints.
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

    @classmethod
    def from_env(cls, environ: Mapping[str, str], directory: Path) -> "Access":
        """Raises CliError (USAGE) for a file that cannot be read, or what is no URL."""
        state = directory / STATE_DIRECTORY
        run = read_run(state)
        registry, execution = targets(environ, run, state)
        url, url_from = address(environ, "NARU_URL", run.get("url"), DEFAULT_URL)
        if not is_http(url):
            raise CliError(f"{url_from}: {url} is not a URL that begins with http:// or https://", Exit.USAGE)
        credential, credential_from = account_credential(environ, state if url_from == FROM_RUN else None)
        return cls(
            registry=registry,
            execution=execution,
            url=url,
            url_from=url_from,
            credential=credential,
            credential_from=credential_from,
            tls=registry_tls(environ),
            meta_prefix=meta_prefix(environ, run if url_from == FROM_RUN else {}),
            state=state,
            endpoint_ca=environ.get("NARU_ENDPOINT_CA_FILE")
            or (run.get("endpoint_ca", "") if registry.setting == FROM_RUN else ""),
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
        """That a secret is not set, and why the one of a `make run` does not stand in for it."""
        said = f"{setting} is not set"
        if (self.state / file).exists():
            return (
                f"{said}; the one in {STATE_DIRECTORY}/ is only used with the address of that run, not {address_from}'s"
            )
        return f"{said}, and there is no {STATE_DIRECTORY}/{file} in the current directory ({self.state.parent})"


def targets(environ: Mapping[str, str], run: Mapping[str, str], state: Path) -> tuple[Target, Target]:
    """Returns who serves tools and accounts, and who serves calls, which NARU_EXECUTION may name apart."""
    where, setting = address(environ, "NARU_REGISTRY", run.get("registry"), DEFAULT_REGISTRY)
    registry = Target(where, setting, *admin_token(environ, state if setting == FROM_RUN else None))
    if elsewhere := environ.get("NARU_EXECUTION"):
        return registry, Target(elsewhere, "NARU_EXECUTION", *admin_token(environ, None))
    return registry, registry


def address(environ: Mapping[str, str], name: str, of_run: str | None, default: str) -> tuple[str, str]:
    """An address and the setting that it came from."""
    if value := environ.get(name):
        return value, name
    if of_run:
        return of_run, FROM_RUN
    return default, f"the default of {name}, for there is no {FROM_RUN} in the current directory"


def meta_prefix(environ: Mapping[str, str], run: Mapping[str, str]) -> str:
    return environ.get("NARU_META_PREFIX") or run.get("meta_prefix") or DEFAULT_META_PREFIX


def is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        return False


def read_run(state: Path) -> dict[str, str]:
    """Where the processes of the last `make run` listen: `registry` and `url`; empty when there was none.

    `endpoint_ca` is its registry's REGISTRY_ENDPOINT_CA_FILE, `meta_prefix` its gateway's GATEWAY_META_PREFIX.
    """
    try:
        return msgspec.json.decode((state / RUN_FILE).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CliError(f"cannot read {state / RUN_FILE}: {error.strerror}", Exit.USAGE) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{state / RUN_FILE} is damaged ({error}): {ANEW}", Exit.USAGE) from error


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replaces a file, in one step, by one that nobody else may read. Raises OSError."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)


def read_text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        if path.parent.name == STATE_DIRECTORY:
            reason = f"{reason}; {ANEW}"
        raise CliError(f"{setting}: cannot read {path}: {reason}", Exit.USAGE) from error


def admin_token(environ: Mapping[str, str], state: Path | None) -> tuple[str | None, str]:
    if token := environ.get("NARU_ADMIN_TOKEN"):
        return token, "NARU_ADMIN_TOKEN"
    if path := environ.get("NARU_ADMIN_TOKEN_FILE"):
        return read_text(Path(path), "NARU_ADMIN_TOKEN_FILE"), f"NARU_ADMIN_TOKEN_FILE ({path})"
    if state is not None and (state / ADMIN_TOKEN_FILE).exists():
        return read_text(state / ADMIN_TOKEN_FILE, ADMIN_TOKEN_FILE), f"{STATE_DIRECTORY}/{ADMIN_TOKEN_FILE}"
    return None, "NARU_ADMIN_TOKEN"


def account_credential(environ: Mapping[str, str], state: Path | None) -> tuple[str | None, str]:
    if value := environ.get("NARU_CREDENTIALS"):
        if ":" in value:
            return value, "NARU_CREDENTIALS"
        return read_text(Path(value), "NARU_CREDENTIALS"), f"NARU_CREDENTIALS ({value})"
    if state is not None and (state / CREDENTIAL_FILE).exists():
        return read_text(state / CREDENTIAL_FILE, CREDENTIAL_FILE), f"{STATE_DIRECTORY}/{CREDENTIAL_FILE}"
    return None, "NARU_CREDENTIALS"


def registry_tls(environ: Mapping[str, str]) -> Tls | None:
    names = ("NARU_REGISTRY_CA_FILE", "NARU_REGISTRY_CERT_FILE", "NARU_REGISTRY_KEY_FILE")
    ca, certificate, key = (
        read_text(Path(path), name).encode() if (path := environ.get(name)) else None for name in names
    )
    if (certificate is None) != (key is None):
        raise CliError("NARU_REGISTRY_CERT_FILE and NARU_REGISTRY_KEY_FILE are needed together", Exit.USAGE)
    if ca is None:
        return None
    return Tls(ca, certificate, key)


@contextmanager
def open_channel(access: Access, target: Target) -> Iterator[grpc.Channel]:
    """Opens a channel to a service. A failed RPC inside leaves as the CliError that it means."""
    options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE)]
    if access.tls is None:
        channel = grpc.insecure_channel(target.address, options)
    else:
        tls = grpc.ssl_channel_credentials(access.tls.ca, access.tls.key, access.tls.certificate)
        channel = grpc.secure_channel(target.address, tls, options)
    try:
        yield channel
    except grpc.RpcError as error:
        raise failure(error, target) from error
    finally:
        channel.close()


def failure(error: grpc.RpcError, target: Target) -> CliError:
    """The CliError that a failed RPC means."""
    code, details = error.code(), error.details() or ""
    info = wire.unpack_status(error.trailing_metadata())
    if info is None:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"the registry at {target} did not answer in time; what was asked for may have been done"
            return CliError(message, Exit.UNREACHABLE)
        if code is grpc.StatusCode.UNAVAILABLE:
            return CliError(f"the registry at {target} is out of reach: {details}", Exit.UNREACHABLE)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            remedy = "NARU_REGISTRY must lead to one with `registry` and `accounts` in its REGISTRY_SERVICES"
            remedy = f"{remedy}, NARU_EXECUTION to one with `execution`"
            return CliError(f"what answers at {target} does not serve this: {remedy}", Exit.UNREACHABLE)
        return CliError(f"{code.name}: {details}")
    facts = info.facts
    said = details if details not in ("", info.reason) else info.reason.lower().replace("_", " ")
    # What it says of a malformed request holds its facts already.
    message = said if info.reason == "REQUEST_INVALID" and said == details else with_facts(said, facts)
    if info.reason == "TOKEN_INVALID":
        message = f"the registry refused the admin token of {target.token_from}"
    return CliError(message, EXITS_BY_REASON.get(info.reason, Exit.FAILURE), info.reason, facts)


def with_facts(said: str, facts: Mapping[str, Any]) -> str:
    """`the plan does not exist` → `the plan does not exist (plan gold, plans lite, pro)`; not what it says already."""
    told = [fact_text(name, value) for name, value in facts.items() if not is_told(value, said)]
    return f"{said} ({', '.join(told)})" if told else said


def fact_text(name: str, value: object) -> str:
    """`timeout seconds 30`; a `detail` speaks for itself."""
    shown = ", ".join(map(str, value)) if isinstance(value, list) else fact_word(value)
    return shown if name == "detail" else f"{name.replace('_', ' ')} {shown}"


def fact_word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def is_told(value: object, said: str) -> bool:
    """Whether a sentence holds a fact, as a word of its own: `1` is not told by `1.0`."""
    parts = value if isinstance(value, list) else [value]
    return all(re.search(rf"(?<![\w.-]){re.escape(fact_word(part))}(?![\w-]|\.\w)", said) for part in parts)


def admin_metadata(access: Access, target: Target) -> list[tuple[str, str]]:
    return [(wire.ADMIN_TOKEN_KEY, access.require_admin_token(target))]


def serving(channel: grpc.Channel, timeout: float, service: str = "") -> bool:
    """Whether a process, or one of its services, says that it can serve; waits for the connection.

    Raises grpc.RpcError.
    """
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health.Check(request, timeout=timeout, wait_for_ready=True)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
