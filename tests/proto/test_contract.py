"""The contract `naru.v1`, held against its own rules and against what was released."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

PROTO = Path(__file__).parents[2] / "proto"
FILES = ["naru/v1/accounts.proto", "naru/v1/errors.proto", "naru/v1/execution.proto", "naru/v1/registry.proto"]
NUMBERS = Path(__file__).with_name("field_numbers.json")


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory) -> list[descriptor_pb2.FileDescriptorProto]:
    """The contract as compiled from its text, comments included."""
    out = tmp_path_factory.mktemp("descriptors") / "set.pb"
    includes = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{includes}",
        "--include_source_info",
        f"--descriptor_set_out={out}",
        *FILES,
    ]
    assert protoc.main(arguments) == 0
    return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def elements(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Every element that needs a comment: its path in `SourceCodeInfo` and its full name."""
    for i, service in enumerate(file.service):
        yield (6, i), service.name
        for j, method in enumerate(service.method):
            yield (6, i, 2, j), f"{service.name}.{method.name}"
    for i, enum in enumerate(file.enum_type):
        yield from enum_elements((5, i), enum, "")
    for i, message in enumerate(file.message_type):
        yield from message_elements((4, i), message, "")


def enum_elements(path, enum, prefix) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, prefix + enum.name
    for i, value in enumerate(enum.value):
        yield (*path, 2, i), f"{prefix}{enum.name}.{value.name}"


def message_elements(path, message, prefix) -> Iterator[tuple[tuple[int, ...], str]]:
    name = prefix + message.name
    if message.options.map_entry:
        return
    yield path, name
    for i, field in enumerate(message.field):
        yield (*path, 2, i), f"{name}.{field.name}"
    synthetic = {f.oneof_index for f in message.field if f.proto3_optional}
    for i, oneof in enumerate(message.oneof_decl):
        if i not in synthetic:
            yield (*path, 8, i), f"{name}.{oneof.name}"
    for i, enum in enumerate(message.enum_type):
        yield from enum_elements((*path, 4, i), enum, f"{name}.")
    for i, nested in enumerate(message.nested_type):
        yield from message_elements((*path, 3, i), nested, f"{name}.")


def test_every_element_has_a_comment(descriptors):
    bare = []
    for file in descriptors:
        comments = {tuple(x.path): x.leading_comments.strip() for x in file.source_code_info.location}
        bare += [name for path, name in elements(file) if not comments.get(path)]
    assert bare == []


def test_comments_are_sentences(descriptors):
    odd = []
    for file in descriptors:
        comments = {tuple(x.path): x.leading_comments.strip() for x in file.source_code_info.location}
        odd += [
            name for path, name in elements(file) if not (comments[path][0].isupper() and comments[path][-1] in ".:)")
        ]
    assert odd == []


def test_package_is_versioned_and_matches_the_folder(descriptors):
    assert {file.package for file in descriptors} == {"naru.v1"}


def test_methods_are_named_as_aip_asks(descriptors):
    """AIP-131 to 136: `<Method>Request`; the answer is `<Method>Response`, Empty, an event or the resource."""
    for file in descriptors:
        resources = {f".naru.v1.{m.name}" for m in file.message_type if not m.name.endswith(("Request", "Response"))}
        for service in file.service:
            for method in service.method:
                assert method.input_type == f".naru.v1.{method.name}Request"
                expected = {f".naru.v1.{method.name}Response", ".google.protobuf.Empty"} | resources
                assert method.output_type in expected
                assert not method.client_streaming


Named = tuple[str, descriptor_pb2.EnumDescriptorProto]


def enums(descriptors) -> Iterator[Named]:
    def of(message: descriptor_pb2.DescriptorProto, prefix: str) -> Iterator[Named]:
        for enum in message.enum_type:
            yield f"{prefix}{message.name}.{enum.name}", enum
        for nested in message.nested_type:
            yield from of(nested, f"{prefix}{message.name}.")

    for file in descriptors:
        for enum in file.enum_type:
            yield enum.name, enum
        for message in file.message_type:
            yield from of(message, "")


def test_enums_start_unspecified(descriptors):
    first = {name: enum.value[0] for name, enum in enums(descriptors)}
    assert first
    assert all(value.number == 0 and value.name.endswith("_UNSPECIFIED") for value in first.values())


def test_json_crosses_as_bytes(descriptors):
    """`google.protobuf.Struct` turns integers into doubles, so it must not appear (ADR 0004)."""
    names = {d for file in descriptors for d in file.dependency}
    assert "google/protobuf/struct.proto" not in names


def test_numbers_are_the_committed_ones(descriptors):
    """A number that was released never changes its meaning. Additions are added to the list, by hand."""
    found: dict[str, int] = {}

    def walk(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        name = prefix + message.name
        if message.options.map_entry:
            return
        found.update({f"{name}.{f.name}": f.number for f in message.field})
        for nested in message.nested_type:
            walk(nested, f"{name}.")

    for file in descriptors:
        for message in file.message_type:
            walk(message, "")
    for name, enum in enums(descriptors):
        found.update({f"{name}.{v.name}": v.number for v in enum.value})
    assert found == json.loads(NUMBERS.read_text())


@pytest.mark.parametrize("file", FILES)
def test_generated_code_is_that_of_the_text(file, descriptors):
    """`make proto-check` compares the generated files themselves; this holds whatever protoc version made them."""
    module = import_module(file.removesuffix(".proto").replace("/", ".") + "_pb2")
    generated = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(generated)
    compiled = next(d for d in descriptors if d.name == file)
    for descriptor in (generated, compiled):
        descriptor.ClearField("source_code_info")
    for message in [*compiled.message_type, *generated.message_type]:
        clear_json_names(message)
    assert generated == compiled


def clear_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """The compiler writes `json_name` into a descriptor set, and leaves it out of generated code."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        clear_json_names(nested)
