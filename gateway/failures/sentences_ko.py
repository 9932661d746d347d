"""The sentences in Korean, by reason."""

from collections.abc import Mapping

from gateway.failures.sentences import HttpAdvice, Sentences

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
    "METHOD_NOT_ALLOWED": Sentences(
        ("이 주소는 {allow}만 받습니다.", "이 주소는 이 메서드를 받지 않습니다."),
        "Allow 헤더에 있는 메서드로 보내세요.",
    ),
    "NOT_ACCEPTABLE": Sentences(
        ("Accept 헤더가 허용하는 형식으로 답할 수 없습니다.",),
        "Accept에 application/json, text/event-stream, application/x-ndjson 중 하나를 넣으세요.",
    ),
    "UNSUPPORTED_MEDIA_TYPE": Sentences(
        ("본문을 읽을 수 없습니다. ({detail})", "Content-Type이 UTF-8 JSON이 아닙니다."),
        "Content-Type을 application/json으로 하고 Content-Encoding 없이 보내세요.",
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
        "도구는 호출되지 않았습니다. 도구의 주소, 인증서나 비밀값 설정을 고치도록 운영자에게 알려 주세요.",
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
        http=HttpAdvice(
            redirect="도구의 주소가 옮겨졌습니다. 운영자에게 도구의 주소를 고치도록 요청하세요.",
            wait=("{retry_after_seconds}초 뒤에 다시 호출하세요.", "잠시 기다린 뒤 다시 호출하세요."),
            missing="도구의 응답 내용을 확인하세요. 인자가 맞다면 운영자에게 도구의 주소를 확인하도록 요청하세요.",
            smaller="인자를 줄이거나 여러 번에 나누어 호출하세요.",
            broken="도구가 이미 일을 마쳤는지 먼저 확인하세요. 오류가 계속되면 운영자에게 알려 주세요.",
        ),
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
