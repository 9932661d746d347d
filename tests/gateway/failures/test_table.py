"""The enum, the table, the sentences in both languages and docs/errors.md agree; statuses become the right reasons."""

import re
from pathlib import Path
from string import Formatter

import pytest

from gateway.failures.sentences import next_action, sentence
from gateway.failures.table import SENTENCES, TABLE, Surface, Wording, describe
from gateway.settings import Locale
from naru.v1.errors_pb2 import Reason

MCP_REASONS = {name for name, number in Reason.items() if 1 <= number < 100}
ADMIN_REASONS = {name for name, number in Reason.items() if number >= 100}
DOCUMENT = (Path(__file__).parents[3] / "docs" / "errors.md").read_text(encoding="utf-8")
TABLE_LINES = [line.strip("|").split("|") for line in DOCUMENT.splitlines() if line.startswith("| `")]
ROWS = {name.strip(" `"): [cell.strip() for cell in cells] for name, *cells in TABLE_LINES}
KO = Wording("ko", "xdata.kr")
EN = Wording("en", "xdata.kr")


def numbers(cell: str) -> list[int]:
    return [int(text) for text in re.findall(r"-?\d+", cell.replace("−", "-"))]


def both(pair: tuple[int, int]) -> list[int]:
    return list(dict.fromkeys(pair))


class TestAgreement:
    def test_the_table_has_every_reason_that_reaches_mcp_clients(self):
        assert set(TABLE) == MCP_REASONS

    @pytest.mark.parametrize("locale", ["ko", "en"])
    def test_so_have_the_sentences(self, locale):
        assert set(SENTENCES[locale]) == MCP_REASONS

    def test_the_page_has_every_reason(self):
        assert set(ROWS) == MCP_REASONS | ADMIN_REASONS

    @pytest.mark.parametrize("reason", sorted(MCP_REASONS))
    def test_the_page_says_what_the_table_does(self, reason):
        code, meaning, advice, surface, codes, statuses, safe = ROWS[reason]
        entry = TABLE[reason]
        assert code == entry.error_code
        assert meaning
        assert advice
        if reason == "ARGUMENTS_INVALID":
            assert surface == "either"
        else:
            assert surface == entry.surface.value
        if codes == "—":
            assert entry.surface is Surface.RESULT
        else:
            assert numbers(codes) == both((entry.code, entry.modern_code))
        assert numbers(statuses) == both((entry.status, entry.modern_status))
        assert safe.startswith("yes") == entry.safe_to_retry

    @pytest.mark.parametrize("reason", sorted(MCP_REASONS))
    def test_error_codes_are_grouped_by_hundreds(self, reason):
        groups = {1: "E10", 10: "E11", 20: "E15", 40: "E14", 50: "E12", 70: "E13"}
        number = Reason.Value(reason)
        group = groups[max(start for start in groups if start <= number)]
        assert re.fullmatch(rf"{group}\d\d", TABLE[reason].error_code)

    def test_error_codes_are_unique(self):
        codes = [entry.error_code for entry in TABLE.values()]
        assert len(set(codes)) == len(codes)

    def test_no_code_of_ours_is_in_a_range_that_is_not_ours(self):
        of_mcp = {-32020, -32021, -32022, -32700, -32600, -32601, -32602, -32603}
        for reason, entry in TABLE.items():
            assert entry.code != -32002, reason
            assert entry.code in of_mcp or -32020 < entry.code <= -32000, reason
            assert entry.modern_code in of_mcp or entry.modern_code > -32000, reason

    @pytest.mark.parametrize("locale", ["ko", "en"])
    @pytest.mark.parametrize("reason", sorted(MCP_REASONS))
    def test_every_reason_has_a_sentence_without_facts(self, reason, locale):
        assert sentence(SENTENCES[locale][reason], {})
        assert next_action(SENTENCES[locale][reason], {}, safe_to_retry=False)

    @pytest.mark.parametrize("reason", sorted(MCP_REASONS))
    def test_both_languages_use_the_same_facts(self, reason):
        def fields(locale: Locale) -> list[set[str]]:
            return [
                {name for _, name, _, _ in Formatter().parse(template) if name}
                for template in SENTENCES[locale][reason].says
            ]

        assert fields("ko") == fields("en")
        assert bool(SENTENCES["ko"][reason].retry) == bool(SENTENCES["en"][reason].retry)

    @pytest.mark.parametrize("reason", sorted(MCP_REASONS))
    def test_korean_is_korean_and_english_is_english(self, reason):
        hangul = re.compile("[가-힣]")
        for text in (*SENTENCES["ko"][reason].says, SENTENCES["ko"][reason].do):
            assert hangul.search(text)
        for text in (*SENTENCES["en"][reason].says, SENTENCES["en"][reason].do, SENTENCES["en"][reason].retry):
            assert not hangul.search(text)


class TestDescribe:
    def test_facts_are_in_the_sentence(self):
        text, _ = describe("TOOL_TIMED_OUT", {"timeout_seconds": 10.0}, KO)
        assert text == "도구가 제한 시간(10초) 안에 응답하지 않았습니다."
        text, _ = describe("TOOL_TIMED_OUT", {"timeout_seconds": 0.5}, EN)
        assert text == "The tool did not answer within the time limit (0.5 seconds)."

    def test_the_object_of_the_agent_builder_contract(self):
        facts = {"timeout_seconds": 10, "safe_to_retry": True, "tool": "slow", "call_id": "c"}
        _, data = describe("TOOL_TIMED_OUT", facts, KO, bare=True)
        assert data == {
            "reason": "TOOL_TIMED_OUT",
            "error_code": "E1302",
            "safe_to_retry": True,
            "next_action": "잠시 후 같은 인자로 다시 호출하세요.",
        }

    def test_facts_and_the_next_call_follow_by_name(self):
        _, data = describe("TOOL_NOT_FOUND", {"tool": "nope"}, KO)
        assert data["tool"] == "nope"
        assert data["xdata.kr/next"] == {"method": "tools/list"}
        assert data["safe_to_retry"] is False

    def test_the_prefix_is_a_setting(self):
        _, data = describe("TOOL_NOT_FOUND", {}, Wording("ko", "example.com"))
        assert "example.com/next" in data

    def test_there_are_no_nulls(self):
        _, data = describe("LANE_INVALID", {"lane": None, "lanes": ["real_test"]}, KO)
        assert None not in data.values()
        assert data["lanes"] == ["real_test"]

    def test_facts_cannot_take_the_place_of_what_naru_says(self):
        _, data = describe("TOOL_NOT_FOUND", {"reason": "OTHER", "error_code": "E0", "next_action": "x"}, KO)
        assert (data["reason"], data["error_code"]) == ("TOOL_NOT_FOUND", "E1201")

    def test_what_is_safe_to_retry_is_advised_to_be(self):
        _, safe = describe("TOOL_UNREACHABLE", {"safe_to_retry": True}, EN)
        _, unsafe = describe("TOOL_UNREACHABLE", {"safe_to_retry": False}, EN)
        assert safe["next_action"] != unsafe["next_action"]

    def test_mcp_names_the_required_capabilities(self):
        _, data = describe("MISSING_CLIENT_CAPABILITY", {"required_capabilities": {"sampling": {}}}, KO)
        assert data["requiredCapabilities"] == {"sampling": {}}
        assert "required_capabilities" not in data

    @pytest.mark.parametrize(
        ("status", "more", "safe", "korean", "english"),
        [
            (301, {}, False, "주소", "address"),
            (307, {}, True, "주소", "address"),
            (400, {}, False, "인자를 고쳐", "correct the arguments"),
            (404, {}, False, "응답 내용", "If the arguments are right"),
            (409, {}, False, "인자를 고쳐", "correct the arguments"),
            (413, {}, False, "인자를 줄이거나", "smaller"),
            (422, {}, False, "인자를 고쳐", "correct the arguments"),
            (429, {}, False, "잠시 기다린", "Wait a moment"),
            (429, {"retry_after_seconds": 30}, False, "30초", "30 seconds"),
            (429, {"retry_after_seconds": 30}, True, "30초", "30 seconds"),
            (500, {}, False, "이미 일을 마쳤는지", "done its work"),
            (500, {}, True, "같은 인자로", "same arguments"),
            (502, {}, False, "이미 일을 마쳤는지", "done its work"),
            (503, {}, False, "이미 일을 마쳤는지", "done its work"),
            (503, {"retry_after_seconds": 5}, False, "5초", "5 seconds"),
        ],
    )
    def test_the_advice_fits_the_endpoints_status(self, status, more, safe, korean, english):
        facts = {"http_status": status, "safe_to_retry": safe, **more}
        assert korean in describe("TOOL_HTTP_ERROR", facts, KO)[1]["next_action"]
        assert english in describe("TOOL_HTTP_ERROR", facts, EN)[1]["next_action"]

    @pytest.mark.parametrize(
        "detail", ["address not allowed", "secret not available", "certificate not trusted", "no TLS"]
    )
    def test_what_only_an_operator_can_mend_is_said_to_be_that(self, detail):
        facts = {"detail": detail, "safe_to_retry": False}
        assert "운영자" in describe("TOOL_UNREACHABLE", facts, KO)[1]["next_action"]
        assert "Ask the operator" in describe("TOOL_UNREACHABLE", facts, EN)[1]["next_action"]
        assert "operator" not in describe("TOOL_UNREACHABLE", {"detail": "no connection"}, EN)[1]["next_action"]

    def test_a_fact_cannot_stretch_a_sentence(self):
        text, _ = describe("TOOL_NOT_FOUND", {"tool": "x" * 10_000}, KO)
        assert len(text) < 200

    def test_a_fact_is_no_template(self):
        text, _ = describe("TOOL_NOT_FOUND", {"tool": "{reason}{0}"}, EN)
        assert text == "No such tool is registered: {reason}{0}"
