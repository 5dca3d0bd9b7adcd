"""An HTTP API of Amazon API Gateway (payload 2.0 or 1.0) and a Lambda function URL (payload 2.0).

An HTTP API is served under its stage, as on AWS, unless that is `$default`. Difference from AWS: a throttled function
is answered 429 by an HTTP API too (what AWS answers: no source found).
"""

import json
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from sealane.local.api_gateway import (
    EVENT_LIMIT,
    ApiGateway,
    Failure,
    Invoke,
    MalformedAnswer,
    Match,
    OwnAnswer,
    Refused,
    Stream,
    answer_body,
    answer_headers,
    answer_json,
    by_precision,
    event_body,
    event_headers,
    extended_request_id,
    grouped,
    http_response,
    kind_of,
    message,
    path_parameters,
    query_parameters,
    raw_path,
    raw_query,
    request_time,
    source_ip,
    status_code,
)
from sealane.local.authorizers import LambdaAuthorizers, flat_context, identity_of, source_value
from sealane.local.json_values import Json
from sealane.local.records import Record
from sealane.local.rest_api import admitted, context_v1, method_arn, request_fields
from sealane.local.security import Authorizer, JwtAuthorizer, LambdaAuthorizer
from sealane.local.template import ACCOUNT_ID, DEFAULT, Api

if TYPE_CHECKING:
    from sealane.local.jwt_authorizer import JwtAuthorizers

_AUTHORIZER_TIMEOUT: Final = 10
"""Seconds that the API waits for an authorizer.

https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-quotas.html
"""
_TEXT_TYPES: Final = ("application/javascript", "application/json", "application/xml")


class _PayloadV2(ApiGateway):
    """Events and answers of payload format 2.0.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
    """

    explicit_content_type: ClassVar[str]
    """Type of an answer with a `statusCode` and a body, but without a type."""

    def event_v2(
        self, request: Request, body: bytes, match: Match, path: str, request_id: str, trace_id: str
    ) -> dict[str, Json]:
        """The event, with the fields of `requestContext` that all senders have. What is empty is left out."""
        headers = grouped(
            (name.lower(), value)
            for name, values in event_headers(request, trace_id, {"cookie"}).items()
            for value in values
        )
        cookies = [each.strip() for value in request.headers.getlist("cookie") for each in value.split(";")]
        text, is_base64 = event_body(body, binary=not is_text(request.headers.get("content-type", "")))
        time_text, time_epoch = request_time()
        event: dict[str, Json] = {
            "version": "2.0",
            "routeKey": match.route.key,
            "rawPath": path,
            "rawQueryString": raw_query(request),
            "cookies": list(cookies),
            "headers": {name: ",".join(values) for name, values in headers.items()},
            "queryStringParameters": {name: ",".join(values) for name, values in query_parameters(request).items()},
            "requestContext": {
                "accountId": ACCOUNT_ID,
                "apiId": self.api.name,
                "domainName": "localhost",
                "domainPrefix": "localhost",
                "http": {
                    "method": request.method,
                    "path": path,
                    "protocol": f"HTTP/{request.scope['http_version']}",
                    "sourceIp": source_ip(request),
                    "userAgent": request.headers.get("user-agent", ""),
                },
                "requestId": request_id,
                "routeKey": match.route.key,
                "stage": self.api.stage,
                "time": time_text,
                "timeEpoch": time_epoch,
            },
            "pathParameters": dict(match.parameters),
            "body": text,
        }
        return {**{name: value for name, value in event.items() if value or value == ""}, "isBase64Encoded": is_base64}

    def response_v2(self, answer: bytes) -> Response:
        """The response: JSON without a `statusCode` is the body, a string without its quotes.

        Other JSON is written without spaces: for function URLs as recorded from AWS in LocalStack's TestLambdaURL, for
        HTTP APIs no source found. An answer with a `statusCode`, no body and no type is left untyped: no source found.
        """
        fields = answer_json(answer)
        if not isinstance(fields, dict) or "statusCode" not in fields:
            text = fields if isinstance(fields, str) else json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
            return http_response(200, text.encode(), (), "application/json")
        cookies = fields.get("cookies") or []
        if not isinstance(cookies, list):
            raise MalformedAnswer(f"cookies must be a list, not {kind_of(cookies)}")
        return http_response(
            status_code(fields["statusCode"]),
            answer_body(fields.get("body"), is_base64=fields.get("isBase64Encoded") is True),
            answer_headers(fields.get("headers"), {"set-cookie": cookies}),
            self.explicit_content_type if fields.get("body") else None,
        )


class HttpApi(_PayloadV2):
    """An HTTP API as an ASGI application.

    Its own answers:
    - no route: https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-routes.html
    - a function that fails, exceeds its own time-out or gives a malformed answer: 500,
      https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-troubleshooting-lambda.html; time-out seen
      in https://github.com/denoland/deno_registry2/issues/87
    - no answer in time: 503, not 504; seen in https://github.com/cortexlabs/cortex/issues/1225 and
      https://github.com/serverless/serverless/issues/11222
    - headers beyond the limit: 431 seen in
      https://backbencher.dev/solved-431-status-code-with-request-header-fields-too-large; its body: no source found
    - a body beyond the gateway's or Lambda's limit: no source found
    - a caller without an identity (401), and an authorizer that cannot be called or whose answer is none (500):
      https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-lambda-authorizer.html
    - a token without the scopes: `Forbidden` observed by https://github.com/KensioSoftware/yulin/issues/302; that who
      is denied by a Lambda authorizer or has not signed reads the same, and that an authorizer too slow is a 500: no
      source found
    """

    explicit_content_type: ClassVar = "text/plain; charset=utf-8"
    """Seen in https://aasisodiya.github.io/nodejs/nodejs-aws/nodejs-aws-apigw"""
    own_answers: ClassVar = {
        Failure.NO_ROUTE: message(404, "Not Found"),
        Failure.HEADERS_TOO_LONG: message(431, "Request Header Fields Too Large"),
        Failure.BODY_TOO_LONG: message(413, "Request Entity Too Large"),
        Failure.EVENT_TOO_LONG: message(413, "Request Entity Too Large"),
        Failure.TIMEOUT: message(503, "Service Unavailable"),
        Failure.THROTTLED: message(429, "Too Many Requests"),
        Failure.FUNCTION: message(500, "Internal Server Error"),
        Failure.UNAUTHORIZED: message(401, "Unauthorized"),
        Failure.NO_SIGNATURE: message(403, "Forbidden"),
        Failure.NO_API_KEY: message(403, "Forbidden"),
        Failure.DENIED: message(403, "Forbidden"),
        Failure.DENIED_EXPLICITLY: message(403, "Forbidden"),
        Failure.AUTHORIZER: message(500, "Internal Server Error"),
        Failure.AUTHORIZER_TIMEOUT: message(500, "Internal Server Error"),
    }

    def __init__(self, api: Api, invoke: Invoke, stream: Stream, observe: Callable[[Record], None]) -> None:
        super().__init__(api, invoke, stream, observe)
        self._authorizers = LambdaAuthorizers(invoke, _AUTHORIZER_TIMEOUT, rest=False)
        self._tokens: JwtAuthorizers | None = None

    def request_size(self, request: Request) -> int:
        """The request line counts too.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-quotas.html
        """
        line = f"{request.method} {raw_path(request)}?{raw_query(request)} HTTP/{request.scope['http_version']}"
        return len(line) + super().request_size(request)

    def new_request_id(self) -> str:
        """HTTP APIs have ids of API Gateway's own form only."""
        return extended_request_id(str(uuid.uuid4()))

    def id_headers(self, request_id: str) -> dict[str, str]:
        """HTTP APIs have a header of their own for it."""
        return {"apigw-requestid": request_id}

    def match(self, request: Request) -> Match | None:
        """The most precise route with the method, else `$default`; outside the stage there is none.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-routes.html
        """
        path, prefix = self._path(request), self.api.base_path
        if not f"{path}/".startswith(f"{prefix}/"):
            return None
        path = path.removeprefix(prefix) or "/"
        default: Match | None = None
        for route in by_precision(self.api.routes):
            if route.path == DEFAULT:
                default = Match(route, {})
                continue
            parameters = path_parameters(route.path, path)
            if parameters is not None and (route.any_method or request.method in route.methods):
                return Match(route, parameters)
        return default

    def event(self, request: Request, body: bytes, match: Match, request_id: str, trace_id: str) -> dict[str, Json]:
        """The event in the integration's payload format; a named stage is in its path, and the path is decoded.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-routes.html
        """
        if match.route.payload == "1.0":
            return self._event_v1(request, body, match, request_id, trace_id)
        return self.event_v2(request, body, match, self._path(request), request_id, trace_id)

    async def authorize(
        self, authorizer: Authorizer, request: Request, match: Match, request_id: str, trace_id: str
    ) -> Json:
        """What the function is told of the caller, under `jwt` or `lambda` in payload 2.0.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
        https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-lambda-authorizer.html#http-api-lambda-authorizer.payload-format

        Without a context `lambda` is null: https://github.com/aws-powertools/powertools-lambda-typescript/issues/2624
        has such an event, its file is packages/parser/tests/events/apigw-http/lambda-authorizer-auth.json. That the
        principal is not under `lambda`: no source found.
        """
        v2 = match.route.payload != "1.0"
        if isinstance(authorizer, JwtAuthorizer):
            context = self.event_v2(request, b"", match, self._path(request), request_id, trace_id)["requestContext"]
            token = source_value(authorizer.source, request, context)
            caller: Json = await self._verify(authorizer, token, match.route.scopes)
            return {"jwt": caller} if v2 else caller
        if not isinstance(authorizer, LambdaAuthorizer):
            return await super().authorize(authorizer, request, match, request_id, trace_id)
        return await self._ask(authorizer, request, match, request_id, trace_id)

    async def _verify(self, authorizer: JwtAuthorizer, token: str | None, scopes: tuple[str, ...]) -> Json:
        # Imported when it is needed: it takes a tenth of a second.
        from sealane.local.jwt_authorizer import JwtAuthorizers

        if self._tokens is None:
            self._tokens = JwtAuthorizers()
        caller: Json = await self._tokens.verify(authorizer, token, scopes)
        return caller

    async def _ask(
        self, authorizer: LambdaAuthorizer, request: Request, match: Match, request_id: str, trace_id: str
    ) -> Json:
        path = self._path(request)
        arn = method_arn(self.api, request.method, path.removeprefix(self.api.base_path))
        fields = self.event_v2(request, b"", match, path, request_id, trace_id)
        identity = identity_of(authorizer, request, fields["requestContext"])
        if identity is None:
            raise Refused(Failure.UNAUTHORIZED, f"no identity for {authorizer.name}")
        if authorizer.payload == "1.0":
            joined = ",".join(identity)
            own: Mapping[str, Json] = {"methodArn": arn, "identitySource": joined, "authorizationToken": joined}
            fields = request_fields(self._event_v1(request, b"", match, request_id, trace_id))
        else:
            own = {"routeArn": arn, "identitySource": list(identity) or None}
            fields = {name: value for name, value in fields.items() if name not in ("body", "isBase64Encoded")}
        event = {"version": authorizer.payload, "type": "REQUEST", **own, **fields}
        verdict, latency = await self._authorizers.ask(authorizer, identity, event, trace_id)
        if match.route.payload == "1.0":
            return admitted(verdict, arn, {**flat_context(verdict), "integrationLatency": latency})
        return admitted(verdict, arn, {"lambda": dict(verdict.context) or None})

    def response(self, answer: bytes, request: Request, match: Match) -> Response:
        """The response in the integration's payload format; base64 is always decoded.

        Payload 1.0 needs a `statusCode` and reads `multiValueHeaders`; that fields which are not known do no harm is
        an assumption, no source found.
        """
        if match.route.payload != "1.0":
            return self.response_v2(answer)
        fields = answer_json(answer)
        if not isinstance(fields, dict) or "statusCode" not in fields:
            raise MalformedAnswer("it must be an object with a statusCode")
        return http_response(
            status_code(fields["statusCode"]),
            answer_body(fields.get("body"), is_base64=fields.get("isBase64Encoded") is True),
            answer_headers(fields.get("headers"), fields.get("multiValueHeaders")),
            self.explicit_content_type if fields.get("body") else None,
        )

    @staticmethod
    def _path(request: Request) -> str:
        return unquote(raw_path(request))

    def _event_v1(self, request: Request, body: bytes, match: Match, request_id: str, trace_id: str) -> dict[str, Json]:
        """Header names are as the client wrote them, whatever AWS's page says: logged events show it."""
        headers, query, path = event_headers(request, trace_id), query_parameters(request), self._path(request)
        text, is_base64 = event_body(body, binary=not is_text(request.headers.get("content-type", "")))
        time_text, time_epoch = request_time()
        return {
            "version": "1.0",
            "resource": match.route.path,
            "path": path,
            "httpMethod": request.method,
            "headers": {name: values[-1] for name, values in headers.items()},
            "multiValueHeaders": {name: list(values) for name, values in headers.items()},
            "queryStringParameters": {name: values[-1] for name, values in query.items()} or None,
            "multiValueQueryStringParameters": {name: list(values) for name, values in query.items()} or None,
            "requestContext": {
                **context_v1(request, request_id),
                "apiId": self.api.name,
                "extendedRequestId": request_id,
                "path": path,
                "requestTime": time_text,
                "requestTimeEpoch": time_epoch,
                "resourceId": match.route.key,
                "resourcePath": match.route.path,
                "stage": self.api.stage,
            },
            "pathParameters": dict(match.parameters) or None,
            "stageVariables": None,
            "body": text,
            "isBase64Encoded": is_base64,
        }


class FunctionUrl(_PayloadV2):
    """A Lambda function URL as an ASGI application. Every path and method is the function's.

    https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html

    What is said here to be recorded from AWS is in
    https://github.com/localstack/localstack/blob/main/tests/aws/services/lambda_/test_lambda.py.

    Its own answers:
    - a function that fails: 502 `Internal Server Error`, recorded from AWS in LocalStack's
      test_lambda_url_invocation_exception; that a time-out and a malformed answer look the same: no source found
    - throttled: https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html; the body: no source found
    - not signed where it has to be: 403 seen in https://zirkelc.dev/posts/aws-lambda-function-url-iam-cloudfront; its
      body: no source found; https://github.com/awsdocs/aws-lambda-developer-guide/issues/494 has a longer one, of an
      open function URL that lacks a permission
    - over Lambda's limit: 413 seen in https://github.com/ducktors/turborepo-remote-cache/issues/677; its body is the
      message of Lambda's Invoke API, whether a function URL sends it: no source found
    """

    explicit_content_type: ClassVar = "application/json"
    """Recorded from AWS in LocalStack's TestLambdaURL."""
    body_limit: ClassVar[int] = EVENT_LIMIT
    header_limit: ClassVar[int | None] = None
    _too_long: ClassVar = OwnAnswer(
        413, {"Message": f"Request must be smaller than {EVENT_LIMIT} bytes for the InvokeFunction operation"}
    )
    own_answers: ClassVar = {
        Failure.BODY_TOO_LONG: _too_long,
        Failure.EVENT_TOO_LONG: _too_long,
        Failure.THROTTLED: OwnAnswer(429, {"Message": "Rate Exceeded."}),
        Failure.FUNCTION: OwnAnswer(502, "Internal Server Error"),
        Failure.NO_SIGNATURE: OwnAnswer(403, {"Message": "Forbidden"}),
    }

    def match(self, request: Request) -> Match:
        """The only route."""
        return Match(self.api.routes[0], {})

    def event(self, request: Request, body: bytes, match: Match, request_id: str, trace_id: str) -> dict[str, Json]:
        """The event, without a caller: the path keeps its percent signs, as recorded from AWS by LocalStack."""
        event = self.event_v2(request, body, match, raw_path(request), request_id, trace_id)
        context = event["requestContext"]
        if isinstance(context, dict):
            context.update({"accountId": "anonymous", "authentication": None, "authorizer": None})
        return event

    def response(self, answer: bytes, request: Request, match: Match) -> Response:
        """The response; see `response_v2`."""
        return self.response_v2(answer)


def is_text(content_type: str) -> bool:
    """Whether a body of this type is text in an event of an HTTP API or a function URL; all else is base64.

    AWS says `text/*` and `application/json` of function URLs, on a slide
    (https://speakerdeck.com/player/bf528d4f49d948b1b89ba21f3e262629); a list for HTTP APIs: no source found.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(("+json", "+xml"))
