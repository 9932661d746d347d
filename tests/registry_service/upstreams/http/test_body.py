"""Bodies: decompressed, bounded, and read without holding up others."""

import asyncio
import gzip
import time
import zlib

import brotli  # type: ignore[import-untyped]
import pytest

from registry_service.errors import ResultTooLargeError, ToolResponseInvalidError
from registry_service.upstreams.http.body import Body
from registry_service.upstreams.http.turns import Effort, Pace, Turns


class Raw:
    """Stands in for the HTTP client: hands `Body` chunks, and then nothing."""

    def __init__(self, data, size):
        self.chunks = [data[start : start + size] for start in range(0, len(data), size)]

    async def read(self, pace):
        return self.chunks.pop(0) if self.chunks else b""


def body_of(raw, encoding, limit=1 << 30):
    return Body(raw.read, encoding, limit, Pace(Effort(), Turns()))


PLAIN = b'{"text":"' + b"abcdefghij" * 100_000 + b'"}'
BARE = zlib.compressobj(wbits=-15)
COMPRESSED = [
    ("", PLAIN),
    ("identity", PLAIN),
    ("gzip", gzip.compress(PLAIN)),
    ("GZIP ", gzip.compress(PLAIN[:500]) + gzip.compress(PLAIN[500:])),
    ("deflate", zlib.compress(PLAIN)),
    ("deflate", BARE.compress(PLAIN) + BARE.flush()),
    ("br", brotli.compress(PLAIN)),
]


class TestBodies:
    @pytest.mark.parametrize(("encoding", "data"), COMPRESSED)
    @pytest.mark.parametrize("size", [1, 7, 100_000])
    async def test_whole_bodies(self, encoding, data, size):
        if size == 1:
            data = data if encoding.strip() and encoding != "identity" else data[:5000]
        body = await body_of(Raw(data, size), encoding).read_all(len(PLAIN))
        assert body == PLAIN[: len(body)]
        assert len(body) == len(PLAIN) or not encoding.strip() or encoding == "identity"

    @pytest.mark.parametrize(("encoding", "data"), COMPRESSED[2:])
    async def test_a_cut_body_is_an_error(self, encoding, data):
        with pytest.raises(ToolResponseInvalidError) as caught:
            await body_of(Raw(data[:-1], 100), encoding).read_all(len(PLAIN))
        assert caught.value.facts["detail"] == f"cut {encoding.strip().lower()}"

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
    async def test_a_label_that_lies_is_an_error(self, encoding):
        with pytest.raises(ToolResponseInvalidError):
            await body_of(Raw(b'{"a":"not compressed at all"}', 100), encoding).read_all(1000)

    @pytest.mark.parametrize("encoding", ["zstd", "gzip, br", "compress"])
    def test_an_encoding_that_was_not_asked_for_is_an_error(self, encoding):
        with pytest.raises(ToolResponseInvalidError):
            body_of(Raw(b"", 1), encoding)

    @pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
    async def test_the_limit_is_on_what_comes_out(self, encoding):
        bomb = b"\0" * 40_000_000
        compress = {"gzip": lambda data: gzip.compress(data, 1), "deflate": zlib.compress, "br": brotli.compress}
        body = body_of(Raw(compress[encoding](bomb), 65536), encoding)
        with pytest.raises(ResultTooLargeError) as caught:
            await body.read_all(1_000_000)
        assert caught.value.facts == {"limit_bytes": 1_000_000}

    async def test_the_limit_itself_is_admitted(self):
        assert await body_of(Raw(b"12345", 2), "").read_all(5) == b"12345"
        with pytest.raises(ResultTooLargeError):
            await body_of(Raw(b"123456", 2), "").read_all(5)

    async def test_the_start_of_a_body(self):
        assert await body_of(Raw(b"123456", 4), "").read_start(5, 5) == b"12345"
        assert await body_of(Raw(gzip.compress(PLAIN)[:-1], 100), "gzip").read_start(1 << 30, 5) == PLAIN

    async def test_no_body_is_empty_under_every_label(self):
        for encoding in ("", "gzip", "deflate", "br"):
            assert await body_of(Raw(b"", 1), encoding).read_all(5) == b""


async def test_little_that_unfolds_to_much_lets_others_have_their_turn():
    stretches = []

    async def others():
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            stretches.append(now - last)
            last = now

    task = asyncio.create_task(others())
    body = body_of(Raw(gzip.compress(b"\n" * (64 << 20)), 65536), "gzip")
    while await body.read():
        pass
    task.cancel()
    assert max(stretches) < 0.02
