"""The content blocks of MCP, as strict as the strictest client: one bad block makes it reject the whole result.

Source: `ContentBlock` in the MCP schema, revision 2026-07-28; the names of the fields are the wire's.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

# The Python client reads it as a URL, which must have a scheme.
Uri: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:")]


class Annotations(msgspec.Struct):
    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: str | UnsetType = msgspec.field(name="lastModified", default=UNSET)


class _Block(msgspec.Struct, kw_only=True):
    annotations: Annotations | UnsetType = UNSET
    meta: dict[str, Raw] | UnsetType = msgspec.field(name="_meta", default=UNSET)


class Text(_Block, tag_field="type", tag="text"):
    text: str


class Image(_Block, tag_field="type", tag="image"):
    data: bytes  # base64 on the wire
    mime_type: str = msgspec.field(name="mimeType")


class Audio(_Block, tag_field="type", tag="audio"):
    data: bytes
    mime_type: str = msgspec.field(name="mimeType")


class Icon(msgspec.Struct):
    src: str
    mime_type: str | UnsetType = msgspec.field(name="mimeType", default=UNSET)
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class ResourceLink(_Block, tag_field="type", tag="resource_link"):
    uri: Uri
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str | UnsetType = msgspec.field(name="mimeType", default=UNSET)
    size: int | UnsetType = UNSET
    icons: list[Icon] | UnsetType = UNSET


class Resource(msgspec.Struct):
    uri: Uri
    mime_type: str | UnsetType = msgspec.field(name="mimeType", default=UNSET)
    text: str | UnsetType = UNSET
    blob: bytes | UnsetType = UNSET
    meta: dict[str, Raw] | UnsetType = msgspec.field(name="_meta", default=UNSET)

    def __post_init__(self) -> None:
        if (self.text is UNSET) == (self.blob is UNSET):
            raise ValueError("a resource has either text or blob")


class EmbeddedResource(_Block, tag_field="type", tag="resource"):
    resource: Resource


ContentBlock: TypeAlias = Text | Image | Audio | ResourceLink | EmbeddedResource
