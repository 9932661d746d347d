"""The sentences in English, by reason."""

from collections.abc import Mapping

from gateway.failures.sentences import HttpAdvice, Sentences

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
    "METHOD_NOT_ALLOWED": Sentences(
        ("This address takes {allow} only.", "This address does not take this method."),
        "Send it with a method that the Allow header names.",
    ),
    "NOT_ACCEPTABLE": Sentences(
        ("Nothing that the Accept header admits can be produced.",),
        "Put application/json, text/event-stream or application/x-ndjson into Accept.",
    ),
    "UNSUPPORTED_MEDIA_TYPE": Sentences(
        ("The body cannot be read ({detail}).", "The Content-Type is not JSON in UTF-8."),
        "Send Content-Type: application/json, and no Content-Encoding.",
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
        "The tool was not asked. Ask the operator to mend its address, its certificate or its secret.",
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
        http=HttpAdvice(
            redirect="The tool has moved. Ask the operator to correct its address.",
            wait=("Call it again after {retry_after_seconds} seconds.", "Wait a moment, and call it again."),
            missing="Read the tool's answer. If the arguments are right, ask the operator to check the tool's address.",
            smaller="Send smaller arguments, or spread them over several calls.",
            broken="Check whether the tool has done its work. If the error persists, report it to the operator.",
        ),
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
