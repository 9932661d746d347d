"""gateway/mcp/revisions.py: who is asking, and the shape of what they get."""

import pytest

from gateway.http.accept import accept
from gateway.mcp.params import NO_META, Meta
from gateway.mcp.revisions import (
    ASSUMED,
    LATEST,
    LATEST_LEGACY,
    SUPPORTED,
    Dialect,
    Era,
    arguments_are_protocol_errors,
    identify,
    progress_token,
)

JSON_ONLY = accept("application/json")
BOTH = accept("application/json, text/event-stream")
ANY = accept("*/*")
SSE = accept("text/event-stream")
NDJSON = accept("application/x-ndjson")


def claims(version: str | None) -> Meta:
    return Meta(protocol_version=version, claims_version=True, client_capabilities=b"{}")


AGENT_BUILDER = Dialect(Era.AGENT_BUILDER, "2025-11-25")
MODERN = Dialect(Era.MODERN, "2026-07-28", named=True)


def legacy(revision: str, named: bool = True) -> Dialect:
    return Dialect(Era.LEGACY, revision, named)


@pytest.mark.parametrize(
    ("versions", "accepted", "meta", "dialect"),
    [
        # Agent Builder: JSON only, no modern _meta, whatever the header says.
        ([], JSON_ONLY, NO_META, AGENT_BUILDER),
        (["2025-06-18"], JSON_ONLY, NO_META, AGENT_BUILDER),
        (["2026-07-28"], JSON_ONLY, NO_META, AGENT_BUILDER),
        (["1999-01-01"], JSON_ONLY, Meta(progress_token=b"1"), AGENT_BUILDER),
        (["2026-07-28"], JSON_ONLY, claims("2026-07-28"), MODERN),
        # Legacy by header.
        (["2025-11-25"], BOTH, NO_META, legacy("2025-11-25")),
        (["2025-06-18"], SSE, NO_META, legacy("2025-06-18")),
        (["2025-03-26"], ANY, NO_META, legacy("2025-03-26")),
        (["2024-11-05"], BOTH, NO_META, legacy("2025-03-26")),
        (["2025-11-25", "2025-11-25"], BOTH, NO_META, legacy("2025-11-25")),
        # No header.
        ([], BOTH, NO_META, legacy("2025-03-26", named=False)),
        ([], ANY, NO_META, legacy("2025-03-26", named=False)),
        ([], BOTH, claims("2026-07-28"), MODERN),
        ([], BOTH, claims("2025-11-25"), MODERN),
        # A legacy header beside _meta.
        (["2025-11-25"], BOTH, claims("2026-07-28"), MODERN),
        (["2025-11-25"], BOTH, claims("nonsense"), MODERN),
        (["2025-11-25"], BOTH, claims(None), MODERN),
        (["2025-11-25"], BOTH, claims("2025-11-25"), legacy("2025-11-25")),
        # Everything else climbs the modern ladder.
        (["2026-07-28"], BOTH, NO_META, MODERN),
        (["2026-07-28"], BOTH, claims("2026-07-28"), MODERN),
        (["1999-01-01"], BOTH, NO_META, MODERN),
        ([""], BOTH, NO_META, MODERN),
        (["2025-11-25", "2025-06-18"], BOTH, NO_META, MODERN),
        (["2025-11-25, 2025-11-25"], BOTH, NO_META, MODERN),
    ],
)
def test_who_is_asking(versions, accepted, meta, dialect):
    assert identify(versions, meta, json_only=accepted.json_only) == dialect


@pytest.mark.parametrize("accepted", [BOTH, ANY, SSE, NDJSON])
def test_there_is_no_handshake_in_the_modern_era(accepted):
    assert identify(["2026-07-28"], NO_META, "initialize", json_only=accepted.json_only) == MODERN


@pytest.mark.parametrize("version", ["2026-05-11", "2099-01-01", "nonsense", ""])
@pytest.mark.parametrize("accepted", [BOTH, ANY, SSE, NDJSON])
def test_a_handshake_negotiates_in_its_body_whatever_its_header_says(version, accepted):
    assert identify([version], NO_META, "initialize", json_only=accepted.json_only) == legacy("2025-03-26", named=False)
    assert identify([version], NO_META, "tools/list", json_only=accepted.json_only) == MODERN
    assert identify([version], claims("2026-07-28"), "initialize", json_only=accepted.json_only) == MODERN


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (AGENT_BUILDER, True),
        (legacy("2025-03-26"), True),
        (legacy("2025-06-18"), True),
        (legacy("2025-03-26", named=False), False),
        (legacy("2025-11-25"), False),
        (MODERN, False),
    ],
)
def test_who_hears_of_bad_arguments_as_a_protocol_error(dialect, expected):
    assert arguments_are_protocol_errors(dialect) is expected


@pytest.mark.parametrize(
    ("dialect", "negotiated", "meta", "token"),
    [
        (legacy("2025-11-25"), False, NO_META, None),
        (legacy("2025-11-25"), False, Meta(progress_token=b'""'), b'""'),
        (legacy("2025-11-25"), True, Meta(progress_token=b"0"), b"0"),
        (legacy("2025-11-25"), True, NO_META, b"17"),
        (legacy("2025-03-26", named=False), True, NO_META, b"17"),
        (AGENT_BUILDER, True, NO_META, b"17"),
        (MODERN, True, NO_META, None),
        (MODERN, True, Meta(progress_token=b"0"), b"0"),
        (MODERN, False, Meta(progress_token=b"0"), b"0"),
    ],
)
def test_under_which_token_progress_is_reported(dialect, negotiated, meta, token):
    assert progress_token(dialect, meta, b"17", negotiated=negotiated) == token


def test_supported_versions():
    assert SUPPORTED == ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
    assert (LATEST, LATEST_LEGACY, ASSUMED) == ("2026-07-28", "2025-11-25", "2025-03-26")
