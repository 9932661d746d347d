from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from registry_service.tools.http_endpoint import METHODS, PATH_ARGUMENT, SECRET, endpoint_faults
from tests.support.samples import arguments

SCHEMA = arguments(
    id={"type": "string"}, n={"type": ["integer", "null"]}, any={}, true=True, obj={"type": "object"}, 이름={}
) | {
    "allOf": [{"$ref": "#/$defs/more"}],
    "anyOf": [{"properties": {"either": {"type": "array"}}}, {"properties": {"either": {"type": "string"}}}],
    "$defs": {"more": {"properties": {"deep": {"type": "string"}}, "if": {"properties": {"cond": {}}}}, "other": {}},
}


def faults(endpoint):
    return [tuple(fault) for fault in endpoint_faults(endpoint, "/endpoint", SCHEMA)]


def pointers(**endpoint):
    return [pointer for pointer, _ in faults({"production": {"url": "http://a.test/", **endpoint}})]


def url_faults(url):
    return [
        message for pointer, message in faults({"production": {"url": url}}) if pointer == "/endpoint/production/url"
    ]


def test_takes_an_endpoint_a_lane():
    both = {"production": {"url": "https://a.test/x"}, "real_test": {"url": "http://a.test", "method": "GET"}}
    assert faults(both) == []


@pytest.mark.parametrize(
    "endpoint", [None, [], "http://a.test", {}, {"url": "http://a.test"}, {"staging": {"url": "http://a"}}]
)
def test_refuses_what_is_not_an_endpoint_a_lane(endpoint):
    assert faults(endpoint)


def test_every_fault_is_told_with_its_place():
    endpoint = {"url": "ftp://x", "method": "post", "result": "xml", "headers": {"Host": "x", "A b": "x"}, "retries": 3}
    assert sorted(pointer for pointer, _ in faults({"production": endpoint, "real_test": {}})) == [
        *("/endpoint/production/headers/A b", "/endpoint/production/headers/Host", "/endpoint/production/method"),
        *("/endpoint/production/result", "/endpoint/production/retries", "/endpoint/production/url"),
        "/endpoint/real_test/url",
    ]
    assert '"retries" is not a member' in str(faults({"production": endpoint}))


@pytest.mark.parametrize(
    "url",
    [
        "http://a.test",
        "https://a.test:8443/v1/x?fixed=1&y=%20",
        "http://tools.internal/users/{id}/stats",
        "http://my_service:9000/{id}-{n}/{any}",
        "http://10.0.0.1/",
        "http://[::1]:8080/x",
        "http://a.test/{deep}/{cond}/{either}/{true}/{이름}",
        "http://a.test/a//b/..c/.d",
    ],
)
def test_takes_a_url(url):
    assert url_faults(url) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "absolute"),
        ("/stats", "absolute"),
        ("a.test/stats", "absolute"),
        ("HTTP://a.test/", "absolute"),
        ("ftp://a.test/", "absolute"),
        ("file:///etc/passwd", "absolute"),
        ("http:///x", "name a host"),
        ("http://:80/", "name a host"),
        ("http://a..test/", "name a host"),
        ("http://-a.test/", "name a host"),
        ("http://나루.kr/", "name a host"),
        ("http://a.test\\@evil/", "user or password"),
        ("http://[::1/", "name a host"),
        ("http://[x]/", "name a host"),
        ("http://[fe80::1%25eth0]/", "name a host"),
        ("http://a b/", "name a host"),
        ("http://a.test:0/", "port"),
        ("http://a.test:65536/", "port"),
        ("http://a.test:x/", "name a host"),
        ("http://user:password@a.test/", "user or password"),
        ("http://user@a.test/", "user or password"),
        ("http://a.test/#", "fragment"),
        ("http://a.test/#top", "fragment"),
        ("http://{id}.test/", "path only"),
        ("http://a.test:{n}/", "path only"),
        ("http://a.test/?q={id}", "path only"),
        ("http://a.test/?q=a b", "percent-encoded"),
        ("http://a.test/{id", "not part of"),
        ("http://a.test/id}", "not part of"),
        ("http://a.test/{}", "not part of"),
        ("http://a.test/{{id}}", "not part of"),
        ("http://a.test/{i/d}", "not part of"),
        ("http://a.test/${secret:x}", "values of its query only"),
        ("http://${secret:x}.test/", "values of its query only"),
        ("http://${secret:x}@a.test/", "values of its query only"),
        ("http://a.test/?${secret:x}=1", "not in a name"),
        ("http://a.test/?a=1&b${secret:x}", "not in a name"),
        ("http://a.test/?k=${secret:}", "does not begin"),
        ("http://a.test/?k=${env:HOME}", "does not begin"),
        ("http://a.test/?k=${secret:x}&q={id}", "path only"),
        ("http://a.test/{nope}", "not a property"),
        ("http://a.test/{obj}", "only be an object"),
        ("http://a.test/a b", "percent-encoded"),
        ("http://a.test/안녕", "percent-encoded"),
        ("http://a.test/%zz", "percent-encoded"),
        ("http://a.test/a\\b", "percent-encoded"),
        ("http://a.test/a\n", "percent-encoded"),
        ("http://a.test/a/../b", "can become"),
        ("http://a.test/%2e%2E/b", "can become"),
        ("http://a.test/.", "can become"),
        ("http://a.test/.{id}", "can become"),
        ("http://a.test/{id}{n}", "can become"),
        ("http://a.test/" + "x" * 2048, "longer"),
    ],
)
def test_refuses_a_url(url, message):
    assert [told for told in url_faults(url) if message in told]


segments = st.lists(st.sampled_from(["{id}", "{n}", ".", "..", "%2e", "a", "-", "_"]), max_size=4).map("".join)
values = st.sampled_from([".", "..", "a", "%", "/", "%2e", ".a"])


@given(st.lists(segments, min_size=1, max_size=3), values, values)
def test_no_arguments_can_make_an_accepted_path_take_a_step(parts, one, other):
    url = "http://a.test/" + "/".join(parts)
    if url_faults(url) or one in (".", "..") or other in (".", ".."):
        # An argument that is a step by itself is refused at execution where it stands alone; see the next test.
        return
    filled = PATH_ARGUMENT.sub(lambda match: quote({"id": one, "n": other}[match[1]], safe=""), url)
    assert len(URL(filled).raw_parts) == len(URL(filled, encoded=True).raw_parts)


@given(segments)
def test_dots_as_arguments_make_a_step_only_where_one_stands_alone(segment):
    if "{" not in segment or url_faults(f"http://a.test/{segment}"):
        return
    for one in (".", ".."):
        filled = PATH_ARGUMENT.sub(one, segment)
        assert filled not in (".", "..") or PATH_ARGUMENT.fullmatch(segment)


@pytest.mark.parametrize("method", METHODS)
def test_takes_a_method(method):
    assert pointers(method=method) == []


@pytest.mark.parametrize("method", ["post", "HEAD", "OPTIONS", "TRACE", "CONNECT", "", None, 5, ["GET"]])
def test_refuses_a_method(method):
    assert pointers(method=method) == ["/endpoint/production/method"]


@pytest.mark.parametrize("result", ["xml", "", None, True])
def test_refuses_a_kind_of_result(result):
    assert pointers(result="mcp") == []
    assert pointers(result=result) == ["/endpoint/production/result"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Api-Key": "${secret:stats_key}", "Accept": "application/vnd.api+json"},
        {"Authorization": "Bearer ${secret:a.b-c}", "Content-Type": "application/json; charset=utf-8"},
        {"Cookie": "a=1; b=2", "X-Dollar": "costs $5 {really}"},
        {},
    ],
)
def test_takes_headers(headers):
    assert pointers(headers=headers) == []


@pytest.mark.parametrize(
    "name",
    [
        *("", "A b", "A:", "A\n", "Ä", "host", "Content-Length", "Transfer-Encoding", "CONNECTION", "Upgrade", "TE"),
        *("Trailer", "Expect", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "X-Request-Id", "traceparent"),
        *("tracestate", "Idempotency-Key", "X-Naru-Tool", "x-naru-anything", "Mcp-Session-Id", "MCP-Protocol-Version"),
    ],
)
def test_refuses_the_name_of_a_header(name):
    assert pointers(headers={name: "x"}) == [f"/endpoint/production/headers/{name}"]


@pytest.mark.parametrize(
    "value",
    [
        *("", " x", "x ", "a\r\nB: c", "a\x00", "é", "x" * 4097, 5, None, True, ["x"]),
        *("${secret:}", "${secret:a b}", "${secret:../x}", "${secret:.x}", "${secret:a", "${SECRET:a}", "${env:HOME}"),
    ],
)
def test_refuses_the_value_of_a_header(value):
    assert pointers(headers={"X-A": value}) == ["/endpoint/production/headers/X-A"]


def test_refuses_headers_as_a_whole():
    assert pointers(headers=[]) == ["/endpoint/production/headers"]
    assert pointers(headers={f"X-{n}": "x" for n in range(33)}) == ["/endpoint/production/headers"]
    assert pointers(headers={"X-A": "x", "x-a": "y"}) == ["/endpoint/production/headers/x-a"]


@pytest.mark.parametrize(
    "query",
    ["serviceKey=${secret:data.go.kr}", "a=1&k=${secret:x}&b", "k=p%20${secret:x}${secret:y}-"],
)
def test_a_query_may_hold_secrets_in_its_values(query):
    """Korea's public data portal takes its keys there."""
    assert list(url_faults(f"http://a.test/{{id}}?{query}")) == []


def test_secrets_are_found_in_a_value():
    assert SECRET.findall("${secret:a} and ${secret:b.c}") == ["a", "b.c"]
