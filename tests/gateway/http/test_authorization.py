"""Sends the Authorization header in all its forms, mostly bad ones, through a real gateway.

The registry is scripted: it takes `id:secret` and refuses everything else as the real one does.
"""

import base64
import json

import grpc
import pytest

from tests.support.gateway_alone import post, rpc, tool_call
from tests.support.scripted_registry import CREDENTIAL, Script, fail

pytestmark = pytest.mark.asyncio(loop_scope="module")

PING = rpc("ping")
ID_SECRET = "aWQ6c2VjcmV0"  # id:secret
UNUSUAL = base64.b64encode("아이디~~~:비밀>>>???".encode()).decode()


def basic(credentials: str | bytes) -> str:
    raw = credentials if isinstance(credentials, bytes) else credentials.encode()
    return f"Basic {base64.b64encode(raw).decode()}"


def sent(script: Script) -> str:
    return script.metadata[-1]["authorization"]


def assert_malformed(answer, script: Script) -> None:
    assert answer.status == 400
    assert answer.json["error"]["data"]["reason"] == "AUTHORIZATION_MALFORMED"
    assert answer.json["error"]["code"] == -32600
    assert script.metadata == [], "the registry was asked"


def assert_challenged(answer, *, basic: bool, error: bool = True) -> None:
    assert answer.status == 401
    assert answer.json["error"]["data"]["reason"] == "UNAUTHENTICATED"
    assert answer.json["error"]["code"] == -32001
    challenges = answer.all("www-authenticate")
    assert challenges[0] == ('Bearer error="invalid_token"' if error else "Bearer")
    assert challenges[1:] == (['Basic realm="mcp", charset="UTF-8"'] if basic else [])
    assert "resource_metadata" not in challenges[0]


@pytest.mark.parametrize("value", [None, "Negotiate abc", 'Digest username="a", realm="b"', "Negotiate"])
async def test_no_credential(gateway, script, value):
    answer = await post(gateway, PING, Authorization=value)
    assert_challenged(answer, basic=False, error=False)
    assert script.metadata == []


@pytest.mark.parametrize(
    "value",
    [
        f"basic {ID_SECRET}",
        f"BASIC {ID_SECRET}",
        f"Basic    {ID_SECRET}",
        f"Basic {ID_SECRET}  ",
        f"bearer {ID_SECRET}",
        f"BEARER   {ID_SECRET}",
    ],
)
async def test_scheme_and_spaces(gateway, script, value):
    assert (await post(gateway, PING, Authorization=value)).status == 200
    assert sent(script) == CREDENTIAL


async def test_padding_and_alphabet(gateway, script):
    assert "+" in UNUSUAL or "/" in UNUSUAL
    for value in (UNUSUAL, UNUSUAL.rstrip("="), UNUSUAL.replace("+", "-").replace("/", "_")):
        for scheme in ("Basic", "Bearer"):
            assert (await post(gateway, PING, Authorization=f"{scheme} {value}")).status == 200
            assert sent(script) == f"Basic {UNUSUAL}"
    assert (await post(gateway, PING, Authorization="Basic YTpiYw")).status == 200
    assert sent(script) == "Basic YTpiYw=="


@pytest.mark.parametrize(
    "value",
    ["ab+_YTpi", "YTpiY", "YT!piYg==", "YTpi YTpi", "YTpiYw=", "YTpi=", "YTpiYw====", "=YTpi", "YT=pi"],
)
async def test_no_base64(gateway, script, value):
    assert_malformed(await post(gateway, PING, Authorization=f"Basic {value}"), script)


@pytest.mark.parametrize("credentials", ["nocolon", ":secret", "id:"])
async def test_not_two_parts(gateway, script, credentials):
    assert_challenged(await post(gateway, PING, Authorization=basic(credentials)), basic=True)
    encoded = base64.b64encode(credentials.encode()).decode()
    assert_challenged(await post(gateway, PING, Authorization=f"Bearer {encoded}"), basic=False)
    assert script.metadata == []


async def test_a_colon_in_the_secret(gateway, script):
    assert (await post(gateway, PING, Authorization=basic("id:se:cret"))).status == 200
    assert sent(script) == basic("id:se:cret")


async def test_korean_goes_to_the_registry(gateway, script):
    script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert_challenged(await post(gateway, PING, Authorization=basic("아이디:비밀")), basic=True)
    assert sent(script) == basic("아이디:비밀")


async def test_bytes_that_are_no_utf_8(gateway, script):
    assert_challenged(await post(gateway, PING, Authorization=basic("아이디:비밀".encode("euc-kr"))), basic=True)
    assert script.metadata == []


@pytest.mark.parametrize("value", ["Basic 아이디".encode(), b"Bearer \xff", b"Basic aWQ\xc3\xa96c2VjcmV0"])
async def test_raw_bytes_in_the_header(gateway, script, value):
    assert_malformed(await post(gateway, PING, Authorization=value), script)


@pytest.mark.parametrize("credentials", ["id\0:secret", "id:sec\nret", "id:sec\rret", "id:secret\x7f"])
async def test_control_characters(gateway, script, credentials):
    assert_challenged(await post(gateway, PING, Authorization=basic(credentials)), basic=True)
    assert script.metadata == []


async def test_percent_encoding_is_left_alone(gateway, script):
    assert (await post(gateway, PING, Authorization=basic("i%64:s%65cret"))).status == 200
    assert sent(script) == basic("i%64:s%65cret")


@pytest.mark.parametrize("value", ["Basic", "Bearer", "Basic ", "Bearer    "])
async def test_no_value(gateway, script, value):
    assert_malformed(await post(gateway, PING, Authorization=value), script)


@pytest.mark.parametrize(
    "value",
    [
        [CREDENTIAL, f"Bearer {ID_SECRET}"],
        ["Negotiate abc", CREDENTIAL],
        [f"{CREDENTIAL}, Basic YTpi"],
        [f"{CREDENTIAL},{CREDENTIAL} x"],
    ],
)
async def test_two_credentials(gateway, script, value):
    assert_malformed(await post(gateway, PING, Authorization=value), script)


@pytest.mark.parametrize("size", [5_000, 60_000])
async def test_too_long(gateway, script, size):
    answer = await post(gateway, PING, Authorization=f"Basic {'A' * size}")
    assert answer.status == 431
    assert answer.json["error"]["data"]["reason"] == "AUTHORIZATION_TOO_LARGE"
    assert answer.json["error"]["data"]["limit_bytes"] == 4096
    assert script.metadata == []


@pytest.mark.parametrize("size", [100_000, 2_000_000])
async def test_a_head_too_long_altogether(gateway, script, size):
    answer = await post(gateway, PING, X_Filler="A" * size)
    assert answer.status == 431
    assert answer.json["error"]["code"] == -32600
    assert (await post(gateway, PING)).status == 200


async def test_other_peoples_tokens(gateway, script):
    jwt = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, {"sub": "id"})
    )
    for token in (f"{jwt}.", jwt, base64.b64encode(b"\x93\x10\xf2\x88\x01\x02").decode(), "YTpi~YTpi"):
        assert_challenged(await post(gateway, PING, Authorization=f"Bearer {token}"), basic=False)
    assert script.metadata == []
    script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    twice = base64.b64encode(CREDENTIAL.encode()).decode()
    assert_challenged(await post(gateway, PING, Authorization=f"Bearer {twice}"), basic=False)


async def test_the_registry_says_no(gateway, script):
    script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")

    async def no(_request, context):
        await fail(context, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        yield

    script.run = no
    for body in (PING, rpc("initialize", {"protocolVersion": "2025-11-25"}), rpc("tools/list"), tool_call()):
        wrong_basic = await post(gateway, body, Authorization=basic("id:wrong"))
        assert_challenged(wrong_basic, basic=True)
        assert wrong_basic.json["id"] == 1
        unknown_bearer = await post(gateway, body, Authorization=f"Bearer {base64.b64encode(b'x:y').decode()}")
        assert_challenged(unknown_bearer, basic=False)
        assert unknown_bearer.body == wrong_basic.body


async def test_a_wrong_credential_ends_a_notification_too(gateway, script):
    script.refuse = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    answer = await post(gateway, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert answer.status == 401
    assert "id" not in answer.json


async def test_a_suspended_account_is_forbidden_and_not_challenged(gateway, script):
    script.refuse = (grpc.StatusCode.PERMISSION_DENIED, "ACCOUNT_SUSPENDED")
    answer = await post(gateway, PING)
    assert answer.status == 403
    assert answer.json["error"]["code"] == -32010
    assert answer.all("www-authenticate") == []


async def test_a_header_with_a_tab_is_malformed(gateway, script):
    assert_malformed(await post(gateway, PING, Authorization=f"Basic\t{ID_SECRET}"), script)
