"""Metrics are served to whoever names the machine, and to no page in a browser that has led its own name here."""

import http.client
import socket

import pytest
from prometheus_client import CollectorRegistry, Counter

from naru.environment import Bind
from naru.metrics_server import MetricsServer


@pytest.fixture
def server():
    registry = CollectorRegistry()
    Counter("naru_test", "Of a test.", registry=registry).inc()
    server = MetricsServer(Bind("127.0.0.1", 0), registry, frozenset({"naru.example", "other.example:9465"}))
    yield server
    server.close()


def scraped(bind: Bind, host: str | None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(bind.host, bind.port, timeout=10)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9465", "10.1.2.3", "[::1]:9465", "localhost", "LOCALHOST:9465", "registry:9465", None, "",
        "naru.example", "Naru.Example:1", "other.example:9465", socket.gethostname(),
    ],
)  # fmt: skip
def test_they_are_served_under_names_of_the_machine(server, host):
    status, text = scraped(server.bind, host)
    assert status == 200
    assert b"naru_test_total 1.0" in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9465", "127.0.0.1.evil.example", "other.example", "[x"])
def test_they_are_refused_under_any_other(server, host):
    status, text = scraped(server.bind, host)
    assert (status, b"naru_test" in text) == (421, False)


def test_a_client_that_says_nothing_holds_up_nobody(server):
    with socket.create_connection(server.bind):
        assert scraped(server.bind, "localhost")[0] == 200


def test_ipv6():
    try:
        server = MetricsServer(Bind("::1", 0), CollectorRegistry())
    except OSError:
        pytest.skip("this machine has no IPv6")
    try:
        assert scraped(server.bind, str(server.bind))[0] == 200
    finally:
        server.close()


def test_a_port_in_use_is_an_error(server):
    with pytest.raises(OSError, match="in use"):
        MetricsServer(server.bind, CollectorRegistry())
