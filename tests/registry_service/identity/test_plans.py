import pytest

from registry_service.errors import LaneInvalidError, LaneNotAllowedError
from registry_service.identity.plans import LANES, Plan, PlansError, load_plans


def test_the_built_in_plans():
    plans = load_plans(None)
    defaults = {name: plan.default_lane for name, plan in plans.items()}
    assert defaults == {
        "lite": "real_test",
        "standard": "production",
        "pro": "production",
        "multi_account": "production",
    }
    assert all(plan.lanes == set(LANES) and plan.name == name for name, plan in plans.items())


def test_the_lane_of_a_call():
    plan = Plan("narrow", "real_test", frozenset({"real_test"}))
    assert plan.lane("") == "real_test"
    assert plan.lane("real_test") == "real_test"
    assert Plan("wide", "production", frozenset(LANES)).lane("real_test") == "real_test"


def test_a_lane_outside_the_plan():
    with pytest.raises(LaneNotAllowedError) as caught:
        Plan("narrow", "real_test", frozenset({"real_test"})).lane("production")
    assert caught.value.facts == {"lane": "production", "plan": "narrow", "lanes": ["real_test"]}


@pytest.mark.parametrize("name", ["staging", "Production", "production ", "x" * 5000])
def test_a_lane_that_does_not_exist(name):
    with pytest.raises(LaneInvalidError) as caught:
        Plan("wide", "production", frozenset(LANES)).lane(name)
    assert caught.value.facts == {"lane": name[:64], "lanes": ["real_test", "production"]}


def test_a_file_replaces_the_built_in_plans(tmp_path):
    path = tmp_path / "plans.yaml"
    path.write_text("plans:\n  only: {default_lane: production, lanes: [production]}\n")
    assert load_plans(path) == {"only": Plan("only", "production", frozenset({"production"}))}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plans: {}", "holds no plan"),
        ("", "object"),
        ("[]", "object"),
        ("plans: [", "expected"),
        ("plans:\n  a: {default_lane: production}", "lanes"),
        ("plans:\n  a: {default_lane: staging, lanes: [staging]}", "staging"),
        ("plans:\n  a: {default_lane: production, lanes: [real_test]}", "default_lane"),
        ("plans:\n  a: {default_lane: production, lanes: [production], quota: 1}", "quota"),
        ("plans:\n  a b: {default_lane: production, lanes: [production]}", "a b"),
        ("plans:\n  a: {default_lane: production, lanes: [production]}\n  a: {}", "a stands twice"),
        ("plans:\n  a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "plans.yaml"
    path.write_text(text)
    with pytest.raises(PlansError) as caught:
        load_plans(path)
    message = str(caught.value)
    assert str(path) in message
    assert said in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(PlansError, match=r"cannot read"):
        load_plans(tmp_path / "absent.yaml")
    broken = tmp_path / "plans.yaml"
    broken.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(PlansError, match=r"cannot read"):
        load_plans(broken)
