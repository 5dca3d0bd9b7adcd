"""A REST API of Amazon API Gateway: payload 1.0, Lambda proxy integrations.

The API is served at the root, not under its stage. Differences from AWS: a request body that is neither UTF-8 nor of
a binary media type arrives base64-encoded (AWS damages it), and a throttled function is answered 429 (AWS: 500,
https://repost.aws/questions/QUL-z6rJbmR4meafB7MzYXxw).

What is said here to be recorded from AWS is in
https://github.com/localstack/localstack/blob/main/tests/aws/services/apigateway/test_apigateway_lambda.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from starlette.requests import Request
from starlette.responses import Response

from sealane.local.api_gateway import (
    BODY_LIMIT,
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
    http_response,
    kind_of,
    message,
    path_parameters,
    query_parameters,
    raw_path,
    request_time,
    source_ip,
    status_code,
)
from sealane.local.authorizers import LambdaAuthorizers, Verdict, flat_context, identity_of, source_value
from sealane.local.gateway_responses import choose, render
from sealane.local.json_values import Json
from sealane.local.records import Record
from sealane.local.security import Authorizer, LambdaAuthorizer
from sealane.local.template import ACCOUNT_ID, REGION, Api

_DEPLOYMENT_ID: Final = "local"
_RESOURCE_ID: Final = "local"
_AUTHORIZER_TIMEOUT: Final = 29
"""Seconds that the API waits for an authorizer: no source found, taken from what it waits for a function.

A shorter time-out of the route's does not count: seen in https://zenn.dev/mn87/articles/8ffc61d9f585a6.
"""
_ANSWER_KEYS: Final = {"statusCode", "headers", "multiValueHeaders", "body", "isBase64Encoded"}


class RestApi(ApiGateway):
    """A REST API as an ASGI application.

    Its own answers are those of
    https://docs.aws.amazon.com/apigateway/latest/developerguide/supported-gateway-response-types.html, and
    - a body beyond the gateway's or Lambda's limit: both seen in https://github.com/koki-develop/lgtm-generator/issues/10
    - headers beyond the limit: 431 seen in
      https://backbencher.dev/solved-431-status-code-with-request-header-fields-too-large; its body: no source found
    - a function that fails, exceeds its own time-out or gives a malformed answer: 502, not 504; documented in
      https://repost.aws/knowledge-center/malformed-502-api-gateway, time-out seen in
      https://rasp.hateblo.jp/entry/2021/05/13/222835
    - a caller who is denied (`Message`, not `message`), and an authorizer that fails or is too slow:
      https://dev.to/marcogrcr/api-gateway-lambda-authorizer-lambda-proxy-integration-failure-modes-52bc
    - a request that has to be signed and is not: https://repost.aws/knowledge-center/api-gateway-authentication-token-errors;
      that lacks an API key: https://repost.aws/knowledge-center/api-gateway-troubleshoot-403-forbidden, its text seen
      in https://stackoverflow.com/questions/39061041
    """

    own_answers: ClassVar = {
        Failure.NO_ROUTE: message(403, "Missing Authentication Token"),
        Failure.HEADERS_TOO_LONG: message(431, "Request Header Fields Too Large"),
        Failure.BODY_TOO_LONG: OwnAnswer(413, f"HTTP content length exceeded {BODY_LIMIT} bytes."),
        Failure.EVENT_TOO_LONG: message(413, "Request Too Long"),
        Failure.TIMEOUT: message(504, "Endpoint request timed out"),
        Failure.THROTTLED: message(429, "Too Many Requests"),
        Failure.FUNCTION: message(502, "Internal server error"),
        Failure.UNAUTHORIZED: message(401, "Unauthorized"),
        Failure.NO_SIGNATURE: message(403, "Missing Authentication Token"),
        Failure.NO_API_KEY: message(403, "Forbidden"),
        Failure.DENIED: OwnAnswer(403, {"Message": "User is not authorized to access this resource"}),
        Failure.DENIED_EXPLICITLY: OwnAnswer(
            403, {"Message": "User is not authorized to access this resource with an explicit deny"}
        ),
        Failure.AUTHORIZER: OwnAnswer(500, {"message": None}),
        Failure.AUTHORIZER_TIMEOUT: OwnAnswer(500, {"message": None}),
    }
    response_types: ClassVar[Mapping[Failure, str]] = {
        Failure.NO_ROUTE: "MISSING_AUTHENTICATION_TOKEN",
        Failure.BODY_TOO_LONG: "REQUEST_TOO_LARGE",
        Failure.EVENT_TOO_LONG: "REQUEST_TOO_LARGE",
        Failure.TIMEOUT: "INTEGRATION_TIMEOUT",
        Failure.THROTTLED: "THROTTLED",
        Failure.FUNCTION: "INTEGRATION_FAILURE",
        Failure.UNAUTHORIZED: "UNAUTHORIZED",
        Failure.NO_SIGNATURE: "MISSING_AUTHENTICATION_TOKEN",
        Failure.NO_API_KEY: "INVALID_API_KEY",
        Failure.DENIED: "ACCESS_DENIED",
        Failure.DENIED_EXPLICITLY: "ACCESS_DENIED",
        Failure.AUTHORIZER: "AUTHORIZER_CONFIGURATION_ERROR",
        Failure.AUTHORIZER_TIMEOUT: "AUTHORIZER_FAILURE",
    }
    """Types of its own answers; what is missing has none but DEFAULT_4XX and DEFAULT_5XX.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/supported-gateway-response-types.html
    - an authorizer that fails: seen in https://newbedev.com/api-gateway-custom-authorizer-control-error-message-and-code;
      that page of AWS has this type for one that cannot be reached
    - an authorizer that is too slow: no source found
    - a function whose answer cannot be used: seen in https://github.com/DataBiosphere/azul/issues/7470, where the
      template of INTEGRATION_FAILURE answers it, with the status 502 (that page says 504); that it is the same for one
      that is killed: no source found
    - headers beyond the limit (431): that page has no type with such a status, what AWS does then: no source found
    """

    def __init__(self, api: Api, invoke: Invoke, stream: Stream, observe: Callable[[Record], None]) -> None:
        super().__init__(api, invoke, stream, observe)
        self._authorizers = LambdaAuthorizers(invoke, _AUTHORIZER_TIMEOUT, rest=True)

    def match(self, request: Request) -> Match | None:
        """The most precise path that fits, if it has the method: other paths are not tried then."""
        found: Match | None = None
        for route in by_precision(self.api.routes):
            if found is not None and route.path != found.route.path:
                continue
            parameters = path_parameters(route.path, raw_path(request))
            if parameters is None:
                continue
            found = Match(route, parameters)
            if request.method in route.methods:
                return found
        return None

    def event(self, request: Request, body: bytes, match: Match, request_id: str, trace_id: str) -> dict[str, Json]:
        """The event of a Lambda proxy integration.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

        The path keeps its percent signs, as recorded from AWS in LocalStack's test_lambda_aws_proxy_integration.
        """
        headers, query, path = (
            event_headers(request, trace_id, {"content-length"}),
            query_parameters(request),
            raw_path(request),
        )
        text, is_base64 = event_body(body, binary=self._is_binary(request.headers.get("content-type", "")))
        time_text, time_epoch = request_time()
        return {
            "resource": match.route.path,
            "path": path,
            "httpMethod": request.method,
            "headers": {name: values[-1] for name, values in headers.items()},
            "multiValueHeaders": {name: list(values) for name, values in headers.items()},
            "queryStringParameters": {name: values[-1] for name, values in query.items()} or None,
            "multiValueQueryStringParameters": {name: list(values) for name, values in query.items()} or None,
            "pathParameters": dict(match.parameters) or None,
            "stageVariables": None,
            "requestContext": {
                **context_v1(request, request_id),
                "apiId": self.api.name,
                "deploymentId": _DEPLOYMENT_ID,
                "extendedRequestId": extended_request_id(request_id),
                "path": f"/{self.api.stage}{path}",
                "requestTime": time_text,
                "requestTimeEpoch": time_epoch,
                "resourceId": _RESOURCE_ID,
                "resourcePath": match.route.path,
                "stage": self.api.stage,
            },
            "body": text,
            "isBase64Encoded": is_base64,
        }

    async def authorize(
        self, authorizer: Authorizer, request: Request, match: Match, request_id: str, trace_id: str
    ) -> Json:
        """What the function is told of the caller: the authorizer's context and principal.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-lambda-authorizer-input.html

        The path in the ARN is the request's, not the route's: https://github.com/dherault/serverless-offline/issues/273
        saw it. That it keeps its percent signs: no source found.
        """
        if not isinstance(authorizer, LambdaAuthorizer):
            return await super().authorize(authorizer, request, match, request_id, trace_id)
        fields = self.event(request, b"", match, request_id, trace_id)
        identity = identity_of(authorizer, request, fields["requestContext"])
        if identity is None:
            raise Refused(Failure.UNAUTHORIZED, f"no identity for {authorizer.name}")
        arn = method_arn(self.api, request.method, raw_path(request))
        if authorizer.token:
            fields = {"type": "TOKEN", "methodArn": arn, "authorizationToken": identity[0]}
        else:
            fields = {"type": "REQUEST", "methodArn": arn, **request_fields(fields)}
        verdict, latency = await self._authorizers.ask(authorizer, identity, fields, trace_id)
        return admitted(verdict, arn, {**flat_context(verdict), "integrationLatency": latency})

    def refusal(self, refused: Refused, request: Request, request_id: str) -> Response:
        """Its own answer as the template's gateway responses have it.

        An authorizer's context is there for the answer to who is denied:
        https://stackoverflow.com/questions/47921803
        """
        own = super().refusal(refused, request, request_id)
        type = self.response_types.get(refused.failure, "")
        response = choose(self.api.gateway_responses, type, own.status_code)
        if response is None:
            return own
        path, (time_text, time_epoch) = raw_path(request), request_time()
        context: dict[str, Json] = {
            **context_v1(request, request_id),
            "apiId": self.api.name,
            "authorizer": refused.authorizer,
            "error": {"responseType": type or ("DEFAULT_4XX" if own.status_code < 500 else "DEFAULT_5XX")},
            "extendedRequestId": extended_request_id(request_id),
            "path": f"/{self.api.stage}{path}",
            "requestTime": time_text,
            "requestTimeEpoch": time_epoch,
            "stage": self.api.stage,
        }
        return render(
            response,
            own,
            self.own_answers[refused.failure].message,
            lambda expression: source_value(expression, request, context),
        )

    def response(self, answer: bytes, request: Request, match: Match) -> Response:
        """The response of a Lambda proxy integration.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html

        No field is needed: the status is 200 and the type `application/json` where the answer names none, even when
        it has no body; a field that is not known is an error. Recorded from AWS in LocalStack's
        test_lambda_aws_proxy_response_format and test_aws_proxy_response_payload_format_validation.

        A base64 body is decoded only where the API has a binary media type that fits the request's Accept header:
        https://docs.aws.amazon.com/apigateway/latest/developerguide/lambda-proxy-binary-media.html
        """
        fields = answer_json(answer)
        if not isinstance(fields, dict):
            raise MalformedAnswer(f"it must be an object, not {kind_of(fields)}")
        if unknown := fields.keys() - _ANSWER_KEYS:
            raise MalformedAnswer(f"it cannot have {', '.join(sorted(unknown))}")
        accept = request.headers.get("accept", "*/*").split(",")[0]
        return http_response(
            status_code(fields.get("statusCode", 200)),
            answer_body(fields.get("body"), is_base64=bool(fields.get("isBase64Encoded")) and self._is_binary(accept)),
            answer_headers(fields.get("headers"), fields.get("multiValueHeaders")),
            "application/json",
        )

    def header_size(self, headers: Iterable[tuple[bytes, bytes]]) -> int:
        """Names, line ends and spaces count too.

        https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-execution-service-limits-table.html
        """
        return sum(len(name) + len(": ") + len(value) + len("\r\n") for name, value in headers)

    def id_headers(self, request_id: str) -> dict[str, str]:
        """A REST API sends both of its ids."""
        return {"x-amzn-RequestId": request_id, "x-amz-apigw-id": extended_request_id(request_id)}

    def _is_binary(self, media_type: str) -> bool:
        wanted = media_type.partition(";")[0].strip().lower()
        return not self.api.binary_media_types.isdisjoint({"*/*", wanted, f"{wanted.partition('/')[0]}/*"})


def method_arn(api: Api, method: str, path: str) -> str:
    """ARN of a request, for policies.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/arn-format-reference.html
    """
    return f"arn:aws:execute-api:{REGION}:{ACCOUNT_ID}:{api.name}/{api.stage}/{method}/{path.removeprefix('/')}"


def request_fields(event: Mapping[str, Json]) -> dict[str, Json]:
    """What an authorizer gets of a function's event of payload 1.0. Empty maps are empty, not null.

    https://github.com/aws-powertools/powertools-lambda-typescript/issues/2624 has such an event of a REST API, its file
    is packages/parser/tests/events/apigw-rest/authorizer-request.json; for HTTP APIs no source found.
    """
    maps = ("queryStringParameters", "multiValueQueryStringParameters", "pathParameters", "stageVariables")
    kept = {name: value for name, value in event.items() if name not in ("body", "isBase64Encoded")}
    return {**kept, **{name: kept[name] or {} for name in maps}}


def admitted(verdict: Verdict, arn: str, caller: Json) -> Json:
    """What the function is told of the caller.

    Raises:
        Refused: the verdict does not allow the request.
    """
    failure = verdict.failure(arn)
    if failure is not None:
        raise Refused(failure, f"its policy does not allow {arn}", authorizer=caller)
    return caller


def context_v1(request: Request, request_id: str) -> dict[str, Json]:
    """What `requestContext` of payload 1.0 has in common for REST and HTTP APIs."""
    return {
        "accountId": ACCOUNT_ID,
        "domainName": "localhost",
        "domainPrefix": "localhost",
        "httpMethod": request.method,
        "identity": {
            "accessKey": None,
            "accountId": None,
            "caller": None,
            "cognitoAuthenticationProvider": None,
            "cognitoAuthenticationType": None,
            "cognitoIdentityId": None,
            "cognitoIdentityPoolId": None,
            "principalOrgId": None,
            "sourceIp": source_ip(request),
            "user": None,
            "userAgent": request.headers.get("user-agent"),
            "userArn": None,
        },
        "protocol": f"HTTP/{request.scope['http_version']}",
        "requestId": request_id,
    }
