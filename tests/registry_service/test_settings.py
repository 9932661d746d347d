"""Every variable, what it may say, and that a bad value is named and never repeated where it is secret."""

import subprocess
import sys
from ipaddress import ip_network

import pytest

from naru.environment import SettingError
from registry_service.settings import Settings
from tests.support.certificates import make_certificates

GOOD = {
    "REGISTRY_PEPPER": "p" * 32,
    "REGISTRY_ADMIN_TOKEN": "admin-token-of-the-tests",
    "REGISTRY_SERVICE_TOKEN": "service-token-of-the-tests",
}


def read(**changes: str | None) -> Settings:
    environ = {**GOOD, **changes}
    return Settings.from_env({name: value for name, value in environ.items() if value is not None})


def refused(**changes: str | None) -> str:
    with pytest.raises(SettingError) as caught:
        read(**changes)
    return str(caught.value)


def test_defaults():
    settings = read()
    assert settings.bind == ("127.0.0.1", 50051)
    assert settings.metrics_bind == ("127.0.0.1", 9465)
    assert settings.database_url == "sqlite:///naru.db"
    assert settings.services == {"registry", "accounts", "execution"}
    assert settings.pepper == b"p" * 32
    assert (settings.default_timeout, settings.max_timeout) == (30, 3600)
    assert settings.max_result_bytes == 8 * 1024 * 1024
    assert (settings.max_connection_age, settings.shutdown_grace) == (15, 20)
    assert settings.endpoint_networks == ()
    assert settings.auto_migrate is True
    assert settings.tls is None
    assert settings.log_level == "info"


def test_an_empty_variable_counts_as_absent():
    assert read(REGISTRY_BIND="", REGISTRY_PLANS_FILE="", REGISTRY_TLS_CERT_FILE="") == read()


def test_values_are_read():
    settings = read(
        REGISTRY_BIND="[::1]:0",
        REGISTRY_METRICS_BIND="off",
        DATABASE_URL="postgresql://naru:pw@db:5433/naru",
        REGISTRY_SERVICES="execution, accounts",
        REGISTRY_ENDPOINT_NETWORKS="10.0.0.0/8, fd00::/8",
        REGISTRY_DEFAULT_TIMEOUT_SECONDS="0.5",
        REGISTRY_SHUTDOWN_GRACE_SECONDS="0",
        REGISTRY_AUTO_MIGRATE="No",
        REGISTRY_LOG_LEVEL="debug",
    )
    assert settings.bind == ("::1", 0)
    assert settings.metrics_bind is None
    assert settings.database_url == "postgresql://naru:pw@db:5433/naru"
    assert settings.services == {"execution", "accounts"}
    assert settings.endpoint_networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert settings.default_timeout == 0.5
    assert settings.shutdown_grace == 0
    assert settings.auto_migrate is False
    assert settings.log_level == "debug"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///naru.db",
        "sqlite:////var/lib/naru/naru.db",
        "postgresql://db",
        "postgres://naru:pw@db/naru?sslmode=verify-full",
        "postgresql://naru@one:5432,two:5433/naru",
        "postgresql:///naru?host=/run/postgresql",
    ],
)
def test_forms_of_a_database_url(url):
    assert read(DATABASE_URL=url).database_url == url


BAD = [
    ("REGISTRY_BIND", "50051"),
    ("REGISTRY_BIND", ":50051"),
    ("REGISTRY_BIND", "127.0.0.1:65536"),
    ("REGISTRY_BIND", "127.0.0.1:-1"),
    ("REGISTRY_BIND", "::1:50051"),
    ("REGISTRY_BIND", "[localhost]:50051"),
    ("REGISTRY_BIND", "127.0.0.1:٣"),
    ("REGISTRY_METRICS_BIND", "nowhere"),
    ("DATABASE_URL", "sqlite://"),
    ("DATABASE_URL", "sqlite:///"),
    ("DATABASE_URL", "sqlite:///:memory:"),
    ("DATABASE_URL", "mysql://naru:pw@db/naru"),
    ("DATABASE_URL", "sqlite:///naru.db?mode=ro"),
    ("DATABASE_URL", "naru.db"),
    ("DATABASE_URL", "postgresql:///naru"),
    ("DATABASE_URL", "postgresql://[db/naru"),
    ("REGISTRY_SERVICES", "registry,gateway"),
    ("REGISTRY_SERVICES", ","),
    ("REGISTRY_PEPPER", "short"),
    ("REGISTRY_ADMIN_TOKEN", "short"),
    ("REGISTRY_ADMIN_TOKEN", "with a space within it"),
    ("REGISTRY_ADMIN_TOKEN", "토큰토큰토큰토큰토큰토큰토큰토큰"),
    ("REGISTRY_SERVICE_TOKEN", "short"),
    ("REGISTRY_SERVICE_TOKEN", GOOD["REGISTRY_ADMIN_TOKEN"]),
    ("REGISTRY_PLANS_FILE", "/nonexistent/plans.yaml"),
    ("REGISTRY_SECRETS_DIR", "/nonexistent"),
    ("REGISTRY_ENDPOINT_NETWORKS", "10.0.0.1/8"),
    ("REGISTRY_ENDPOINT_NETWORKS", "private"),
    ("REGISTRY_DEFAULT_TIMEOUT_SECONDS", "0"),
    ("REGISTRY_DEFAULT_TIMEOUT_SECONDS", "nan"),
    ("REGISTRY_DEFAULT_TIMEOUT_SECONDS", "30s"),
    ("REGISTRY_DEFAULT_TIMEOUT_SECONDS", "3601"),
    ("REGISTRY_MAX_TIMEOUT_SECONDS", "inf"),
    ("REGISTRY_MAX_RESULT_BYTES", "0"),
    ("REGISTRY_MAX_RESULT_BYTES", "8MiB"),
    ("REGISTRY_MAX_RESULT_BYTES", str(16 * 1024 * 1024)),
    ("REGISTRY_MAX_CONNECTION_AGE_SECONDS", "0"),
    ("REGISTRY_SHUTDOWN_GRACE_SECONDS", "-1"),
    ("REGISTRY_AUTO_MIGRATE", "maybe"),
    ("REGISTRY_TLS_CERT_FILE", "/nonexistent/tls.crt"),
    ("REGISTRY_TLS_KEY_FILE", "/nonexistent/tls.key"),
    ("REGISTRY_TLS_CLIENT_CA_FILE", "/nonexistent/ca.crt"),
    ("REGISTRY_LOG_LEVEL", "LOUD"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named(name, value):
    assert refused(**{name: value}).startswith(f"{name}: ")


SECRETS = ("REGISTRY_PEPPER", "REGISTRY_ADMIN_TOKEN", "REGISTRY_SERVICE_TOKEN")


@pytest.mark.parametrize("name", SECRETS)
def test_each_secret_is_needed(name):
    assert refused(**{name: None}).startswith(f"{name}: is not set")


@pytest.mark.parametrize("name", SECRETS)
def test_each_secret_may_come_from_a_file(name, tmp_path):
    secret = "from-a-file-and-long-enough-for-a-pepper"
    path = tmp_path / "secret"
    path.write_text(f"{secret}\n")
    settings = read(**{name: None, f"{name}_FILE": str(path)})
    assert secret in (settings.pepper.decode(), settings.admin_token, settings.service_token)
    assert refused(**{f"{name}_FILE": str(path)}).startswith(f"{name}: ")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, None])
def test_a_bad_secret_file_is_named(name, content, tmp_path):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    assert refused(**{name: None, f"{name}_FILE": str(path)}).startswith(f"{name}_FILE: ")


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("REGISTRY_PEPPER", "hunter2", "hunter2"),
        ("REGISTRY_ADMIN_TOKEN", "hunter2", "hunter2"),
        ("REGISTRY_SERVICE_TOKEN", "hunter2 hunter2 hunter2", "hunter2"),
        ("DATABASE_URL", "mysql://naru:hunter2@db/naru", "hunter2"),
    ],
)
def test_no_message_repeats_a_secret(name, value, hidden):
    assert hidden not in refused(**{name: value})


def test_no_secret_stands_in_the_representation():
    shown = repr(read(DATABASE_URL="postgresql://naru:hunter2@db/naru"))
    assert all(hidden not in shown for hidden in ("hunter2", *GOOD.values()))


def test_tls_needs_its_pair_and_replaces_the_service_token(tmp_path):
    ca, (cert, key), _ = make_certificates(tmp_path)
    pair = {"REGISTRY_TLS_CERT_FILE": str(cert), "REGISTRY_TLS_KEY_FILE": str(key)}
    settings = read(**pair, REGISTRY_TLS_CLIENT_CA_FILE=str(ca), REGISTRY_SERVICE_TOKEN=None)
    assert settings.service_token is None
    assert settings.tls is not None
    assert settings.tls.client_ca == ca.read_bytes()
    assert refused(REGISTRY_TLS_CERT_FILE=str(cert)).startswith("REGISTRY_TLS_KEY_FILE: ")
    assert refused(REGISTRY_TLS_KEY_FILE=str(key)).startswith("REGISTRY_TLS_CERT_FILE: ")
    assert refused(REGISTRY_TLS_CLIENT_CA_FILE=str(ca)).startswith("REGISTRY_TLS_CLIENT_CA_FILE: ")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    assert refused(**{**pair, "REGISTRY_TLS_CERT_FILE": str(junk)}).startswith("REGISTRY_TLS_CERT_FILE: ")
    assert refused(**pair, REGISTRY_TLS_CLIENT_CA_FILE=str(junk)).startswith("REGISTRY_TLS_CLIENT_CA_FILE: ")


def test_the_process_refuses_in_one_line_with_code_2(tmp_path):
    """As an operator meets it: no traceback, nothing on standard output."""
    plans = tmp_path / "plans.yaml"
    plans.write_text("plans: {}\n")
    for name, value in (("REGISTRY_BIND", "nowhere"), ("REGISTRY_PLANS_FILE", str(plans))):
        done = subprocess.run(
            [sys.executable, "-m", "registry_service"],
            env={**GOOD, name: value},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"registry: {name}: ")
