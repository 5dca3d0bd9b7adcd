"""Hostile headers and hostile JSON: refused, or served for what it really says; never repeated, never an exception."""

import gc
import gzip
import json
import time
from typing import Any, Final

import pytest
from mcp.server.mcpserver import MCPServer
from pydantic_core import from_json

from sealane import Catalog, Cors, McpHandler, RequestContext, create_mcp_handler
from sealane.era import UNPARSABLE, decode
from sealane.policy.hosts import hostname_of
from sealane.policy.origins import origin_hostname
from tests.events import SHAPES, Answer, Headers, Shape, ask, legacy, modern
from tests.unit.asgi import fetch, starlette_request

HOST: Final = "mcp.example.com"
IDN: Final = "xn--bcher-kva.example"
PAGE: Final = "https://app.example.com"
AWS_NAME: Final = "a1b2c3d4e5.execute-api.eu-west-1.amazonaws.com"
EVIL: Final = "evil.example"
SPLITTING: Final = "\r\nX-Evil: 1"

catalog = Catalog()
received: list[Any] = []
eras: list[str] = []


@catalog.tool()
async def keep(value: Any = None) -> str:
    """Keeps what it gets."""
    received.append(value)
    return "kept"


def make_server(context: RequestContext) -> MCPServer:
    """A server that is noted."""
    eras.append(context.era)
    return catalog.server("hostile")


DEFAULT: Final = create_mcp_handler(make_server)
LISTED: Final = create_mcp_handler(
    make_server,
    allowed_hostnames=[HOST, IDN, "2001:db8::1"],
    allowed_origin_hostnames=["app.example.com", IDN, "2001:db8::1"],
    cors=Cors(origins=[PAGE]),
)

every_shape = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture(autouse=True)
def nothing_received() -> None:
    received.clear()
    eras.clear()


def with_headers(**headers: str | list[str]) -> tuple[Headers, Any]:
    """A request that is served, with further headers (`_` for `-`)."""
    sent, body = modern("tools/list")
    return {**sent, **{name.replace("_", "-"): value for name, value in headers.items()}}, body


def repeated(answer: Answer, hostile: str | list[str]) -> list[str]:
    """The headers of an answer that hold what was sent, or a line break."""
    sent = [text for text in ([hostile] if isinstance(hostile, str) else hostile) if text.strip()]
    return [
        name
        for name, value in answer.headers.items()
        if any(text.strip() in value for text in (*sent, EVIL, "X-Evil")) or "\r" in value or "\n" in value
    ]


# Host

NOT_OUR_HOST: Final[dict[str, str | list[str]]] = {
    "empty": "",
    "space": " ",
    "10 KB": "x" * 10_000,
    "10 KB that end well": "x" * 10_000 + f".{HOST}",
    "10 KB of port": f"{HOST}:{'4' * 10_000}",
    "line break": HOST + SPLITTING,
    "only a line feed": f"{HOST}\n",
    "NUL": f"{HOST}\0",
    "NUL before another": f"{HOST}\0.{EVIL}",
    "tab inside": "mcp\t.example.com",
    "vertical tab": f"{HOST}\v",
    "no-break space": f"{HOST}\xa0",
    "byte that is no UTF-8, replaced": f"{HOST}\ufffd",
    "byte that is no UTF-8, as Latin-1": f"{HOST}\xff",
    "byte that is no UTF-8, escaped": f"{HOST}\udcff",
    "other name": EVIL,
    "longer name": f"{HOST}.{EVIL}",
    "name that ends alike": f"x{HOST}",
    "trailing dot": f"{HOST}.",
    "leading dot": f".{HOST}",
    "path": f"{HOST}/mcp",
    "back slash": f"{HOST}\\@{EVIL}",
    "query": f"{HOST}?x",
    "fragment": f"{EVIL}#{HOST}",
    "scheme": f"https://{HOST}",
    "user": f"user@{HOST}",
    "user that looks like us": f"{HOST}@{EVIL}",
    "password": f"{HOST}:443@{EVIL}",
    "port that is none": f"{HOST}:https",
    "port in Arabic digits": f"{HOST}:٤٤٣",
    "port in full-width digits": f"{HOST}:４４３",  # noqa: RUF001
    "negative port": f"{HOST}:-1",
    "two ports": f"{HOST}:443:443",
    "port beyond 16 bits": f"{HOST}:655360",
    "look-alike in Cyrillic": "m\u0441p.example.com",
    "look-alike in punycode": "xn--mp-jlc.example.com",
    "full-width letters": "ｍｃｐ.example.com",  # noqa: RUF001
    "ideographic full stop": "mcp\u3002example.com",
    "soft hyphen": "mcp\xad.example.com",
    "per cent": "mcp%2eexample.com",
    "IDN as Unicode": "bücher.example",
    "IPv6 without brackets": "2001:db8::1",
    "IPv6 half in brackets": "[2001:db8::1",
    "IPv6 spelt longer": "[2001:db8:0:0:0:0:0:1]",
    "IPv6 with a zone": "[2001:db8::1%25eth0]",
    "IPv4 in IPv6": "[::ffff:127.0.0.1]",
    "name in brackets": f"[{HOST}]",
    "list": f"{HOST},{EVIL}",
    "two": [HOST, EVIL],
    "the same twice": [HOST, HOST],
}
OUR_HOST: Final = {
    "as listed": HOST,
    "upper case": HOST.upper(),
    "default port": f"{HOST}:443",
    "other port": f"{HOST}:8443",
    "empty port": f"{HOST}:",
    "spaces around": f" \t{HOST}\t ",
    "IDN": IDN.upper(),
    "IPv6": "[2001:db8::1]",
    "IPv6 in upper case, with a port": "[2001:DB8::1]:443",
}


def last_counts(shape: Shape, values: str | list[str]) -> bool:
    """Whether the sender of this shape has only the last of several values."""
    return shape == "alb" and isinstance(values, list)


@every_shape
@pytest.mark.parametrize("host", NOT_OUR_HOST.values(), ids=NOT_OUR_HOST)
def test_host_that_is_not_ours_is_refused(host: str | list[str], shape: Shape) -> None:
    if last_counts(shape, host) and host[-1] == HOST:
        pytest.skip("what is left of it is our name")
    refused = ask(LISTED, with_headers(Host=host), shape)
    dangerous = isinstance(host, str) and any(letter in host for letter in "\r\n\0\udcff")
    assert refused.status in ((400, 421) if dangerous else (421,))
    assert refused.json["error"]["code"] == -32600
    assert repeated(refused, host) == []
    assert eras == []


@every_shape
@pytest.mark.parametrize("host", OUR_HOST.values(), ids=OUR_HOST)
def test_host_that_is_really_ours_is_served(host: str, shape: Shape) -> None:
    assert ask(LISTED, with_headers(Host=host), shape).status == 200


@pytest.mark.parametrize("shape", ["rest", "http", "http-v1", "url"])
@pytest.mark.parametrize("host", NOT_OUR_HOST.values(), ids=NOT_OUR_HOST)
def test_host_that_is_not_the_own_aws_name_is_refused(host: str | list[str], shape: Shape) -> None:
    own = [text.replace(HOST, AWS_NAME) for text in ([host] if isinstance(host, str) else host)]
    assert ask(DEFAULT, with_headers(Host=own), shape, domain_name=AWS_NAME).status in (400, 421)


@every_shape
@pytest.mark.parametrize("host", ["", "a b", f"{HOST}/mcp", f"user@{HOST}", f"{HOST}:x", "[::1", "bücher.example"])
def test_custom_domain_serves_no_host_that_is_none(host: str, shape: Shape) -> None:
    assert ask(DEFAULT, with_headers(Host=host), shape, domain_name=HOST).status == 421


@pytest.mark.parametrize("shape", ["rest", "http", "http-v1", "url", "alb-multi"])
def test_custom_domain_serves_no_two_hosts(shape: Shape) -> None:
    assert ask(DEFAULT, with_headers(Host=[HOST, EVIL]), shape, domain_name=HOST).status == 421


def test_kelvin_sign_is_no_k() -> None:
    assert hostname_of("\u212aitchen.example") is None
    assert origin_hostname("https://\u212aitchen.example") is None
    with pytest.raises(ValueError, match="allowed_hostnames"):
        create_mcp_handler(make_server, allowed_hostnames=["\u212aitchen.example"])


# Origin

NOT_OUR_ORIGIN: Final[dict[str, str | list[str]]] = {
    "null": "null",
    "empty": "",
    "no scheme": "app.example.com",
    "relative": "//evil",
    "relative, ours": "//app.example.com",
    "other scheme": "ftp://app.example.com",
    "file": "file://",
    "extension": "chrome-extension://app.example.com",
    "script": "javascript://app.example.com",
    "long s": "http\u017f://app.example.com",
    "user": "https://good@evil",
    "user that looks like us": f"{PAGE}@{EVIL}",
    "password": f"{PAGE}:443@{EVIL}",
    "user before us": "https://evil@app.example.com",
    "back slash": f"https://{EVIL}\\@app.example.com",
    "path": f"{PAGE}/",
    "query": f"{PAGE}?",
    "fragment": f"https://{EVIL}#app.example.com",
    "longer name": f"{PAGE}.{EVIL}",
    "name that ends alike": "https://xapp.example.com",
    "parent": "https://example.com",
    "trailing dot": f"{PAGE}.",
    "port in Arabic digits": f"{PAGE}:٤٤٣",
    "two ports": f"{PAGE}:443:443",
    "line break": PAGE + SPLITTING,
    "only a line feed": f"{PAGE}\n",
    "NUL": f"{PAGE}\0",
    "tab inside": "https://app\t.example.com",
    "space inside": f"{PAGE} {PAGE}",
    "10 KB": f"https://{'x' * 10_000}",
    "look-alike in Cyrillic": "https://\u0430pp.example.com",
    "look-alike in punycode": "https://xn--pp-6kc.example.com",
    "IDN as Unicode": "https://bücher.example",
    "byte that is no UTF-8": f"{PAGE}\ufffd",
    "half a surrogate pair": f"{PAGE}\ud800",
    "IPv6 without brackets": "https://2001:db8::1",
    "IPv6 half in brackets": "https://[2001:db8::1",
    "list": f"{PAGE}, https://{EVIL}",
    "two": [PAGE, f"https://{EVIL}"],
    "the same twice": [PAGE, PAGE],
}
OUR_ORIGIN: Final = {
    "as listed": PAGE,
    "upper case": PAGE.upper(),
    "default port": f"{PAGE}:443",
    "other port": f"{PAGE}:8443",
    "spaces around": f"\t{PAGE} ",
    "IDN": f"https://{IDN}",
    "IPv6": "https://[2001:DB8::1]",
}


@every_shape
@pytest.mark.parametrize("handler", [DEFAULT, LISTED], ids=["default", "listed"])
@pytest.mark.parametrize("origin", NOT_OUR_ORIGIN.values(), ids=NOT_OUR_ORIGIN)
def test_origin_that_is_not_ours_is_refused(origin: str | list[str], handler: McpHandler, shape: Shape) -> None:
    if last_counts(shape, origin) and origin[-1] == PAGE:
        pytest.skip("what is left of it is our name")
    refused = ask(handler, with_headers(Origin=origin), shape, domain_name=HOST)
    dangerous = isinstance(origin, str) and any(letter in origin for letter in "\r\n\0\ud800")
    assert refused.status == (400 if dangerous else 403)
    assert refused.json["error"]["code"] == -32600
    # Of two, Starlette's CORS sees the first: a listed one is named, which is the text of our own configuration.
    allowed = refused.headers.get("access-control-allow-origin")
    assert allowed in (None, "*") or (isinstance(origin, list) and allowed == PAGE)
    assert [name for name in repeated(refused, origin) if name != "access-control-allow-origin"] == []
    assert eras == []


@every_shape
@pytest.mark.parametrize("origin", OUR_ORIGIN.values(), ids=OUR_ORIGIN)
def test_origin_that_is_really_ours_is_served(origin: str, shape: Shape) -> None:
    served = ask(LISTED, with_headers(Origin=origin), shape, domain_name=HOST)
    assert served.status == 200
    # CORS compares as browsers write it, letter by letter; what it does not know it does not repeat.
    assert served.headers.get("access-control-allow-origin") == (PAGE if origin == PAGE else None)


@every_shape
@pytest.mark.parametrize("origin", NOT_OUR_ORIGIN.values(), ids=NOT_OUR_ORIGIN)
def test_preflight_repeats_no_origin_that_is_not_ours(origin: str | list[str], shape: Shape) -> None:
    if isinstance(origin, list):
        pytest.skip("Starlette's CORS sees one of two")
    sent = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    refused = ask(LISTED, (sent, None), shape, method="OPTIONS", domain_name=HOST)
    assert refused.status == 400
    assert "access-control-allow-origin" not in refused.headers
    assert repeated(refused, origin) == []


@every_shape
@pytest.mark.parametrize(
    "asked",
    [
        f"mcp-param-a{SPLITTING}",
        "mcp-param-a\0",
        "mcp-param-é",
        "mcp-param-a:1",
        "mcp-param-",
        "mcp-param-\ud800",
        f"x-{'y' * 10_000}",
        "mcp-param-a\tb",
    ],
)
def test_preflight_repeats_no_header_name_that_is_none(asked: str, shape: Shape) -> None:
    sent = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    refused = ask(LISTED, (sent, None), shape, method="OPTIONS", domain_name=HOST)
    assert refused.status == 400
    assert repeated(refused, asked) == []


# The other headers

NAMES: Final = (
    "Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Param-Region", "Mcp-Session-Id",
    "Last-Event-ID", "Authorization", "Cookie", "Content-Length", "Content-Encoding", "X-Forwarded-For",
    "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Proto", "Forwarded", "Traceparent", "User-Agent",
)  # fmt: skip
VALUES: Final = {
    "10 KB": f"{EVIL}{'x' * 10_000}",
    "line break": f"a{SPLITTING}",
    "line feed": "\na",
    "NUL": "\0",
    "Latin-1": f"\xff{EVIL}",
    "replaced": f"\ufffd{EVIL}",
    "half a surrogate pair": "\udcff",
    "tabs": f"\t{EVIL}\t",
    "Arabic digits": "٤٤٣",
    "superscript": "²",
    "empty": "",
}


@every_shape
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_no_header_is_an_exception_or_comes_back(name: str, value: str, shape: Shape) -> None:
    given = ask(LISTED, with_headers(**{"Host": HOST, name: value}), shape)
    assert given.status in (200, 400, 406, 413, 415)
    if any(letter in value for letter in "\r\n\0"):
        assert given.status == 400
    assert repeated(given, value if len(value) > 3 else "") == []
    assert "x-evil" not in given.headers


# JSON


def calling(value: str, era: str = "modern") -> tuple[Headers, str]:
    """A call of `keep` with the JSON text `value` as its argument."""
    make = modern if era == "modern" else legacy
    headers, body = make("tools/call", name="keep", arguments={"value": "@"})
    return headers, json.dumps(body).replace('"@"', value)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


READ: Final = {
    "null": "null",
    "negative zero": "-0",
    "negative zero, a fraction": "-0.0",
    "integer of 4,300 digits": "9" * 4300,
    "integer beyond a double": str(2**64 + 1),
    "smallest number": "5e-324",
    "largest number": "1.7976931348623157e308",
    "what rounds to zero": "1e-400",
    "digits that no double has": "0.1000000000000000055511151231257827021181583404541015625",
    "half way between two doubles": "9007199254740993.0",
    "exponents": "[1e5,1E5,1e+5,1e-5,0e0]",
    "pair of surrogates": '"\\ud83d\\ude00"',
    "noncharacter": '"\uffff"',
    "escapes": '"\\u0000\\b\\f\\n\\r\\t\\/\\\\\\""',
    "DEL and line separators": '"\x7f\u2028\u2029"',
    "byte order mark in a string": '"\ufeff"',
    "spaces": " \t\r\n[ 1 , { } ] \n",
    "equal names in two objects": '[{"a":1},{"a":1},{"b":{"a":1}}]',
    "names that look alike": '{"\u00e9":1,"e\u0301":2,"a":3,"A":4,"":5}',
    "nested within reason": nested(190),
    "names of objects": '{"__proto__":1,"constructor":2,"__class__":3}',
}
NOT_READ: Final = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "nan": "nan",
    "1e400": "1e400",
    "-1e400": "[-1e400]",
    "fraction beyond a double": "1" + "0" * 400 + ".0",
    "integer of 4,301 digits": "9" * 4301,
    "integer of a million digits": "9" * 1_000_000,
    "leading zero": "01",
    "plus": "+1",
    "hexadecimal": "0x1",
    "underscore": "1_000",
    "digits of another script": "٣",
    "half of a surrogate pair": '"\\ud800"',
    "other half": '"\\udc00"',
    "halves in the wrong order": '"\\ude00\\ud83d"',
    "half of a surrogate pair in a name": '{"\\ud800":1}',
    "same name twice": '{"a":1,"a":1}',
    "same name twice, spelt differently": '{"a":1,"\\u0061":2}',
    "same name twice, deep inside": '[[{"b":[{"a":{"x":1,"y":2,"x":3}}]}]]',
    "empty name twice": '{"":1,"":2}',
    "comma too many": "[1,]",
    "comment": "1/*x*/",
    "single quotes": "'a'",
    "control character in a string": '"a\nb"',
    "NUL in a string": '"\0"',
    "unknown escape": '"\\x41"',
    "nested too deep": nested(201),
    "100,000 levels": nested(100_000),
    "100,000 objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "not closed": "[",
    "vertical tab": "\v1",
    "no-break space": "\xa01",
}


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("value", READ.values(), ids=READ)
def test_what_is_read_is_what_the_tool_gets(value: str, era: str) -> None:
    headers, body = calling(value, era)
    assert ask(DEFAULT, (headers, body)).status == 200
    message: Any = decode(body.encode())
    assert repr(received) == repr([message["params"]["arguments"]["value"]])
    # What the SDK reads bodies with: one for each era.
    assert repr(message) == repr(json.loads(body)) == repr(from_json(body))


@pytest.mark.parametrize("shape", ["rest", "http", "fetch"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("value", NOT_READ.values(), ids=NOT_READ)
def test_what_is_not_read_reaches_no_server(value: str, era: str, shape: Any) -> None:
    request = calling(value, era)
    assert decode(request[1].encode()) is UNPARSABLE
    begun = time.process_time()
    refused = fetch(DEFAULT, starlette_request(request)) if shape == "fetch" else ask(DEFAULT, request, shape)
    assert time.process_time() - begun < 1
    assert (refused.status, refused.json["error"]["code"], refused.json["id"]) == (400, -32700, None)
    assert eras == received == []


@every_shape
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    ("once", "twice"),
    [
        ('"method"', '"method":"tools/list","method"'),
        ('"id"', '"id":2,"id"'),
        ('"jsonrpc"', '"jsonrpc":"2.0","jsonrpc"'),
        ('"params"', '"params":{},"params"'),
        ('"name"', '"name":"other","name"'),
        ('"name"', '"\\u006eame":"other","name"'),
        ('"arguments"', '"arguments":{},"arguments"'),
        ('"_meta"', '"_meta":{},"_meta"'),
        ('"value"', '"value":1,"value"'),
    ],
)
def test_no_member_is_named_twice(once: str, twice: str, era: str, shape: Shape) -> None:
    """JSON-RPC's -32700: RFC 8259 section 4 leaves such a text to the parser, and ours refuses it.

    The code for a bad request object, -32600, would be for a message that was read; here nobody knows which `id` or
    `method` it has.
    """
    headers, text = calling('"v"', era)
    if once == '"_meta"' and era == "legacy":
        text = text.replace('"params": {', '"params": {"_meta": {}, ')
    assert once in text
    refused = ask(DEFAULT, (headers, text.replace(once, twice, 1)), shape)
    assert (refused.status, refused.json["error"]["code"], refused.json["id"]) == (400, -32700, None)
    assert eras == []


TEXT: Final = calling('"é"')[1]


@every_shape
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"\r\n\t ",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf" + TEXT.encode(),
        *(TEXT.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1")),
        TEXT.encode() + b"x",
        TEXT.encode() + b"\0",
        TEXT.encode() + TEXT.encode(),
        b"1\0",
        TEXT.encode().replace("é".encode(), b"\xed\xa0\x80"),
        TEXT.encode().replace("é".encode(), b"\xc0\x80"),
        gzip.compress(TEXT.encode()),
    ],
)
def test_body_that_is_not_one_json_text_in_utf_8_is_refused(body: bytes, shape: Shape) -> None:
    """RFC 8259 section 8.1. A byte order mark MAY be ignored: the SDK does on one era and does not on the other."""
    headers, _ = calling("1")
    refused = ask(DEFAULT, (headers, body), shape)
    assert (refused.status, refused.json["error"]["code"]) == (400, -32700)
    assert eras == []


@every_shape
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "br", "deflate", "identity, gzip", "zstd", ","])
def test_coded_body_is_refused_with_a_text(coding: str, shape: Shape) -> None:
    headers, text = calling("1")
    refused = ask(DEFAULT, ({**headers, "Content-Encoding": coding}, gzip.compress(text.encode())), shape)
    assert refused.status == 415
    assert "Content-Encoding" in refused.json["error"]["message"]
    assert refused.headers["accept-encoding"] == "identity"
    assert eras == []


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
def test_uncoded_body_that_says_so_is_served(coding: str) -> None:
    headers, text = calling("1")
    assert ask(DEFAULT, ({**headers, "Content-Encoding": coding}, text)).status == 200


def test_body_that_the_framework_in_front_has_decompressed_is_served() -> None:
    headers, body = modern("tools/list")
    request = starlette_request(({**headers, "Content-Encoding": "gzip"}, gzip.compress(json.dumps(body).encode())))
    assert fetch(DEFAULT, request, parsed_body=body).status == 200


@pytest.mark.parametrize(
    "value",
    ["[]," * 330_000 + "[]", "{}," * 330_000 + "{}", "1.5," * 250_000 + "1", '{"a":0},' * 120_000 + '{"a":0,"a":0}'],
    ids=["lists", "objects", "numbers", "objects with members"],
)
def test_a_megabyte_of_small_values_takes_less_than_a_second(value: str) -> None:
    headers, body = calling(f"[{value}]")
    begun = time.process_time()
    given = ask(DEFAULT, (headers, body))
    assert time.process_time() - begun < 1
    assert given.status == (400 if '"a"' in value else 200)


@pytest.mark.parametrize("value", ["[],", "{},", "1.5,", '{"a":0},'])
def test_the_largest_body_is_checked_within_a_second(value: str) -> None:
    body = f"[{value * (4 * 1024 * 1024 // len(value) - 1)}1]".encode()
    begun = time.process_time()
    assert decode(body) is not UNPARSABLE
    assert time.process_time() - begun < 1


def test_the_collector_goes_on_after_each_body() -> None:
    for body in (b"{}", b"{"):
        decode(body)
        assert gc.isenabled()
    gc.disable()
    try:
        decode(b"{}")
        assert not gc.isenabled()
    finally:
        gc.enable()


# What the fuzzer found


@every_shape
def test_listening_where_only_json_is_accepted_is_told_what_to_send(shape: Shape) -> None:
    headers, body = modern("subscriptions/listen", id="a", notifications={"toolsListChanged": True})
    handler = create_mcp_handler(make_server, response_mode="json")
    refused = ask(handler, ({**headers, "Accept": "application/json"}, body), shape)
    assert (refused.status, refused.json["id"]) == (406, "a")
    assert "text/event-stream" in refused.json["error"]["message"]


@every_shape
def test_media_type_after_a_line_feed_is_none(shape: Shape) -> None:
    refused = ask(DEFAULT, with_headers(Content_Type="\napplication/json"), shape)
    assert (refused.status, refused.json["error"]["code"]) == (400, -32600)
