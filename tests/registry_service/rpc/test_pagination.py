"""Page tokens: each continues the list that it was issued for, and no other."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry_service.errors import PageTokenInvalidError
from registry_service.rpc.pagination import PageTokens

PAGES, OTHERS = PageTokens(b"p" * 32), PageTokens(b"q" * 32)


@given(st.text(), st.text())
def test_a_token_continues_its_list(kind, key):
    assert PAGES.key_after(kind, PAGES.issue(kind, key)) == key


def test_the_end_of_a_list_has_no_token():
    assert PAGES.issue("tools", None) == ""


@pytest.mark.parametrize(
    ("issued", "asked"),
    [("tools", "accounts"), ("catalog of a in production", "catalog of b in production"), ("a", "ab"), ("ab", "a")],
)
def test_a_token_of_another_list_is_refused(issued, asked):
    with pytest.raises(PageTokenInvalidError):
        PAGES.key_after(asked, PAGES.issue(issued, "bc"))


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "=",
        "고",
        base64.urlsafe_b64encode(b"m" * 16 + b"key").decode(),
        PageTokens(b"q" * 32).issue("tools", "key"),
    ],
)
def test_a_token_that_was_made_elsewhere_is_refused(token):
    with pytest.raises(PageTokenInvalidError):
        PAGES.key_after("tools", token)


@given(st.data())
def test_a_changed_token_is_refused(data):
    raw = bytearray(base64.urlsafe_b64decode(PAGES.issue("tools", "key")))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PageTokenInvalidError):
        PAGES.key_after("tools", base64.urlsafe_b64encode(raw).decode())
