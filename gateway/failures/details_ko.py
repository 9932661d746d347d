"""The details of failures in Korean. They are facts in English; sentences in Korean hold these words instead.

`{}` stands for what a detail names: a member, a number, a place. A detail that isn't known here is left out of Korean
sentences, and stays in the facts.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

DETAILS: Mapping[str, str] = {
    # The body.
    "the body is not UTF-8": "본문이 UTF-8이 아닙니다",
    "the body is not JSON": "본문이 JSON이 아닙니다",
    "an object has a duplicate key": "객체에 같은 키가 두 번 있습니다",
    "NaN and Infinity are not JSON": "NaN과 Infinity는 JSON이 아닙니다",
    "more than {} arrays and objects": "배열과 객체가 {}개를 넘습니다",
    "more than {} members of objects": "객체의 항목이 {}개를 넘습니다",
    "more than {} elements": "배열의 원소가 {}개를 넘습니다",
    "nested deeper than {}": "중첩이 {}단계를 넘습니다",
    "a string has a lone surrogate": "문자열에 짝이 없는 서로게이트가 있습니다",
    # The envelope.
    "the body must be one JSON-RPC message, and is a batch": "JSON-RPC 메시지 하나여야 하는데, 묶음입니다",
    "the body must be one JSON-RPC message, and is not an object": "JSON-RPC 메시지 하나여야 하는데, 객체가 아닙니다",
    'jsonrpc must be "2.0"': 'jsonrpc는 "2.0"이어야 합니다',
    "id must be a string or an integer": "id는 문자열이나 정수여야 합니다",
    "id must not be longer than {} bytes": "id는 {}바이트를 넘을 수 없습니다",
    "method is missing": "method가 없습니다",
    "method must be a string": "method는 문자열이어야 합니다",
    "a message has either method, result or error": "메시지에는 method, result, error 중 하나만 있어야 합니다",
    "clients do not post responses": "클라이언트는 응답을 보내지 않습니다",
    "not a valid HTTP request": "올바른 HTTP 요청이 아닙니다",
    "the headers are too large": "헤더가 너무 큽니다",
    # Parameters.
    "{} is missing": "{}이(가) 없습니다",
    "{} must be a string": "{}은(는) 문자열이어야 합니다",
    "{} must be an object": "{}은(는) 객체여야 합니다",
    "{} must be a string or an integer": "{}은(는) 문자열이나 정수여야 합니다",
    "{} must not be longer than {} bytes": "{}은(는) {}바이트를 넘을 수 없습니다",
    "params._meta must have {}": "params._meta에 {}이(가) 있어야 합니다",
    "the log level is unknown": "알 수 없는 로그 수준입니다",
    "params.cursor was not issued by this server": "params.cursor는 이 서버가 준 값이 아닙니다",
    # Headers.
    "the {} header is repeated": "{} 헤더가 두 번 이상 있습니다",
    "the mcp-protocol-version header is not the version of params._meta": (
        "mcp-protocol-version 헤더가 params._meta의 버전과 다릅니다"
    ),
    "the mcp-method header is not the method of the body": "mcp-method 헤더가 본문의 method와 다릅니다",
    "the mcp-name header is not {} of the body": "mcp-name 헤더가 본문의 {}와(과) 다릅니다",
    "the protocol version is not served": "제공하지 않는 버전입니다",
    "it has a Content-Encoding": "Content-Encoding이 있습니다",
    "Host must be one host, with a port or without": "Host는 호스트 하나여야 하고, 포트는 있어도 없어도 됩니다",
    "more than one Authorization header": "Authorization 헤더가 둘 이상입니다",
    "it holds characters that are not visible ASCII": "보이는 ASCII가 아닌 문자가 있습니다",
    "the credential is missing": "인증 정보가 비어 있습니다",
    "the credential is not base64": "인증 정보가 base64가 아닙니다",
    "the credential mixes two base64 alphabets": "인증 정보에 두 가지 base64 문자가 섞여 있습니다",
    # Failures to reach a tool's endpoint.
    "no connection": "연결할 수 없음",
    "name not resolved": "이름을 찾을 수 없음",
    "broken off": "연결이 끊어짐",
    "address not allowed": "허용되지 않은 주소",
    "secret not available": "비밀값 없음",
    "certificate not trusted": "신뢰할 수 없는 인증서",
    "no TLS": "TLS 연결 실패",
    # Faults of a tool's answer.
    "empty body": "빈 본문",
    "not JSON": "JSON이 아님",
    "nested too deep": "중첩이 너무 깊음",
    "too many arrays and objects": "배열과 객체가 너무 많음",
    "too many members of objects": "객체의 항목이 너무 많음",
    "too many elements": "배열의 원소가 너무 많음",
    "a duplicate key": "같은 키가 두 번 있음",
    "a number of too many digits": "숫자가 너무 긺",
    "a number out of range": "범위를 벗어난 숫자",
    "not the shape that is due, at {}": "정해진 형식이 아님: {}",
    "structured content violates outputSchema at {}": "outputSchema에 맞지 않음: {}",
    "no structured content, which outputSchema demands": "outputSchema가 있는데 구조화된 결과가 없음",
    "neither content nor structuredContent": "content도 structuredContent도 없음",
    "the stream ended without a result": "스트림이 결과 없이 끝남",
    "broken {}": "손상된 {}",
    "cut {}": "끊긴 {}",
    "unknown Content-Encoding": "알 수 없는 Content-Encoding",
    "unknown charset": "알 수 없는 문자 집합",
    "gzip without Content-Encoding": "Content-Encoding이 없는 gzip",
    "not {} text": "{} 글이 아님",
    "malformed HTTP": "잘못된 HTTP",
    "headers too large": "헤더가 너무 큼",
    "too large to be checked in time": "너무 커서 제때 검사할 수 없음",
}

_PATTERNS = [
    (re.compile("(.+)".join(re.escape(part) for part in english.split("{}"))), korean)
    for english, korean in DETAILS.items()
    if "{}" in english
]


@lru_cache(maxsize=512)
def korean(detail: str) -> str | None:
    """Returns a detail in Korean; None where it isn't known."""
    known = DETAILS.get(detail)
    if known is not None:
        return known
    for pattern, text in _PATTERNS:
        match = pattern.fullmatch(detail)
        if match is not None:
            return text.format(*match.groups())
    return None
