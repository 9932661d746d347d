"""Checks that both services and the command read the environment alike, and that a bad value names its variable."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gateway.settings import Settings as GatewaySettings
from naru.environment import Bind, Environment, SettingError, unknown_variables
from registry_service.settings import Settings as RegistrySettings

SECRETS = {
    "GATEWAY_REGISTRY_TOKEN": "service-token-of-the-tests",
    "REGISTRY_PEPPER": "p" * 32,
    "REGISTRY_ADMIN_TOKEN": "admin-token-of-the-tests",
    "REGISTRY_SERVICE_TOKEN": "service-token-of-the-tests",
}
SERVICES = {"GATEWAY": GatewaySettings.from_env, "REGISTRY": RegistrySettings.from_env}


def both(name: str, value: str) -> list[Any]:
    """Returns the settings of both services, or the text of a refusal, which begins with the variable's name."""

    def read(service: str, from_env: Callable[[dict[str, str]], Any]) -> Any:
        try:
            return from_env({**SECRETS, f"{service}_{name}": value})
        except SettingError as error:
            return str(error).removeprefix(f"{service}_{name}: ")

    return [read(*item) for item in SERVICES.items()]


@pytest.mark.parametrize("level", ["info", "INFO", "Warning", "critical", " error "])
def test_levels_are_taken_alike(level: str):
    assert [settings.log_level for settings in both("LOG_LEVEL", level)] == [level.strip().lower()] * 2


@pytest.mark.parametrize("value", ["off", "OFF", "Off"])
def test_metrics_are_switched_off_alike(value: str):
    assert [settings.metrics_bind for settings in both("METRICS_BIND", value)] == [None, None]


@pytest.mark.parametrize(
    ("value", "bind"),
    [
        ("[::1]:0", Bind("::1", 0)),
        ("[0:0::1]:80", Bind("::1", 80)),
        ("a:1", Bind("a", 1)),
        ("127.0.0.0/8:1", Bind("127.0.0.1", 1)),
        ("127.0.0.1/32:1", Bind("127.0.0.1", 1)),
    ],
)
def test_addresses_are_read_alike(value: str, bind: Bind):
    assert [settings.bind for settings in both("BIND", value)] == [bind, bind]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BIND", "8080"),
        ("BIND", "[localhost]:1"),
        ("BIND", "::1:80"),
        ("BIND", "a:٣"),
        ("BIND", "a:65536"),
        ("BIND", "203.0.113.0/24:1"),
        ("BIND", "127.0.0.1/8:1"),
        ("BIND", "127.0.0.0/33:1"),
        ("BIND", "::1/128:1"),
        ("METRICS_BIND", "none"),
        ("LOG_LEVEL", "loud"),
        ("SHUTDOWN_GRACE_SECONDS", "nan"),
        ("SHUTDOWN_GRACE_SECONDS", "inf"),
        ("SHUTDOWN_GRACE_SECONDS", "1_0"),
        ("SHUTDOWN_GRACE_SECONDS", "20s"),
    ],
)
def test_bad_values_are_refused_alike_and_by_name(name: str, value: str):
    gateway, registry = both(name, value)
    assert isinstance(gateway, str)
    # The limits differ, but what is said of the value does not.
    assert gateway.partition(" from ")[0] == registry.partition(" from ")[0]


@pytest.mark.parametrize("service", SERVICES)
def test_a_token_may_end_with_a_line_end_in_its_file_alone(service: str, tmp_path):
    name = {"GATEWAY": "GATEWAY_REGISTRY_TOKEN", "REGISTRY": "REGISTRY_SERVICE_TOKEN"}[service]
    (tmp_path / "token").write_text("token-that-is-long-enough\r\n")
    environ = {key: value for key, value in SECRETS.items() if key != name}
    settings: Any = SERVICES[service]({**environ, f"{name}_FILE": str(tmp_path / "token")})
    assert (
        getattr(settings, "registry_token" if service == "GATEWAY" else "service_token") == "token-that-is-long-enough"
    )


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("REGISTRY_ENDPOINT_NETWORK", "REGISTRY_ENDPOINT_NETWORKS"),
        ("REGISTRY_PEPPER_FIL", "REGISTRY_PEPPER_FILE"),
        ("REGISTRY_PORT", ""),
        ("GATEWAY_MCP_PATH", "GATEWAY_MCP_PATHS"),
        ("GATEWAY_ALOWED_HOSTS", "GATEWAY_ALLOWED_HOSTS"),
        ("GATEWAY_REGISTRY_TOKEN_FILES", "GATEWAY_REGISTRY_TOKEN_FILE"),
    ],
)
def test_a_variable_that_nothing_reads_is_named_with_its_nearest(variable: str, nearest: str):
    """By the service that it is meant for, and by no other; whatever its value is, also an empty one."""
    for service, from_env in SERVICES.items():
        for value in ("x", ""):
            settings: Any = from_env({**SECRETS, variable: value})
            expected = [(variable, nearest)] if variable.startswith(service) else []
            assert list(settings.unknown) == expected


def test_what_container_platforms_set_is_passed_over():
    injected = {
        "REGISTRY_SERVICE_HOST": "10.0.0.1",
        "REGISTRY_SERVICE_PORT": "50051",
        "REGISTRY_SERVICE_PORT_GRPC": "50051",
        "REGISTRY_PORT": "tcp://10.0.0.1:50051",
        "REGISTRY_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "REGISTRY_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(injected, "REGISTRY_", ["REGISTRY_BIND"]) == ()
    assert RegistrySettings.from_env({**SECRETS, **injected}).unknown == ()


def test_a_value_of_white_space_counts_as_absent():
    env = Environment({"NARU_X": " \t"})
    assert (env.text("NARU_X"), env.optional("NARU_X", str)) == ("", None)


@pytest.mark.parametrize(
    ("module", "variable"), [("gateway", "GATEWAY_MCP_PATH"), ("registry_service", "REGISTRY_BINDS")]
)
def test_the_log_warns_of_a_variable_that_nothing_reads(module: str, variable: str, tmp_path):
    environ = {
        **SECRETS,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "DATABASE_URL": f"sqlite:///{tmp_path}/naru.db",
        variable: "value-that-is-not-logged",
        **{f"{service}_{name}BIND": "127.0.0.1:0" for service in SERVICES for name in ("", "METRICS_")},
    }
    with subprocess.Popen([sys.executable, "-m", module], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "ready" in line:
                break
        process.terminate()
    (warning,) = [line for line in lines if '"unknown variable"' in line]
    assert (
        f'"variable":"{variable}","nearest":"{variable + "S" if module == "gateway" else "REGISTRY_BIND"}"' in warning
    )
    assert "value-that-is-not-logged" not in "".join(lines)
