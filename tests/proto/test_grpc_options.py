"""gRPC ignores options that it doesn't know, in silence; so every one of ours must be a name that the library holds."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[2]


def python_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if not name.endswith(("_pb2.py", "_pb2_grpc.py"))]


def options_in(source: str) -> Iterator[str]:
    """Yields the name of every `("grpc.…", value)`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Tuple(elts=[ast.Constant(value=str(name)), _]) if name.startswith("grpc."):
                yield name


OPTIONS = sorted({name for file in python_files() for name in options_in((ROOT / file).read_text())})


@pytest.fixture(scope="module")
def library() -> bytes:
    (text,) = (Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")
    return text.read_bytes()


def test_options_are_found():
    assert {"grpc.service_config", "grpc.max_connection_age_ms", "grpc.so_reuseport"} <= set(OPTIONS)


def test_a_name_that_is_made_up_is_noticed(library: bytes):
    assert b"grpc.http2.min_recv_ping_interval_without_data_ms" not in library


@pytest.mark.parametrize("name", OPTIONS)
def test_the_library_knows_the_option(library: bytes, name: str):
    assert name.encode() in library
