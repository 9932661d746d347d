"""The sentences that people and their agents read, in Korean and English, by reason.

A sentence is a list of templates, the fullest first: the first one whose facts are all known is used. A `retry` action
replaces the ordinary one where the identical request may be sent again, and `mend` where only an operator can help.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import NamedTuple

from gateway.http.language import Locale

_MAX_FACT_LENGTH = 120


class Sentences(NamedTuple):
    says: tuple[str, ...]
    do: str
    retry: str = ""
    mend: str = ""


KO: Mapping[str, Sentences] = {
    "INTERNAL": Sentences(
        ("예기치 않은 오류가 발생했습니다. (추적 번호 {trace_id})", "예기치 않은 오류가 발생했습니다."),
        "추적 번호와 함께 운영자에게 알려 주세요.",
    ),
    "SERVICE_UNAVAILABLE": Sentences(
        ("서비스를 지금 사용할 수 없습니다. 요청은 실행되지 않았습니다.",),
        "잠시 후 같은 요청을 다시 보내세요.",
    ),
    "CALL_OUTCOME_UNKNOWN": Sentences(
        ("호출이 실행되었을 수 있으나 결과를 확인하지 못했습니다.",),
        "도구가 이미 일을 마쳤는지 먼저 확인하고, 그 뒤에 다시 호출할지 정하세요.",
    ),
    "PARSE_ERROR": Sentences(
        ("요청 본문을 JSON으로 읽을 수 없습니다. ({detail})", "요청 본문을 JSON으로 읽을 수 없습니다."),
        "본문을 UTF-8로 된 올바른 JSON으로 고쳐 보내세요.",
    ),
    "INVALID_REQUEST": Sentences(
        ("올바른 JSON-RPC 2.0 요청이 아닙니다. ({detail})", "올바른 JSON-RPC 2.0 요청이 아닙니다."),
        "JSON-RPC 2.0 메시지 하나를 보내세요. 묶음(batch)은 받지 않습니다.",
    ),
    "METHOD_NOT_FOUND": Sentences(
        ("지원하지 않는 메서드입니다: {method}", "지원하지 않는 메서드입니다."),
        "지원하는 MCP 메서드를 사용하세요.",
    ),
    "INVALID_PARAMS": Sentences(
        ("요청 매개변수가 올바르지 않습니다. ({detail})", "요청 매개변수가 올바르지 않습니다."),
        "params를 메서드의 형식에 맞게 고쳐 보내세요.",
    ),
    "HEADER_MISMATCH": Sentences(
        ("MCP 헤더가 없거나 본문과 다릅니다. ({detail})", "MCP 헤더가 없거나 본문과 다릅니다."),
        "MCP 헤더를 본문과 같은 값으로 보내세요.",
    ),
    "MISSING_CLIENT_CAPABILITY": Sentences(
        ("이 도구에 필요한 클라이언트 기능이 선언되지 않았습니다.",),
        "requiredCapabilities의 기능을 지원하는 클라이언트로 호출하세요.",
    ),
    "UNSUPPORTED_PROTOCOL_VERSION": Sentences(
        ("지원하지 않는 MCP 버전입니다: {requested}", "지원하지 않는 MCP 버전입니다."),
        "supported에 있는 버전 중 하나로 다시 보내세요.",
    ),
    "HOST_NOT_ALLOWED": Sentences(
        ("이 Host로 온 요청은 받지 않습니다.",),
        "공개 주소로 보내거나, 운영자에게 GATEWAY_ALLOWED_HOSTS 설정을 요청하세요.",
    ),
    "ORIGIN_NOT_ALLOWED": Sentences(
        ("이 Origin에서 온 요청은 받지 않습니다.",),
        "허용된 출처에서 보내거나, 운영자에게 GATEWAY_ALLOWED_ORIGINS 설정을 요청하세요.",
    ),
    "METHOD_NOT_ALLOWED": Sentences(("이 주소는 POST만 받습니다.",), "POST로 보내세요."),
    "NOT_ACCEPTABLE": Sentences(
        ("Accept 헤더가 허용하는 형식으로 답할 수 없습니다.",),
        "Accept에 application/json, text/event-stream, application/x-ndjson 중 하나를 넣으세요.",
    ),
    "UNSUPPORTED_MEDIA_TYPE": Sentences(
        ("Content-Type이 UTF-8 JSON이 아닙니다.",),
        "Content-Type을 application/json으로 보내세요.",
    ),
    "BODY_TOO_LARGE": Sentences(
        ("요청 본문이 너무 큽니다. (최대 {limit_bytes}바이트)", "요청 본문이 너무 큽니다."),
        "인자를 줄이거나 여러 번에 나누어 호출하세요.",
    ),
    "AUTHORIZATION_MALFORMED": Sentences(
        ("Authorization 헤더를 읽을 수 없습니다. ({detail})", "Authorization 헤더를 읽을 수 없습니다."),
        "Basic <base64(client_id:client_secret)> 또는 같은 값의 Bearer 하나만 보내세요.",
    ),
    "PATH_NOT_FOUND": Sentences(("제공하지 않는 주소입니다.",), "MCP 주소로 보내세요."),
    "AUTHORIZATION_TOO_LARGE": Sentences(
        ("Authorization 헤더가 너무 큽니다. (최대 {limit_bytes}바이트)", "Authorization 헤더가 너무 큽니다."),
        "Basic <base64(client_id:client_secret)> 또는 같은 값의 Bearer 하나만 보내세요.",
    ),
    "UNAUTHENTICATED": Sentences(
        ("인증 정보가 없거나 올바르지 않습니다.",),
        "계정의 client_id와 client_secret을 Authorization 헤더로 보내세요.",
    ),
    "ACCOUNT_SUSPENDED": Sentences(("정지된 계정입니다.",), "운영자에게 계정 상태를 문의하세요."),
    "PERMISSION_DENIED": Sentences(
        ("이 계정은 도구 {tool}을(를) 사용할 수 없습니다.", "이 계정은 이 도구를 사용할 수 없습니다."),
        "tools/list에 있는 도구를 사용하거나 운영자에게 권한을 요청하세요.",
    ),
    "TOOL_NOT_FOUND": Sentences(
        ("등록되지 않은 도구입니다: {tool}", "등록되지 않은 도구입니다."),
        "tools/list로 사용할 수 있는 도구 이름을 확인하세요.",
    ),
    "TOOL_NOT_ACTIVE": Sentences(
        ("활성화된 버전이 없는 도구입니다: {tool}", "활성화된 버전이 없는 도구입니다."),
        "tools/list로 사용할 수 있는 도구를 확인하세요.",
    ),
    "TOOL_VERSION_AMBIGUOUS": Sentences(
        (
            "도구 {tool}의 활성 버전이 둘 이상이라 실행하지 않았습니다. ({active_versions})",
            "활성 버전이 둘 이상인 도구라 실행하지 않았습니다.",
        ),
        "운영자에게 활성 버전을 하나만 남기도록 요청하세요.",
    ),
    "ARGUMENTS_INVALID": Sentences(
        ("인자가 도구 {tool}의 입력 스키마에 맞지 않습니다.", "인자가 도구의 입력 스키마에 맞지 않습니다."),
        "입력 스키마에 맞게 인자를 고쳐 다시 호출하세요.",
    ),
    "LANE_INVALID": Sentences(
        ("없는 레인입니다: {lane} (가능한 값: {lanes})", "없는 레인입니다."),
        "X-MCP-Env-Scope 헤더를 고치거나 빼고 보내세요.",
    ),
    "LANE_NOT_ALLOWED": Sentences(
        ("계정의 요금제 {plan}은(는) 레인 {lane}을 쓸 수 없습니다.", "계정의 요금제는 이 레인을 쓸 수 없습니다."),
        "X-MCP-Env-Scope 헤더를 허용된 레인으로 고치거나 빼고 보내세요.",
    ),
    "LANE_NOT_CONFIGURED": Sentences(
        ("도구 {tool}은(는) 레인 {lane}에서 제공되지 않습니다.", "도구가 이 레인에서 제공되지 않습니다."),
        "tools/list로 이 레인에서 쓸 수 있는 도구를 확인하세요.",
    ),
    "TOOL_UNREACHABLE": Sentences(
        (
            "도구 서버에 연결할 수 없거나 연결이 끊어졌습니다. ({detail})",
            "도구 서버에 연결할 수 없거나 연결이 끊어졌습니다.",
        ),
        "도구가 이미 일을 마쳤는지 먼저 확인하고, 그 뒤에 다시 호출할지 정하세요.",
        "잠시 후 같은 인자로 다시 호출하세요.",
        "도구는 호출되지 않았습니다. 도구의 주소나 비밀값 설정을 고치도록 운영자에게 알려 주세요.",
    ),
    "TOOL_TIMED_OUT": Sentences(
        (
            "도구가 제한 시간({timeout_seconds}초) 안에 응답하지 않았습니다.",
            "도구가 제한 시간 안에 응답하지 않았습니다.",
        ),
        "도구가 이미 일을 마쳤는지 먼저 확인하고, 그 뒤에 다시 호출할지 정하세요.",
        "잠시 후 같은 인자로 다시 호출하세요.",
    ),
    "TOOL_BUSY": Sentences(
        (
            "도구가 동시에 처리할 수 있는 호출 수({max_concurrency})를 넘었습니다.",
            "도구가 동시에 처리할 수 있는 호출 수를 넘었습니다.",
        ),
        "진행 중인 호출이 끝난 뒤 다시 호출하세요.",
        "잠시 후 같은 인자로 다시 호출하세요.",
    ),
    "TOOL_REFUSED": Sentences(
        (
            "도구 서버가 게이트웨이의 접근을 거절했습니다. (HTTP {http_status})",
            "도구 서버가 게이트웨이의 접근을 거절했습니다.",
        ),
        "운영자에게 도구의 인증 설정을 확인하도록 요청하세요.",
        "잠시 후 같은 인자로 다시 호출하세요.",
    ),
    "TOOL_HTTP_ERROR": Sentences(
        ("도구 서버가 오류로 응답했습니다. (HTTP {http_status})", "도구 서버가 오류로 응답했습니다."),
        "도구의 응답 내용을 확인하고 인자를 고쳐 다시 호출하세요.",
        "잠시 후 같은 인자로 다시 호출하세요.",
    ),
    "TOOL_RESPONSE_INVALID": Sentences(
        ("도구의 응답을 해석할 수 없습니다. ({detail})", "도구의 응답을 해석할 수 없습니다."),
        "운영자에게 도구의 응답 형식을 확인하도록 요청하세요.",
        "잠시 후 같은 인자로 다시 호출하세요.",
    ),
    "RESULT_TOO_LARGE": Sentences(
        ("도구의 결과가 너무 큽니다. (최대 {limit_bytes}바이트)", "도구의 결과가 너무 큽니다."),
        "결과가 작아지도록 인자를 좁혀 호출하세요.",
        "결과가 작아지도록 인자를 좁혀 호출하세요.",
    ),
}

EN: Mapping[str, Sentences] = {
    "INTERNAL": Sentences(
        ("Something unforeseen went wrong (trace id {trace_id}).", "Something unforeseen went wrong."),
        "Report it to the operator together with the trace id.",
    ),
    "SERVICE_UNAVAILABLE": Sentences(
        ("The service is not available right now. The request was not executed.",),
        "Send the same request again in a moment.",
    ),
    "CALL_OUTCOME_UNKNOWN": Sentences(
        ("The call may have been executed, but its outcome could not be learned.",),
        "Check whether the tool has done its work before you decide to call it again.",
    ),
    "PARSE_ERROR": Sentences(
        ("The request body cannot be read as JSON ({detail}).", "The request body cannot be read as JSON."),
        "Send valid JSON in UTF-8.",
    ),
    "INVALID_REQUEST": Sentences(
        ("This is not a valid JSON-RPC 2.0 request ({detail}).", "This is not a valid JSON-RPC 2.0 request."),
        "Send one JSON-RPC 2.0 message; batches are not taken.",
    ),
    "METHOD_NOT_FOUND": Sentences(
        ("This method is not served: {method}", "This method is not served."),
        "Use an MCP method that is served.",
    ),
    "INVALID_PARAMS": Sentences(
        ("The parameters are not valid ({detail}).", "The parameters are not valid."),
        "Give params the shape that the method demands.",
    ),
    "HEADER_MISMATCH": Sentences(
        (
            "An MCP header is missing or does not match the body ({detail}).",
            "An MCP header is missing or does not match the body.",
        ),
        "Send the MCP headers with the same values as the body.",
    ),
    "MISSING_CLIENT_CAPABILITY": Sentences(
        ("The client did not declare a capability that this tool needs.",),
        "Call it from a client that supports the capabilities in requiredCapabilities.",
    ),
    "UNSUPPORTED_PROTOCOL_VERSION": Sentences(
        ("This MCP version is not supported: {requested}", "This MCP version is not supported."),
        "Send the request again in one of the versions in supported.",
    ),
    "HOST_NOT_ALLOWED": Sentences(
        ("Requests with this Host are not taken.",),
        "Use the public address, or ask the operator about GATEWAY_ALLOWED_HOSTS.",
    ),
    "ORIGIN_NOT_ALLOWED": Sentences(
        ("Requests from this Origin are not taken.",),
        "Send it from an allowed origin, or ask the operator about GATEWAY_ALLOWED_ORIGINS.",
    ),
    "METHOD_NOT_ALLOWED": Sentences(("This address takes POST only.",), "Send it as POST."),
    "NOT_ACCEPTABLE": Sentences(
        ("Nothing that the Accept header admits can be produced.",),
        "Put application/json, text/event-stream or application/x-ndjson into Accept.",
    ),
    "UNSUPPORTED_MEDIA_TYPE": Sentences(
        ("The Content-Type is not JSON in UTF-8.",),
        "Send Content-Type: application/json.",
    ),
    "BODY_TOO_LARGE": Sentences(
        ("The request body is too large (at most {limit_bytes} bytes).", "The request body is too large."),
        "Send smaller arguments, or spread them over several calls.",
    ),
    "AUTHORIZATION_MALFORMED": Sentences(
        ("The Authorization header cannot be read ({detail}).", "The Authorization header cannot be read."),
        "Send one header: Basic <base64(client_id:client_secret)>, or Bearer with the same value.",
    ),
    "PATH_NOT_FOUND": Sentences(("Nothing is served at this address.",), "Use the MCP address."),
    "AUTHORIZATION_TOO_LARGE": Sentences(
        (
            "The Authorization header is too large (at most {limit_bytes} bytes).",
            "The Authorization header is too large.",
        ),
        "Send one header: Basic <base64(client_id:client_secret)>, or Bearer with the same value.",
    ),
    "UNAUTHENTICATED": Sentences(
        ("The credential is absent or wrong.",),
        "Send the account's client_id and client_secret in the Authorization header.",
    ),
    "ACCOUNT_SUSPENDED": Sentences(("The account is suspended.",), "Ask the operator about the account."),
    "PERMISSION_DENIED": Sentences(
        ("This account may not use the tool {tool}.", "This account may not use this tool."),
        "Use a tool that tools/list shows, or ask the operator for access.",
    ),
    "TOOL_NOT_FOUND": Sentences(
        ("No such tool is registered: {tool}", "No such tool is registered."),
        "Look up the names of the tools with tools/list.",
    ),
    "TOOL_NOT_ACTIVE": Sentences(
        ("No version of this tool is active: {tool}", "No version of this tool is active."),
        "Look up the tools that can be used with tools/list.",
    ),
    "TOOL_VERSION_AMBIGUOUS": Sentences(
        (
            "The tool {tool} has more than one active version ({active_versions}); nothing was executed.",
            "The tool has more than one active version; nothing was executed.",
        ),
        "Ask the operator to leave exactly one version active.",
    ),
    "ARGUMENTS_INVALID": Sentences(
        (
            "The arguments do not match the input schema of the tool {tool}.",
            "The arguments do not match the tool's input schema.",
        ),
        "Correct the arguments by the input schema and call again.",
    ),
    "LANE_INVALID": Sentences(
        ("There is no such lane: {lane} (there are: {lanes})", "There is no such lane."),
        "Correct the X-MCP-Env-Scope header, or leave it out.",
    ),
    "LANE_NOT_ALLOWED": Sentences(
        (
            "The account's plan {plan} does not allow the lane {lane}.",
            "The account's plan does not allow this lane.",
        ),
        "Name an allowed lane in the X-MCP-Env-Scope header, or leave it out.",
    ),
    "LANE_NOT_CONFIGURED": Sentences(
        ("The tool {tool} is not offered in the lane {lane}.", "The tool is not offered in this lane."),
        "Look up the tools of this lane with tools/list.",
    ),
    "TOOL_UNREACHABLE": Sentences(
        (
            "The tool's server could not be reached, or broke the connection off ({detail}).",
            "The tool's server could not be reached, or broke the connection off.",
        ),
        "Check whether the tool has done its work before you decide to call it again.",
        "Call it again with the same arguments in a moment.",
        "The tool was not asked. Ask the operator to mend its address or its secret.",
    ),
    "TOOL_TIMED_OUT": Sentences(
        (
            "The tool did not answer within the time limit ({timeout_seconds} seconds).",
            "The tool did not answer within the time limit.",
        ),
        "Check whether the tool has done its work before you decide to call it again.",
        "Call it again with the same arguments in a moment.",
    ),
    "TOOL_BUSY": Sentences(
        (
            "The tool already runs as many calls as it may ({max_concurrency}).",
            "The tool already runs as many calls as it may.",
        ),
        "Call it again when the running calls have ended.",
        "Call it again with the same arguments in a moment.",
    ),
    "TOOL_REFUSED": Sentences(
        (
            "The tool's server refused the gateway's access (HTTP {http_status}).",
            "The tool's server refused the gateway's access.",
        ),
        "Ask the operator to check the tool's credential.",
        "Call it again with the same arguments in a moment.",
    ),
    "TOOL_HTTP_ERROR": Sentences(
        ("The tool's server answered with an error (HTTP {http_status}).", "The tool's server answered with an error."),
        "Read the tool's answer, correct the arguments and call again.",
        "Call it again with the same arguments in a moment.",
    ),
    "TOOL_RESPONSE_INVALID": Sentences(
        ("The tool's answer cannot be used ({detail}).", "The tool's answer cannot be used."),
        "Ask the operator to check what the tool answers.",
        "Call it again with the same arguments in a moment.",
    ),
    "RESULT_TOO_LARGE": Sentences(
        ("The tool's result is too large (at most {limit_bytes} bytes).", "The tool's result is too large."),
        "Narrow the arguments so that the result gets smaller.",
        "Narrow the arguments so that the result gets smaller.",
    ),
}

SENTENCES: Mapping[Locale, Mapping[str, Sentences]] = {"ko": KO, "en": EN}


def sentence(reason: str, facts: Mapping[str, object], locale: Locale) -> str:
    """Says what happened, in one line. Facts that are too long for a line are cut."""
    for template in SENTENCES[locale][reason].says:
        fields = _fields(template)
        if all(field in facts for field in fields):
            return template.format_map({field: _shown(facts[field]) for field in fields})
    raise LookupError(f"{reason} has no sentence that needs no facts")


# Details of the registry that say that nothing was sent, and nothing ever will be.
_MISCONFIGURED = frozenset({"address not allowed", "secret not available"})


def next_action(reason: str, *, safe_to_retry: bool, locale: Locale, detail: object = None) -> str:
    """Says what the caller can do about it. `detail` is the fact of that name."""
    sentences = SENTENCES[locale][reason]
    if sentences.mend and detail in _MISCONFIGURED:
        return sentences.mend
    return sentences.retry if safe_to_retry and sentences.retry else sentences.do


@lru_cache(maxsize=512)
def _fields(template: str) -> Sequence[str]:
    return [field for _, field, _, _ in Formatter().parse(template) if field]


def _shown(fact: object) -> str:
    if isinstance(fact, list):
        text = ", ".join(str(item) for item in fact)
    elif isinstance(fact, float) and fact.is_integer():
        text = str(int(fact))
    else:
        text = str(fact)
    return text if len(text) <= _MAX_FACT_LENGTH else f"{text[:_MAX_FACT_LENGTH]}…"
