"""Every variable: its default, its conversion, and a refusal that names it."""

from pathlib import Path

import pytest

from gateway.settings import Settings
from naru.environment import Bind, SettingError
from tests.support.certificates import Certificates, make_certificates

TOKEN = {"GATEWAY_REGISTRY_TOKEN": "secret-token"}


def settings(**environ: str) -> Settings:
    return Settings.from_env({**TOKEN, **environ})


def test_defaults_are_those_of_the_design():
    read = settings()
    assert read.bind == Bind("127.0.0.1", 8080)
    assert read.registry == read.execution == "dns:///127.0.0.1:50051"
    assert read.mcp_paths == ("/mcp",)
    assert read.allowed_origins == {"http://127.0.0.1:8080"}
    assert read.allowed_hosts == {"localhost", "127.0.0.1", "[::1]", "127.0.0.1:8080"}
    assert read.metrics_bind == Bind("127.0.0.1", 9464)
    assert (read.keepalive, read.stream_after, read.shutdown_grace) == (15, 10, 20)
    assert (read.max_body_bytes, read.meta_prefix, read.locale) == (4 << 20, "xdata.kr", "ko")
    assert read.call_timeout > 3600, "the registry's own limit must fire first"
    assert read.forwarded_allow_ips == ""
    assert read.registry_ca is None


def test_an_empty_variable_counts_as_absent():
    assert settings(GATEWAY_BIND="", GATEWAY_LOCALE=" ") == settings()


def test_public_url_gives_origin_and_host():
    read = settings(GATEWAY_PUBLIC_URL="https://Gateway.Example:443/tools/mcp")
    assert "https://gateway.example" in read.allowed_origins
    assert "gateway.example" in read.allowed_hosts
    assert settings(GATEWAY_PUBLIC_URL="http://[::1]:8080").allowed_origins == {"http://[::1]:8080"}


def test_a_bind_that_is_no_url_allows_no_origin():
    assert settings(GATEWAY_BIND="0.0.0.0:8080").allowed_origins == frozenset()
    assert settings(GATEWAY_BIND="127.0.0.1:0").allowed_origins == frozenset()


def test_lists():
    read = settings(
        GATEWAY_MCP_PATHS="/mcp, /public/mcp/,/mcp",
        GATEWAY_ALLOWED_ORIGINS="https://a.example,HTTPS://B.example:8443",
        GATEWAY_ALLOWED_HOSTS="gateway, Edge.example:8080",
        GATEWAY_FORWARDED_ALLOW_IPS="10.0.0.0/8, ::1",
    )
    assert read.mcp_paths == ("/mcp", "/public/mcp")
    assert {"https://a.example", "https://b.example:8443"} <= read.allowed_origins
    assert {"gateway", "edge.example:8080"} <= read.allowed_hosts
    assert read.forwarded_allow_ips == "10.0.0.0/8,::1"


def test_ipv6_bind_and_metrics_off():
    read = settings(GATEWAY_BIND="[::1]:0", GATEWAY_METRICS_BIND="off")
    assert read.bind == Bind("::1", 0)
    assert str(read.bind) == "[::1]:0"
    assert read.metrics_bind is None


def test_execution_follows_the_registry_unless_named():
    assert settings(GATEWAY_REGISTRY="dns:///r:1").execution == "dns:///r:1"
    assert settings(GATEWAY_REGISTRY="dns:///r:1", GATEWAY_EXECUTION="dns:///x:2").execution == "dns:///x:2"


def test_token_from_a_file(tmp_path: Path):
    (tmp_path / "token").write_text("from-file\n")
    read = Settings.from_env({"GATEWAY_REGISTRY_TOKEN_FILE": str(tmp_path / "token")})
    assert read.registry_token == "from-file"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_tls_needs_no_token(certificates: Certificates):
    read = Settings.from_env(
        {
            "GATEWAY_REGISTRY_CA_FILE": str(certificates.authority),
            "GATEWAY_REGISTRY_CERT_FILE": str(certificates.client.certificate),
            "GATEWAY_REGISTRY_KEY_FILE": str(certificates.client.key),
        }
    )
    assert read.registry_ca == certificates.authority.read_bytes()
    assert read.registry_cert == certificates.client.certificate.read_bytes()
    assert read.registry_key == certificates.client.key.read_bytes()
    assert read.registry_token == ""


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path):
    (tmp_path / "ca").write_text("hello")
    with pytest.raises(SettingError, match=r"^GATEWAY_REGISTRY_CA_FILE: holds no PEM"):
        settings(GATEWAY_REGISTRY_CA_FILE=str(tmp_path / "ca"))


def test_somebody_elses_key_is_refused(certificates: Certificates):
    with pytest.raises(SettingError, match=r"^GATEWAY_REGISTRY_CERT_FILE: "):
        settings(
            GATEWAY_REGISTRY_CA_FILE=str(certificates.authority),
            GATEWAY_REGISTRY_CERT_FILE=str(certificates.client.certificate),
            GATEWAY_REGISTRY_KEY_FILE=str(certificates.server.key),
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GATEWAY_BIND", "8080"),
        ("GATEWAY_BIND", ":8080"),
        ("GATEWAY_BIND", "127.0.0.1:65536"),
        ("GATEWAY_BIND", "::1:8080"),
        ("GATEWAY_BIND", "[::g]:8080"),
        ("GATEWAY_REGISTRY", "registry"),
        ("GATEWAY_EXECUTION", "dns:///a b:1"),
        ("GATEWAY_REGISTRY_TOKEN", "two words"),
        ("GATEWAY_REGISTRY_TOKEN", "토큰"),
        ("GATEWAY_REGISTRY_TOKEN_FILE", "/nowhere/token"),
        ("GATEWAY_REGISTRY_CA_FILE", "/nowhere/ca.pem"),
        ("GATEWAY_PUBLIC_URL", "gateway.example"),
        ("GATEWAY_PUBLIC_URL", "ftp://gateway.example"),
        ("GATEWAY_PUBLIC_URL", "https://user@gateway.example"),
        ("GATEWAY_PUBLIC_URL", "https://gateway.example:99999"),
        ("GATEWAY_MCP_PATHS", "mcp"),
        ("GATEWAY_MCP_PATHS", "/healthz"),
        ("GATEWAY_MCP_PATHS", "/.well-known/x"),
        ("GATEWAY_MCP_PATHS", "/"),
        ("GATEWAY_MCP_PATHS", "/{path:path}"),
        ("GATEWAY_ALLOWED_ORIGINS", "null"),
        ("GATEWAY_ALLOWED_ORIGINS", "https://a.example/path"),
        ("GATEWAY_ALLOWED_HOSTS", "https://a.example"),
        ("GATEWAY_FORWARDED_ALLOW_IPS", "proxy"),
        ("GATEWAY_METRICS_BIND", "9464"),
        ("GATEWAY_KEEPALIVE_SECONDS", "0"),
        ("GATEWAY_STREAM_AFTER_SECONDS", "soon"),
        ("GATEWAY_SHUTDOWN_GRACE_SECONDS", "-1"),
        ("GATEWAY_SHUTDOWN_GRACE_SECONDS", "nan"),
        ("GATEWAY_CALL_TIMEOUT_SECONDS", "inf"),
        ("GATEWAY_MAX_BODY_BYTES", "4MiB"),
        ("GATEWAY_MAX_BODY_BYTES", "99999999"),
        ("GATEWAY_META_PREFIX", "xdata.kr/"),
        ("GATEWAY_META_PREFIX", "io.modelcontextprotocol"),
        ("GATEWAY_META_PREFIX", "dev.mcp"),
        ("GATEWAY_LOCALE", "jp"),
        ("GATEWAY_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str):
    environ = {name: value} if name.startswith("GATEWAY_REGISTRY_TOKEN") else {**TOKEN, name: value}
    with pytest.raises(SettingError, match=rf"^{name}: ") as caught:
        Settings.from_env(environ)
    assert "\n" not in str(caught.value)


def test_a_token_is_required_without_tls():
    with pytest.raises(SettingError, match=r"^GATEWAY_REGISTRY_TOKEN: is required"):
        Settings.from_env({})


def test_a_refusal_never_repeats_the_token():
    with pytest.raises(SettingError) as caught:
        Settings.from_env({"GATEWAY_REGISTRY_TOKEN": "hunter2 with spaces"})
    assert "hunter2" not in str(caught.value)


def test_token_and_file_together_are_refused(tmp_path: Path):
    (tmp_path / "token").write_text("t")
    with pytest.raises(SettingError, match=r"^GATEWAY_REGISTRY_TOKEN: is set"):
        settings(GATEWAY_REGISTRY_TOKEN_FILE=str(tmp_path / "token"))


def test_an_empty_token_file_is_refused(tmp_path: Path):
    (tmp_path / "token").write_text(" \n")
    with pytest.raises(SettingError, match=r"^GATEWAY_REGISTRY_TOKEN_FILE: "):
        Settings.from_env({"GATEWAY_REGISTRY_TOKEN_FILE": str(tmp_path / "token")})


@pytest.mark.parametrize("given", ["CERT", "KEY"])
def test_a_certificate_and_its_key_belong_together(tmp_path: Path, given: str):
    (tmp_path / "pem").write_text("PEM")
    missing = "KEY" if given == "CERT" else "CERT"
    with pytest.raises(SettingError, match=rf"^GATEWAY_REGISTRY_{missing}_FILE: "):
        settings(**{f"GATEWAY_REGISTRY_{given}_FILE": str(tmp_path / "pem")})


def test_a_client_certificate_needs_tls(tmp_path: Path):
    (tmp_path / "pem").write_text("PEM")
    with pytest.raises(SettingError, match=r"^GATEWAY_REGISTRY_CA_FILE: "):
        settings(
            GATEWAY_REGISTRY_CERT_FILE=str(tmp_path / "pem"),
            GATEWAY_REGISTRY_KEY_FILE=str(tmp_path / "pem"),
        )
