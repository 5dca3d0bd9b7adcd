"""What a REST API answers in a function's place, where its template changes that.

https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-gatewayResponse-definition.html
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from sealane.local.json_values import Json, as_mapping, as_text

_HEADER: Final = "gatewayresponse.header."
_LINE_BREAK: Final = re.compile(r"[\r\n]+")
_VARIABLE: Final = re.compile(r"\$((?:context|stageVariables|method)(?:\.[A-Za-z0-9_-]+)+)")


@dataclass(frozen=True)
class GatewayResponse:
    """How one type of answer is made.

    Attributes:
        status: HTTP status, None for AWS's own.
        headers: mapping expressions by name: `'text'`, `context.…`, `stageVariables.…`, `method.request.header.…`.
        templates: bodies with `$context.…` and the like in them, by media type.
    """

    status: int | None
    headers: Mapping[str, str]
    templates: Mapping[str, str]


def gateway_responses_of(responses: Mapping[str, Json]) -> dict[str, GatewayResponse]:
    """Reads `x-amazon-apigateway-gateway-responses`, by type.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-swagger-extensions-gateway-responses.html

    Raises:
        TemplateError: it is not as it should be.
    """
    return {type: gateway_response(as_mapping(fields, type)) for type, fields in responses.items()}


def gateway_response(fields: Mapping[str, Json]) -> GatewayResponse:
    """Reads one.

    Raises:
        TemplateError: it is not as it should be.
    """
    parameters = as_mapping(fields.get("responseParameters", {}), "responseParameters")
    templates = as_mapping(fields.get("responseTemplates", {}), "responseTemplates")
    status = fields.get("statusCode")
    return GatewayResponse(
        int(as_text(status)) if status is not None else None,
        {name.removeprefix(_HEADER): as_text(value) for name, value in parameters.items() if name.startswith(_HEADER)},
        {type: as_text(text) for type, text in templates.items()},
    )


def choose(responses: Mapping[str, GatewayResponse], type: str, status: int) -> GatewayResponse | None:
    """The response of a type, else that of all 4XX or 5XX; nothing of the latter adds to the former.

    https://docs.aws.amazon.com/apigateway/latest/developerguide/supported-gateway-response-types.html
    """
    return responses.get(type) or responses.get("DEFAULT_4XX" if status < 500 else "DEFAULT_5XX")


def render(response: GatewayResponse, own: Response, message: str | None, variable: Callable[[str], Json]) -> Response:
    """The answer.

    A template is no Velocity, its variables are only filled in:
    https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-gatewayResponse-definition.html

    Guesses, for which no source was found: without a template the body is AWS's own; without one for JSON the first
    one is used, whatever the request accepts; what has no value is empty in a body, and as a header left out.

    Args:
        response: what the template says.
        own: what AWS answers without it.
        message: AWS's own error text.
        variable: gives the value of `context.…`, `stageVariables.…` or `method.request.…`, None without one.
    """

    def filled(match: re.Match[str]) -> str:
        name = match[1]
        if name == "context.error.messageString":
            return json.dumps(message)
        if name == "context.error.message":
            return message or ""
        return _text(variable(name))

    status = response.status or own.status_code
    if response.templates:
        media_type = "application/json" if "application/json" in response.templates else next(iter(response.templates))
        body = _VARIABLE.sub(filled, response.templates[media_type])
        made = Response(body, status, headers={"content-type": media_type})
    else:
        made = Response(bytes(own.body), status, headers={"content-type": own.headers["content-type"]})
    for name, expression in response.headers.items():
        if expression.startswith("'"):
            made.headers[name] = expression.removeprefix("'").removesuffix("'")
        elif (value := variable(expression)) is not None:
            made.headers[name] = _LINE_BREAK.sub(" ", _text(value)).encode().decode("latin-1")
    return made


def _text(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
