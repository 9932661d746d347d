import base64
import hashlib
import hmac
import re
import zlib
from types import SimpleNamespace

import pytest

from naru.v1 import accounts_pb2
from registry_service.errors import AccountSuspendedError, UnauthenticatedError
from registry_service.identity import credentials
from registry_service.identity.credentials import Credential, authenticate, digest, parse_basic

PEPPER = b"pepper-of-the-tests-of-32-bytes!"


def basic(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return "Basic " + base64.b64encode(raw).decode()


def test_the_forms_are_scannable_in_clear_and_in_base64():
    for _ in range(200):
        client_id, secret = credentials.new_client_id(), credentials.new_secret()
        assert re.fullmatch(r"nrci_[A-Za-z0-9]{21}", client_id)
        assert re.fullmatch(r"nrcs_[A-Za-z0-9]{43}[A-Za-z0-9]{6}", secret)
        encoded = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        assert re.fullmatch(r"bnJjaV[A-Za-z0-9]{30}bnJjc1[89][A-Za-z0-9]{65}", encoded)


def test_secrets_differ_and_end_in_their_checksum():
    made = {credentials.new_secret() for _ in range(100)}
    assert len(made) == 100
    for secret in made:
        number = 0
        for character in secret[-6:]:
            number = number * 62 + credentials.ALPHABET.index(character)
        assert number == zlib.crc32(secret[:-6].encode())


def test_the_digest_is_hmac_sha256_under_the_pepper():
    assert digest(PEPPER, "secret") == hmac.new(PEPPER, b"secret", hashlib.sha256).digest()
    assert digest(PEPPER, "secret") != digest(PEPPER[::-1], "secret")


@pytest.mark.parametrize(
    ("value", "credential"),
    [
        (basic("id:secret"), Credential("id", "secret")),
        (basic("id:with:colons:"), Credential("id", "with:colons:")),
        (basic("고객:비밀"), Credential("고객", "비밀")),
        ("bAsIc " + base64.b64encode(b"id:s").decode(), Credential("id", "s")),
    ],
)
def test_basic_is_read(value, credential):
    assert parse_basic(value) == credential


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Basic",
        "Basic ",
        "Bearer " + base64.b64encode(b"id:secret").decode(),
        basic("no-colon"),
        basic(":secret"),
        basic("id:"),
        basic("고객:비밀".encode("euc-kr")),
        "Basic aWQ6c2VjcmV0X",
        "Basic aWQ6c2VjcmV0!A==",
        "Basic aWQ6c2V jcmV0",
        "Basic 비밀",
    ],
)
def test_anything_else_is_unauthenticated(value):
    with pytest.raises(UnauthenticatedError):
        parse_basic(value)


def accounts(*secrets: str, state: int = accounts_pb2.Account.ACTIVE):
    entry = SimpleNamespace(client_id="id", state=state, secrets=tuple(digest(PEPPER, text) for text in secrets))
    return {"id": entry}


@pytest.mark.parametrize("secrets", [("a",), ("a", "b"), ("b", "a")])
def test_each_live_secret_opens(secrets):
    assert authenticate(accounts(*secrets), PEPPER, Credential("id", "a")).client_id == "id"


@pytest.mark.parametrize(
    ("secrets", "credential"),
    [
        (("a",), None),
        (("a",), Credential("id", "b")),
        (("a",), Credential("id", "")),
        (("a",), Credential("other", "a")),
        ((), Credential("id", "a")),
        (("a",), Credential("id\0", "a")),
    ],
)
def test_nothing_else_does(secrets, credential):
    with pytest.raises(UnauthenticatedError):
        authenticate(accounts(*secrets), PEPPER, credential)


def test_an_unknown_client_and_a_wrong_secret_sound_the_same():
    heard = []
    for credential in (Credential("other", "a"), Credential("id", "b")):
        with pytest.raises(UnauthenticatedError) as caught:
            authenticate(accounts("a"), PEPPER, credential)
        heard.append((str(caught.value), caught.value.facts))
    assert heard[0] == heard[1]


def test_suspension_is_told_only_to_the_owner():
    suspended = accounts("a", state=accounts_pb2.Account.SUSPENDED)
    with pytest.raises(AccountSuspendedError):
        authenticate(suspended, PEPPER, Credential("id", "a"))
    with pytest.raises(UnauthenticatedError):
        authenticate(suspended, PEPPER, Credential("id", "b"))
