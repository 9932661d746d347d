"""The documents: tests that they name exist, and so do the files that they link and list."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")


def test_each_requirement_of_a_contract_has_a_proof_that_exists():
    proofs = _PROOF.findall((ROOT / "docs/contracts.md").read_text())
    assert len(proofs) > 25
    missing = [(file, name) for file, name in proofs if f"def {name}(" not in (ROOT / file).read_text()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    targets = _LINK.findall(page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_stations_and_rooms_of_the_architecture_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:gateway|registry_service|naru_cli|proto|ops|tests)/[\w/.]+)`", text)
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).exists()]
