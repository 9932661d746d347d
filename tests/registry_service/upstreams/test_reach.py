"""Checks what the registry says of an address and of secrets before anything is called."""

from ipaddress import ip_network

import pytest

from registry_service.errors import RequestInvalidError
from registry_service.upstreams.reach import Reach


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/{id}?k=${secret:k}", ""),
        ("http://[::1]:9/", "REGISTRY_ENDPOINT_NETWORKS does not admit ::1"),
        ("https://10.0.0.1/", "REGISTRY_ENDPOINT_NETWORKS does not admit 10.0.0.1"),
        ("https://93.184.216.34/", ""),
        ("http://169.254.169.254/latest", "169.254.169.254 is never called"),
        ("http://0x7f.1/", ""),
        ("http://no-such-host.invalid/", "no-such-host.invalid does not resolve"),
        ("http://" + "a" * 70 + ".example/", "does not resolve"),
    ],
)
async def test_an_address_may_be_called_or_it_is_said_why_not(url, words):
    obstacle = await Reach((ip_network("127.0.0.0/8"),), None).obstacle(url)
    assert words in obstacle
    assert bool(words) == bool(obstacle)


@pytest.mark.parametrize("url", ["", "ftp://127.0.0.1/", "http://", "http://[", "http://a:99999/", "x"])
async def test_what_is_not_a_url_is_refused(url):
    with pytest.raises(RequestInvalidError):
        await Reach((), None).obstacle(url)


def test_secrets_that_are_not_there_are_named_once(tmp_path):
    (tmp_path / "known").write_text("x")
    (tmp_path / "empty").write_text("")
    texts = ["Bearer ${secret:known}", "${secret:lost}${secret:lost}", "http://a/?k=${secret:empty}", "${secret:../x}"]
    assert Reach((), tmp_path).unknown_secrets(texts) == ["lost", "empty"]
    assert Reach((), None).unknown_secrets(texts[:1]) == ["known"]
