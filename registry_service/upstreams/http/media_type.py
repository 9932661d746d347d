"""Reads what a `Content-Type` says of a body, and decodes bytes to text by its charset."""

import codecs
import re
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from registry_service.errors import ToolResponseInvalidError


class Kind(Enum):
    """Lists the ways in which a body is read."""

    JSON = auto()
    NDJSON = auto()
    SSE = auto()
    TEXT = auto()
    IMAGE = auto()
    AUDIO = auto()
    BINARY = auto()
    # No Content-Type at all: the body must tell.
    UNKNOWN = auto()


class Media(NamedTuple):
    """`essence` is the type without parameters, in small letters; `charset` likewise, empty where none is named."""

    kind: Kind
    essence: str
    charset: str


_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+")
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([^"';\s]+)""", re.IGNORECASE)

_KINDS = {
    "text/json": Kind.JSON,
    "application/json": Kind.JSON,
    "text/event-stream": Kind.SSE,
    "application/x-ndjson": Kind.NDJSON,
    "application/ndjson": Kind.NDJSON,
    "application/jsonl": Kind.NDJSON,
    "application/x-jsonlines": Kind.NDJSON,
}
_TEXT = re.compile(
    r"text/.*|.*\+(xml|yaml)|application/(xml|xml-dtd|yaml|x-yaml|toml|javascript|x-javascript|ecmascript|sql|graphql"
    r"|x-www-form-urlencoded)"
)


@lru_cache(maxsize=512)
def parse_media(content_type: str | None) -> Media:
    """Reads a `Content-Type`; a malformed one is BINARY."""
    if not content_type:
        return Media(Kind.UNKNOWN, "", "")
    essence = content_type.partition(";")[0].strip().lower()
    if not _TYPE.fullmatch(essence):
        return Media(Kind.BINARY, "application/octet-stream", "")
    charset = _CHARSET.search(content_type)
    return Media(_kind(essence), essence, charset[1].lower() if charset else "")


def _kind(essence: str) -> Kind:
    if kind := _KINDS.get(essence):
        return kind
    if essence.endswith("+json"):
        return Kind.JSON
    if essence.startswith("image/"):
        return Kind.IMAGE
    if essence.startswith("audio/"):
        return Kind.AUDIO
    return Kind.TEXT if _TEXT.fullmatch(essence) else Kind.BINARY


# The labels of WHATWG's encoding standard that are met in practice. What calls itself EUC-KR is its superset cp949
# there, likewise GB2312, Latin-1 and others; Python's codecs of the narrow names refuse text that browsers show.
_LABELS = {
    "cp949": "cp949 euc-kr euckr ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 korean windows-949 ms949 uhc",
    "utf-8": "utf8 utf-8 us-ascii ascii",
    "utf-16": "utf-16 utf16",
    "utf-16-le": "utf-16le",
    "utf-16-be": "utf-16be",
    "cp932": "shift_jis shift-jis sjis ms_kanji windows-31j x-sjis cp932",
    "euc_jp": "euc-jp x-euc-jp",
    "iso2022_jp": "iso-2022-jp",
    "iso2022_kr": "iso-2022-kr",
    "gb18030": "gb2312 gbk gb18030 x-gbk cp936",
    "big5hkscs": "big5 big5-hkscs",
    "cp1252": "iso-8859-1 latin1 latin-1 l1 windows-1252 cp1252",
    "koi8-r": "koi8-r",
}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}
_CODECS |= {f"iso-8859-{part}": f"iso-8859-{part}" for part in range(2, 17) if part != 12}
_CODECS |= {f"windows-{page}": f"cp{page}" for page in (1250, 1251, *range(1253, 1259))}


def is_charset(label: str) -> bool:
    """Returns True for the label, in small letters, of a charset that is known here."""
    return label in _CODECS


def decode_text(body: bytes, charset: str) -> str:
    """Decodes strictly, without a byte order mark.

    `charset` is a label in small letters; empty means UTF-8. Raises ToolResponseInvalidError.
    """
    codec = _CODECS.get(charset) if charset else "utf-8"
    if codec is None:
        raise ToolResponseInvalidError(detail="unknown charset")
    try:
        text = body.decode(codec)
    except UnicodeDecodeError:
        unlabelled = body.startswith(b"\x1f\x8b")
        detail = "gzip without Content-Encoding" if unlabelled else f"not {charset or 'utf-8'} text"
        raise ToolResponseInvalidError(detail=detail) from None
    return text.removeprefix("\ufeff")


def decode_leniently(body: bytes, charset: str) -> str:
    """Decodes what can be decoded, for texts that people read only; a cut character at the end is left out."""
    decoder = codecs.getincrementaldecoder(_CODECS.get(charset, "utf-8"))("replace")
    return decoder.decode(body).removeprefix("\ufeff")
