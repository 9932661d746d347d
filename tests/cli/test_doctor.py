"""Tests `naru doctor` against real processes, healthy and with one thing wrong: it names that one."""

import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from naru_cli import app as cli
from naru_cli.endpoints import URL
from tests.support.certificates import Pair, make_certificates
from tests.support.demo_run import FREE_PORTS, Run, environment

# A deleted tool's numbers are not used again.
VERSIONS = count(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # On every address, so that it can be asked under a name that is not its own.
    known = tmp_path_factory.mktemp("secrets") / "known"
    known.write_text("a secret")
    settings = {"GATEWAY_BIND": "0.0.0.0:0", "REGISTRY_SECRETS_DIR": str(known.parent)}
    with Run(tmp_path_factory.mktemp("doctor"), FREE_PORTS | settings) as running:
        yield running


@pytest.fixture(autouse=True)
def in_the_run_s_directory(run, monkeypatch):
    monkeypatch.chdir(run.directory)
    for name in [name for name in os.environ if name.startswith("NARU_")]:
        monkeypatch.delenv(name)


def naru(*arguments: str, stdin: str | None = None, **variables: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, arguments, input=stdin, env=variables)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def examined(**variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Returns the exit code, and what is not ok, by the name of the check."""
    code, out = naru("doctor", "--json", **variables)
    return code, {finding["check"]: finding for finding in json.loads(out) if finding["state"] != "ok"}


def apply(name: str, *versions: str, url: str) -> None:
    tools = [
        {
            "name": name,
            "version": version,
            "description": "a test",
            "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
            "endpoint": {"production": {"url": url}},
        }
        for version in versions
    ]
    code, _ = naru("tool", "apply", "-f", "-", stdin=json.dumps({"tools": tools}))
    assert code == 0


@contextmanager
def closed_port():
    """Holds a port of this machine on which nothing listens, for as long as it is held."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_all_is_well():
    code, out = naru("doctor")
    assert code == 0, out
    for check in ("registry", "admin token", "gateway", "credential", "endpoint 127.0.0.1:"):
        assert f"ok       {check}" in out
    assert "used by csv_profile, echo, kr_holidays, qr_code, slow_report …" in out


def test_a_registry_out_of_reach():
    with closed_port() as address:
        code, wrong = examined(NARU_REGISTRY=address, NARU_ADMIN_TOKEN="x" * 20)
    assert (code, list(wrong)) == (1, ["registry"])
    assert wrong["registry"]["setting"] == "NARU_REGISTRY"
    assert address in wrong["registry"]["message"]
    assert "REGISTRY_BIND" in wrong["registry"]["remedy"]


def test_something_else_than_a_registry_at_its_address(run):
    gateway = json.loads((run.directory / ".naru" / "run.json").read_text())["url"].split("/")[2]
    code, wrong = examined(NARU_REGISTRY=gateway, NARU_ADMIN_TOKEN="x" * 20)
    assert (code, wrong["registry"]["setting"]) == (1, "NARU_REGISTRY")


def test_a_wrong_admin_token():
    code, wrong = examined(NARU_ADMIN_TOKEN="x" * 20)
    assert (code, list(wrong)) == (1, ["admin token"])
    assert wrong["admin token"]["setting"] == "NARU_ADMIN_TOKEN"
    assert "REGISTRY_ADMIN_TOKEN" in wrong["admin token"]["remedy"]


def test_a_wrong_credential(run):
    client_id = (run.directory / ".naru" / "demo.credentials").read_text().partition(":")[0]
    code, wrong = examined(NARU_CREDENTIALS=f"{client_id}:nrcs_wrong")
    assert (code, list(wrong)) == (1, ["credential"])
    assert wrong["credential"]["setting"] == "NARU_CREDENTIALS"


def test_a_suspended_account():
    _, out = naru("account", "create", "suspended", "--json")
    made = json.loads(out)
    naru("account", "suspend", made["client_id"])
    code, wrong = examined(NARU_CREDENTIALS=made["credential"])
    assert (code, list(wrong)) == (1, ["credential"])
    assert "resume" in wrong["credential"]["remedy"]


def test_a_gateway_out_of_reach():
    with closed_port() as address:
        code, wrong = examined(NARU_URL=f"http://{address}/mcp", NARU_CREDENTIALS="a:b")
    assert (code, list(wrong)) == (1, ["gateway"])
    assert wrong["gateway"]["setting"] == "NARU_URL"
    assert "GATEWAY_BIND" in wrong["gateway"]["remedy"]


def test_a_path_that_the_gateway_does_not_serve(run):
    url = json.loads((run.directory / ".naru" / "run.json").read_text())["url"]
    credential = (run.directory / ".naru" / "demo.credentials").read_text().strip()
    code, wrong = examined(NARU_URL=url.replace("/mcp", "/mcq"), NARU_CREDENTIALS=credential)
    assert (code, list(wrong)) == (1, ["credential"])
    assert wrong["credential"]["setting"] == "NARU_URL"
    assert "GATEWAY_MCP_PATHS" in wrong["credential"]["remedy"]


def test_a_host_name_that_the_gateway_does_not_serve(run):
    url = json.loads((run.directory / ".naru" / "run.json").read_text())["url"]
    code, wrong = examined(NARU_URL=url.replace("127.0.0.1", "127.0.0.2"), NARU_CREDENTIALS="a:b")
    assert (code, list(wrong)) == (1, ["credential"])
    assert wrong["credential"]["setting"] == "GATEWAY_ALLOWED_HOSTS"


def test_an_ambiguous_tool():
    apply("two.active", "1.0", "2.0", url="http://127.0.0.1:1/")
    naru("tool", "activate", "two.active", "1.0")
    naru("tool", "activate", "two.active", "2.0", "--keep-others-active")
    try:
        code, wrong = examined()
    finally:
        naru("tool", "delete", "two.active", "--yes")
    assert code == 1
    assert "1.0" in wrong["tool two.active"]["message"]
    assert "2.0" in wrong["tool two.active"]["message"]
    assert "naru tool activate two.active" in wrong["tool two.active"]["remedy"]


def test_a_tool_without_an_active_version_is_a_warning():
    apply("none.active", "1.0", url="http://127.0.0.1:1/")
    try:
        code, wrong = examined()
    finally:
        naru("tool", "delete", "none.active", "--yes")
    assert (code, wrong["tool none.active"]["state"]) == (0, "warning")


@pytest.mark.parametrize(
    ("server", "words"), [("no-such-host.invalid:80", "does not resolve"), ("127.0.0.1:1", "nothing listens")]
)
def test_an_endpoint_that_cannot_be_reached(server, words):
    name = "lost." + words.split()[0]
    apply(name, "1.0", url=f"http://{server}/x/{{id}}")
    naru("tool", "activate", name, "1.0")
    try:
        code, wrong = examined()
    finally:
        naru("tool", "delete", name, "--yes")
    assert (code, list(wrong)) == (1, [f"endpoint {server}"])
    assert words in wrong[f"endpoint {server}"]["message"]
    assert name in wrong[f"endpoint {server}"]["message"]


@contextmanager
def tool_at(url: str, **headers: str):
    """Makes a tool whose active version leads to the URL."""
    endpoint = {"production": {"url": url, "headers": headers}}
    tool = {"name": "led", "version": str(next(VERSIONS)), "description": "x", "active": True}
    source = json.dumps({"tools": [tool | {"inputSchema": {"type": "object"}, "endpoint": endpoint}]})
    assert naru("tool", "apply", "-f", "-", stdin=source)[0] == 0
    try:
        yield
    finally:
        naru("tool", "delete", "led", "--yes")


def test_an_address_that_is_never_called_is_wrong():
    with tool_at("http://169.254.169.254/latest"):
        code, wrong = examined()
    assert (code, list(wrong)) == (1, ["endpoint 169.254.169.254:80"])
    finding = wrong["endpoint 169.254.169.254:80"]
    assert (finding["state"], "is never called" in finding["message"]) == ("wrong", True)


@pytest.mark.parametrize("query", ["", "?k=${secret:a.key}&other=${secret:known}"])
def test_a_secret_that_the_registry_lacks_is_wrong(query):
    headers = {"X-Other": "${secret:known}"} if query else {"X-Key": "Bearer ${secret:a.key}"}
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        tool_at(f"http://127.0.0.1:{server.getsockname()[1]}/{query}", **headers),
    ):
        code, wrong = examined()
    assert (code, list(wrong)) == (1, ["secret a.key"])
    assert wrong["secret a.key"]["setting"] == "REGISTRY_SECRETS_DIR"
    assert "used by led" in wrong["secret a.key"]["message"]


def test_a_registry_of_the_environment_is_asked_what_it_may_call(run):
    registry = json.loads((run.directory / ".naru" / "run.json").read_text())["registry"]
    token = (run.directory / ".naru" / "admin.token").read_text().strip()
    assert examined(NARU_REGISTRY=registry, NARU_ADMIN_TOKEN=token) == (0, {})


def test_an_address_that_is_not_admitted_is_wrong_and_not_connected_to():
    with tool_at("http://10.255.255.1:81/"):
        code, wrong = examined()
    assert (code, list(wrong)) == (1, ["endpoint 10.255.255.1:81"])
    finding = wrong["endpoint 10.255.255.1:81"]
    assert (finding["state"], finding["setting"]) == ("wrong", "REGISTRY_ENDPOINT_NETWORKS")
    assert "does not admit 10.255.255.1" in finding["message"]


@contextmanager
def https_server(pair: Pair):
    """Runs a server on every address that shakes hands, and says nothing more; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    with socket.create_server(("0.0.0.0", 0)) as plain, context.wrap_socket(plain, server_side=True) as server:

        def serve() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except ssl.SSLError:  # a client that did not trust us
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_certificate_that_is_not_trusted_is_named(tmp_path):
    made = make_certificates(tmp_path)
    with https_server(made.server) as port:
        check = f"endpoint 127.0.0.1:{port}"
        with tool_at(f"https://127.0.0.1:{port}/"):
            code, wrong = examined()
            assert (code, list(wrong)) == (1, [check])
            assert "certificate isn't trusted" in wrong[check]["message"]
            assert wrong[check]["setting"] == "REGISTRY_ENDPOINT_CA_FILE"
            assert examined(NARU_ENDPOINT_CA_FILE=str(made.authority)) == (0, {})
        with tool_at(f"https://127.0.0.2:{port}/"):
            code, wrong = examined(NARU_ENDPOINT_CA_FILE=str(made.authority))
            finding = wrong[f"endpoint 127.0.0.2:{port}"]
            assert (code, "IP address mismatch" in finding["message"], finding["setting"]) == (1, True, URL)


def test_a_server_without_tls_behind_https_is_named(run):
    demo = next(line.split()[1] for line in run.text.splitlines() if line.startswith("  demo"))
    with tool_at(demo.replace("http://", "https://") + "/echo"):
        code, wrong = examined()
    (finding,) = [finding for check, finding in wrong.items() if check.startswith("endpoint")]
    assert (code, "no TLS is spoken there" in finding["message"]) == (1, True)


@contextmanager
def troubled_registry(directory: Path, trouble: str, **settings: str):
    """Runs a registry of its own that listens and cannot serve, once its log says why; what leads there."""
    log = directory / "registry.log"
    token = secrets.token_urlsafe(32)
    required = {
        "REGISTRY_BIND": "127.0.0.1:0",
        "REGISTRY_METRICS_BIND": "127.0.0.1:0",
        "REGISTRY_PEPPER": secrets.token_urlsafe(48),
        "REGISTRY_ADMIN_TOKEN": token,
        "REGISTRY_SERVICE_TOKEN": secrets.token_urlsafe(32),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "registry_service"],
            env=environment({**required, **settings}),
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    try:
        assert process.stdout is not None
        records = map(json.loads, process.stdout)
        listening = next(record for record in records if record["event"] == "listening")
        next(record for record in records if record["event"] == trouble)
        yield {"NARU_REGISTRY": listening["address"], "NARU_ADMIN_TOKEN": token}
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_database_that_is_not_migrated(tmp_path):
    settings = {"DATABASE_URL": "sqlite:///naru.db", "REGISTRY_AUTO_MIGRATE": "false"}
    with troubled_registry(tmp_path, "database is not migrated", **settings) as variables:
        code, wrong = examined(**variables)
    assert code == 1
    assert wrong["database"]["message"] == "the registry's database is not migrated"
    assert wrong["database"]["setting"] == "REGISTRY_AUTO_MIGRATE"
    assert "start one registry process with REGISTRY_AUTO_MIGRATE=true" in wrong["database"]["remedy"]


def test_a_database_out_of_reach(tmp_path):
    with closed_port() as address:
        url = f"postgresql://naru:secret@{address}/naru"
        with troubled_registry(tmp_path, "database cannot be used", DATABASE_URL=url) as variables:
            code, wrong = examined(**variables)
    assert code == 1
    assert wrong["database"]["setting"] == "DATABASE_URL"


def test_a_gateway_with_a_wrong_token(run, tmp_path):
    registry = json.loads((run.directory / ".naru" / "run.json").read_text())["registry"]
    settings = {
        "GATEWAY_BIND": "127.0.0.1:0",
        "GATEWAY_METRICS_BIND": "off",
        "GATEWAY_REGISTRY": f"dns:///{registry}",
        "GATEWAY_REGISTRY_TOKEN": "wrong-wrong-wrong-wrong",
    }
    command = [sys.executable, "-m", "gateway"]
    with subprocess.Popen(
        command, env=environment(settings), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as gateway:
        try:
            assert gateway.stdout is not None
            ready = next(record for line in gateway.stdout if (record := json.loads(line))["event"] == "gateway ready")
            code, wrong = examined(NARU_URL=f"http://{ready['address']}/mcp", NARU_CREDENTIALS="a:b")
        finally:
            gateway.terminate()
    assert (code, list(wrong)) == (1, ["gateway"])
    assert wrong["gateway"]["setting"] == "GATEWAY_REGISTRY_TOKEN"
