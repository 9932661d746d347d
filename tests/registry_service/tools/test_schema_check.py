"""Compiled schemas: when they are compiled, and that their memory is bounded."""

import pytest

from registry_service.tools.schema_check import CompiledSchemas, SchemaCheck
from tests.support.samples import arguments, raw


def schema(number: int) -> bytes:
    return raw(arguments(a={"type": "integer", "minimum": number, "description": "x" * 100}))


def is_compiled(check: SchemaCheck) -> bool:
    return check._compiled is not None


def test_a_schema_is_compiled_when_it_is_first_needed():
    check = SchemaCheck(schema(0), CompiledSchemas())
    assert not is_compiled(check)
    assert check.is_light(b'{"a":1}')
    assert is_compiled(check)
    assert check.violations({"a": -1})


def test_an_unknown_dialect_is_refused_at_once():
    with pytest.raises(ValueError, match="dialect"):
        SchemaCheck(b'{"$schema":"http://a.test/"}')


def test_what_was_not_used_for_longest_is_forgotten():
    held = CompiledSchemas(limit=50_000)
    checks = [SchemaCheck(schema(number), held) for number in range(100)]
    often = checks[0]
    for check in checks:
        assert check.is_light(b"{}")
        assert often.is_light(b"{}")
    assert held.memory <= 50_000
    assert 1 < sum(map(is_compiled, checks)) == len(held) < 30
    assert is_compiled(often)
    assert is_compiled(checks[-1])
    # What was forgotten is compiled again.
    assert not is_compiled(checks[1])
    assert checks[1].violations({"a": 0})
    assert held.memory <= 50_000


def test_one_that_is_larger_than_all_room_is_held_alone():
    held = CompiledSchemas(limit=10)
    for number in range(3):
        check = SchemaCheck(schema(number), held)
        assert check.violations({"a": -1})
        assert len(held) == 1


def test_patterns_count_with_what_they_compile_to():
    held = CompiledSchemas()
    SchemaCheck(raw(arguments(a={"pattern": "a.{0,500}b"})), held).compile()
    assert held.memory > 500_000


MANY = {f"property{number}": {"type": "integer"} for number in range(300)}


@pytest.mark.parametrize("schema", [arguments(**MANY), arguments(a={"pattern": "a"}), {"patternProperties": {"a": {}}}])
def test_what_takes_long_to_compile_is_not_compiled_where_others_wait(schema):
    check = SchemaCheck(raw(schema))
    assert check.needs_compiling
    assert not check.is_light(b"{}")
    check.compile()
    assert not check.needs_compiling
    assert check.is_light(b"{}")
