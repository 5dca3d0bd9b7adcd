"""A SAM template as CloudFormation would get it: translated by AWS's own translator, with its values filled in."""

import logging
import math
import re
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import yaml
from samtranslator.parser.parser import Parser  # type: ignore[import-untyped]
from samtranslator.public.exceptions import InvalidDocumentException  # type: ignore[import-untyped]
from samtranslator.translator.translator import Translator  # type: ignore[import-untyped]

from sealane.local.errors import TemplateError
from sealane.local.gateway_responses import GatewayResponse, gateway_response, gateway_responses_of
from sealane.local.json_values import Json, as_mapping, as_text, as_texts
from sealane.local.security import Authorizer, Nobody, authorization_of, authorizers_of

REGION = "us-east-1"
ACCOUNT_ID = "123456789012"

logging.getLogger("samtranslator").addHandler(logging.NullHandler())

_SAM = "AWS::Serverless-2016-10-31"
# Of its extensions only parameters in deletion policies are known here, which mean nothing on this machine.
_LANGUAGE_EXTENSIONS = "AWS::LanguageExtensions"
_PSEUDO_PARAMETERS: dict[str, Json] = {
    "AWS::AccountId": ACCOUNT_ID,
    "AWS::NoValue": None,
    "AWS::NotificationARNs": [],
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT_ID}:stack/local/00000000-0000-0000-0000-000000000000",
    "AWS::StackName": "local",
    "AWS::URLSuffix": "amazonaws.com",
}
_NAME_PROPERTIES = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::IAM::Role": "RoleName",
    "AWS::KMS::Alias": "AliasName",
    "AWS::Lambda::Function": "FunctionName",
    "AWS::Lambda::LayerVersion": "LayerName",
    "AWS::Logs::LogGroup": "LogGroupName",
}
_ARNS = {
    "AWS::DynamoDB::Table": "arn:aws:dynamodb:{region}:{account}:table/{name}",
    "AWS::IAM::Role": "arn:aws:iam::{account}:role/{name}",
    "AWS::KMS::Key": "arn:aws:kms:{region}:{account}:key/{name}",
    "AWS::Lambda::Alias": "arn:aws:lambda:{region}:{account}:function:{name}",
    "AWS::Lambda::Function": "arn:aws:lambda:{region}:{account}:function:{name}",
    "AWS::Lambda::LayerVersion": "arn:aws:lambda:{region}:{account}:layer:{name}:1",
    "AWS::Logs::LogGroup": "arn:aws:logs:{region}:{account}:log-group:{name}:*",
}
_EMULATED = {
    *_ARNS,
    "AWS::ApiGateway::Deployment",
    "AWS::ApiGateway::GatewayResponse",
    "AWS::ApiGateway::RestApi",
    "AWS::ApiGateway::Stage",
    "AWS::ApiGatewayV2::Api",
    "AWS::ApiGatewayV2::Stage",
    "AWS::KMS::Alias",
    "AWS::Lambda::Permission",
    "AWS::Lambda::Url",
    # Of a function there is one version here, which is what its aliases name.
    "AWS::Lambda::Version",
}
# What nobody who sends a request can see on this machine: who may do what, what is watched, deployments, and names.
_WITHOUT_EFFECT = (
    "AWS::ApiGateway::BasePathMapping",
    "AWS::ApiGateway::DomainName",
    "AWS::CloudWatch::",
    "AWS::CodeDeploy::",
    "AWS::IAM::",
    "AWS::Logs::",
    "AWS::Route53::",
)
# What nobody who calls a table or a key can see on this machine, where there is no IAM either.
_TABLE_WITHOUT_EFFECT = {
    "ContributorInsightsSpecification",
    "DeletionProtectionEnabled",
    "OnDemandThroughput",
    "PointInTimeRecoverySpecification",
    "SSESpecification",
    "TableClass",
    "Tags",
    "WarmThroughput",
}
_KEY_WITHOUT_EFFECT = {
    "BypassPolicyLockoutSafetyCheck",
    "EnableKeyRotation",
    "KeyPolicy",
    "PendingWindowInDays",
    "RotationPeriodInDays",
    "Tags",
}
_REF_IS_ARN = {"AWS::Lambda::Alias", "AWS::Lambda::LayerVersion"}
_LOCAL_CODE = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}
_ANY_METHOD = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
DEFAULT = "$default"
"""Name of the route that takes what no other route takes, and of the stage that is not in the path."""


@dataclass(frozen=True)
class Function:
    """One Lambda function.

    Attributes:
        name: logical id in the template.
        physical_name: `FunctionName`, or the logical id where the template gives none.
        arn: ARN that the function sees in its context.
        handler: `module.function`.
        code_dir: folder that is the task root.
        layer_dirs: folders of the layers' Python code, in the template's order.
        variables: the template's environment variables.
        timeout: seconds.
        memory: MiB.
        runtime: `python3.13` and the like.
        architecture: `arm64` or `x86_64`.
        log_group: name of the log group.
        services_url: where its environments find DynamoDB and KMS (their number follows), None when they do not.
        python: the interpreter that runs it, with what it requires.
    """

    name: str
    physical_name: str
    arn: str
    handler: str
    code_dir: Path
    layer_dirs: tuple[Path, ...]
    variables: Mapping[str, str]
    timeout: int
    memory: int
    runtime: str
    architecture: str
    log_group: str
    services_url: str | None = None
    python: str = sys.executable


@dataclass(frozen=True)
class Route:
    """One path of an API and the function behind it.

    Attributes:
        path: resource path as in the template: `/mcp`, `/users/{id}`, `/{proxy+}`, or `$default`.
        methods: HTTP methods.
        function: the function that serves them.
        timeout: seconds that the API waits for the function, infinite for a function URL.
        payload: version of the events' format, `1.0` or `2.0`.
        streams: whether the answer is passed on as it comes.
        authorizer: who says who may call it, None for everybody.
        scopes: what a token has to be good for, one of them.
    """

    path: str
    methods: tuple[str, ...]
    function: Function
    timeout: float
    payload: str = "1.0"
    streams: bool = False
    authorizer: Authorizer | None = None
    scopes: tuple[str, ...] = ()

    @property
    def any_method(self) -> bool:
        """Whether it serves every method."""
        return self.methods == _ANY_METHOD

    @property
    def key(self) -> str:
        """The route key: `ANY /mcp`, `GET /users/{id}`, `$default`."""
        return self.path if self.path == DEFAULT else f"{'ANY' if self.any_method else self.methods[0]} {self.path}"


@dataclass(frozen=True)
class Api:
    """One API, or a function URL.

    Attributes:
        kind: REST API, HTTP API or function URL.
        name: logical id in the template.
        stage: name of its stage.
        routes: what it serves.
        binary_media_types: media types whose bodies are binary, `*/*` for all; REST APIs only.
        gateway_responses: what it answers itself, by type, where the template changes that; REST APIs only.
    """

    kind: Literal["rest", "http", "url"]
    name: str
    stage: str
    routes: tuple[Route, ...]
    binary_media_types: frozenset[str] = frozenset()
    gateway_responses: Mapping[str, GatewayResponse] = field(default_factory=dict)

    @property
    def base_path(self) -> str:
        """What comes before the routes' paths: `/prod` for the named stage of an HTTP API, else nothing."""
        return f"/{self.stage}" if self.kind == "http" and self.stage != DEFAULT else ""


@dataclass(frozen=True)
class Table:
    """One DynamoDB table.

    Attributes:
        name: logical id in the template.
        physical_name: `TableName`, or the logical id where the template gives none.
        definition: arguments of CreateTable.
        ttl_attribute: name of the attribute that holds the time at which an item expires, None without one.
    """

    name: str
    physical_name: str
    definition: Mapping[str, Json]
    ttl_attribute: str | None


@dataclass(frozen=True)
class Key:
    """One KMS key.

    Attributes:
        name: logical id in the template.
        id: the key id in every value of the template; KMS gives the real one when the key is made.
        definition: arguments of CreateKey.
    """

    name: str
    id: str
    definition: Mapping[str, Json]


@dataclass(frozen=True)
class Alias:
    """Another name of a KMS key.

    Attributes:
        name: `alias/` and what follows.
        key_id: id of the key in the template's values.
    """

    name: str
    key_id: str


@dataclass(frozen=True)
class Template:
    """What a template describes, as far as this machine can run it.

    Attributes:
        functions: every Python function.
        apis: REST APIs, then HTTP APIs, then function URLs; at least one.
        not_emulated: what the template has and this machine has not, one short text each.
        tables: every DynamoDB table.
        keys: every KMS key.
        aliases: every alias of a KMS key.
    """

    functions: tuple[Function, ...]
    apis: tuple[Api, ...]
    not_emulated: tuple[str, ...] = field(default=())
    tables: tuple[Table, ...] = ()
    keys: tuple[Key, ...] = ()
    aliases: tuple[Alias, ...] = ()

    @property
    def api(self) -> Api:
        """The first API: the one with the MCP endpoint."""
        return self.apis[0]


def load_template(
    path: Path, parameters: Mapping[str, str] | None = None, code_dirs: Mapping[str, Path] | None = None
) -> Template:
    """Reads a template and everything that its functions need to run.

    A layer's folder is its `python` folder where there is one (a built layer), else the folder itself (its source).

    Args:
        path: a SAM template in YAML or JSON.
        parameters: values that replace the parameters' defaults.
        code_dirs: folders that replace the functions' `CodeUri`, by logical id.

    Raises:
        TemplateError: the template, a parameter or a folder is missing or wrong.
    """
    document = _read(path)
    values = _parameter_values(as_mapping(document.get("Parameters", {}), "Parameters"), parameters or {})
    folders = _take_local_code(document, path.parent)
    resolver = _Resolver(_translate(document, values, path), values)
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for name, resource in resolver.resources.items():
        if resource["Type"] not in _EMULATED and not str(resource["Type"]).startswith(_WITHOUT_EFFECT):
            missing[str(resource["Type"])].append(name)
    not_emulated = [f"{', '.join(names)} ({type})" for type, names in missing.items()]

    layers = {
        resolver.arn(name): _layer_dir(_folder(name, properties, folders, "Content"))
        for name, properties in resolver.of_type("AWS::Lambda::LayerVersion")
    }
    functions: list[Function] = []
    for name, properties in resolver.of_type("AWS::Lambda::Function"):
        runtime = str(properties.get("Runtime", "a container image"))
        if not runtime.startswith("python"):
            not_emulated.append(f"{name} (runs on {runtime})")
            continue
        code_dir = (code_dirs or {}).get(name) or _folder(name, properties, folders, "Code")
        if not code_dir.is_dir():
            raise TemplateError(f"the code of {name} is not at {code_dir}: see its CodeUri")
        if as_mapping(properties.get("SnapStart", {}), name).get("ApplyOn") == "PublishedVersions":
            not_emulated.append(f"SnapStart of {name}")
        wanted = as_texts(properties.get("Layers", []))
        not_emulated += [f"layer {arn} of {name}" for arn in wanted if arn not in layers]
        functions.append(
            _function(resolver, name, properties, code_dir, tuple(layers[arn] for arn in wanted if arn in layers))
        )
    if unknown := (code_dirs or {}).keys() - {function.name for function in functions}:
        raise TemplateError(f"{path} has no Python function named {sorted(unknown)[0]}")

    apis = [api for api in _apis(resolver, functions, not_emulated) if api.routes]
    if not apis:
        raise TemplateError(f"{path} has no API with a route to a Python function, and no function URL")
    tables, keys = _tables(resolver, not_emulated), _keys(resolver, not_emulated)
    aliases = _aliases(resolver, keys, not_emulated)
    return Template(
        tuple(functions),
        tuple(apis),
        tuple(not_emulated),
        tables=tables,
        keys=keys,
        aliases=aliases,
    )


class _Loader(yaml.CSafeLoader):
    """YAML with CloudFormation's short forms: `!Ref X` for `{Ref: X}`, `!Sub x` for `{"Fn::Sub": x}`."""

    def short_form(self, suffix: str, node: yaml.Node) -> Json:
        """The long form of `!suffix node`."""
        value: Json
        if isinstance(node, yaml.ScalarNode):
            value = str(self.construct_scalar(node))
        elif isinstance(node, yaml.SequenceNode):
            value = self.construct_sequence(node, deep=True)
        elif isinstance(node, yaml.MappingNode):
            value = {str(key): item for key, item in self.construct_mapping(node, deep=True).items()}
        if suffix == "GetAtt" and isinstance(value, str):
            value = list(value.split(".", 1))
        return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}

    def text(self, node: yaml.ScalarNode) -> str:
        """A scalar as it is written: a version without quotes is no date."""
        return str(self.construct_scalar(node))


_Loader.add_multi_constructor("!", _Loader.short_form)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.text)


def _read(path: Path) -> dict[str, Json]:
    try:
        document: Json = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise TemplateError(f"cannot read {path}: {error.strerror}; name the template with --template") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TemplateError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not isinstance(document.get("Resources"), dict):
        raise TemplateError(f"{path} is not a template: it has no Resources")
    if document.get("Transform") not in (_SAM, [_SAM], [_LANGUAGE_EXTENSIONS, _SAM]):
        raise TemplateError(f"{path}: Transform must be {_SAM}, which only {_LANGUAGE_EXTENSIONS} may precede")
    return document


def _parameter_values(declared: Mapping[str, Json], given: Mapping[str, str]) -> dict[str, Json]:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/parameters-section-structure.html"""
    if unknown := given.keys() - declared.keys():
        raise TemplateError(
            f"the template has no parameter {sorted(unknown)[0]}; it has {', '.join(declared) or 'none at all'}"
        )
    values: dict[str, Json] = {}
    for name, declaration in declared.items():
        rules = as_mapping(declaration, f"parameter {name}")
        if name not in given and "Default" not in rules:
            raise TemplateError(f"parameter {name} has no default: give it a value with --parameter {name}=…")
        value = as_text(given[name] if name in given else rules["Default"])
        kind = rules.get("Type")
        items = (
            [item.strip() for item in value.split(",")] if kind in ("CommaDelimitedList", "List<Number>") else [value]
        )
        for item in items:
            _check_parameter(name, item, rules, numeric=kind in ("Number", "List<Number>"))
        values[name] = list(items) if kind in ("CommaDelimitedList", "List<Number>") else value
    return values


def _check_parameter(name: str, value: str, rules: Mapping[str, Json], *, numeric: bool) -> None:
    allowed = as_texts(rules.get("AllowedValues", []))
    if allowed and value not in allowed:
        raise TemplateError(f"parameter {name} cannot be {value!r}; it can be {', '.join(allowed)}")
    pattern = rules.get("AllowedPattern")
    if isinstance(pattern, str) and not re.fullmatch(pattern, value):
        raise TemplateError(f"parameter {name} cannot be {value!r}; it must match {pattern}")
    if not numeric:
        return
    try:
        number = float(value)
    except ValueError:
        raise TemplateError(f"parameter {name} must be a number, not {value!r}") from None
    if "MinValue" in rules and number < float(as_text(rules["MinValue"])):
        raise TemplateError(f"parameter {name} cannot be below {as_text(rules['MinValue'])}")
    if "MaxValue" in rules and number > float(as_text(rules["MaxValue"])):
        raise TemplateError(f"parameter {name} cannot be above {as_text(rules['MaxValue'])}")


def _take_local_code(document: dict[str, Json], folder: Path) -> dict[str, Path]:
    """Replaces local folders, which the translator refuses, by S3 addresses, as SAM CLI does.

    Gives the folders by S3 key.
    """
    folders: dict[str, Path] = {}
    globals_ = as_mapping(document.get("Globals", {}), "Globals")
    shared_code = as_mapping(globals_.get("Function", {}), "Globals.Function").pop("CodeUri", None)
    for name, resource in as_mapping(document["Resources"], "Resources").items():
        entry = as_mapping(resource, name)
        key = _LOCAL_CODE.get(str(entry.get("Type")))
        if key is None:
            continue
        properties = as_mapping(entry.setdefault("Properties", {}), name)
        code = properties.get(key, shared_code)
        if isinstance(code, str) and not code.startswith("s3://"):
            folders[name] = folder / code
            properties[key] = f"s3://local/{name}"
    return folders


def _translate(document: dict[str, Json], values: Mapping[str, Json], path: Path) -> dict[str, Json]:
    parameters = {
        name: ",".join(as_texts(value)) if isinstance(value, list) else value for name, value in values.items()
    }
    # The translator asks its session for the region only; a real one would read the developer's AWS profile.
    translator = Translator(None, Parser(), boto_session=SimpleNamespace(region_name=REGION))
    try:
        translated: dict[str, Json] = translator.translate(document, parameters, get_managed_policy_map=dict)
    except InvalidDocumentException as error:
        reasons = "; ".join(cause.message for cause in error.causes)
        raise TemplateError(f"{path}: {' '.join(reasons.split())}") from None
    return translated


class _Resolver:
    """Fills in the values that CloudFormation would, with names and ARNs of this machine.

    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/intrinsic-function-reference.html
    """

    def __init__(self, template: Mapping[str, Json], values: Mapping[str, Json]) -> None:
        self._values = {**_PSEUDO_PARAMETERS, **values}
        self._conditions = as_mapping(template.get("Conditions", {}), "Conditions")
        self._mappings = as_mapping(template.get("Mappings", {}), "Mappings")
        self.resources = {
            name: entry
            for name, resource in as_mapping(template["Resources"], "Resources").items()
            if "Condition" not in (entry := as_mapping(resource, name)) or self._condition(entry["Condition"])
        }

    def of_type(self, type: str) -> list[tuple[str, dict[str, Json]]]:
        """Logical id and resolved properties of every resource of this type."""
        return [
            (name, as_mapping(self.resolve(resource.get("Properties", {})), name))
            for name, resource in self.resources.items()
            if resource["Type"] == type
        ]

    def name(self, logical_id: str) -> str:
        """Physical name of a resource."""
        resource = self.resources[logical_id]
        if resource["Type"] == "AWS::KMS::Key":
            return str(uuid.uuid5(uuid.NAMESPACE_OID, logical_id))
        if resource["Type"] == "AWS::Lambda::Alias":
            alias = as_mapping(resource["Properties"], logical_id)
            return f"{as_text(self.resolve(alias['FunctionName']))}:{as_text(self.resolve(alias['Name']))}"
        key = _NAME_PROPERTIES.get(str(resource["Type"]))
        name = self.resolve(as_mapping(resource.get("Properties", {}), logical_id).get(key)) if key else None
        return name if isinstance(name, str) else logical_id

    def arn(self, logical_id: str) -> str:
        """ARN of a resource."""
        type = str(self.resources[logical_id]["Type"])
        if type not in _ARNS:
            raise TemplateError(f"the ARN of {logical_id} ({type}) is not known on this machine")
        return _ARNS[type].format(region=REGION, account=ACCOUNT_ID, name=self.name(logical_id))

    def resolve(self, node: Json) -> Json:
        """The node with every intrinsic function replaced by its value; None is `AWS::NoValue` and left out."""
        if isinstance(node, list):
            return [item for item in map(self.resolve, node) if item is not None]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            [(key, argument)] = node.items()
            if key == "Ref" or key.startswith("Fn::") or (key == "Condition" and isinstance(argument, str)):
                return self._call(key, argument)
        return {key: item for key, value in node.items() if (item := self.resolve(value)) is not None}

    def _call(self, function: str, argument: Json) -> Json:
        match function, argument:
            case "Ref", str(name):
                return self._ref(name)
            case "Fn::GetAtt", [str(name), str(attribute)]:
                return self._get_att(name, attribute)
            case "Fn::Sub", str(text):
                return self._sub(text, {})
            case "Fn::Sub", [str(text), dict(variables)]:
                return self._sub(text, variables)
            case "Fn::Join", [str(separator), items]:
                return separator.join(as_texts(self.resolve(items)))
            case "Fn::Split", [str(separator), text]:
                return list(as_text(self.resolve(text)).split(separator))
            case "Fn::Select", [index, items]:
                selected, number = as_texts(self.resolve(items)), int(as_text(self.resolve(index)))
                if not 0 <= number < len(selected):
                    raise TemplateError(f"Fn::Select finds nothing at {number} in {selected}")
                return selected[number]
            case "Fn::If", [condition, yes, no]:
                return self.resolve(yes if self._condition(condition) else no)
            case "Fn::FindInMap", [*keys]:
                found: Json = self._mappings
                for key in as_texts(self.resolve(keys)):
                    if not isinstance(found, dict) or key not in found:
                        raise TemplateError(f"Fn::FindInMap finds nothing at {keys}")
                    found = found[key]
                return found
            case "Condition", str(name):
                if name not in self._conditions:
                    raise TemplateError(f"the template has no condition {name}")
                return self._condition(self._conditions[name])
            case "Fn::Equals", [left, right]:
                return as_text(self.resolve(left)) == as_text(self.resolve(right))
            case "Fn::Not", [condition]:
                return not self._condition(condition)
            case "Fn::And", [*conditions]:
                return all(map(self._condition, conditions))
            case "Fn::Or", [*conditions]:
                return any(map(self._condition, conditions))
        raise TemplateError(f"{function} cannot be resolved on this machine: {argument}")

    def _condition(self, node: Json) -> bool:
        return self.resolve({"Condition": node} if isinstance(node, str) else node) is True

    def _ref(self, name: str) -> Json:
        if name in self._values:
            return self._values[name]
        if name not in self.resources:
            raise TemplateError(f"Ref to {name}, which the template does not have")
        return self.arn(name) if self.resources[name]["Type"] in _REF_IS_ARN else self.name(name)

    def _get_att(self, name: str, attribute: str) -> str:
        if name not in self.resources:
            raise TemplateError(f"Fn::GetAtt of {name}, which the template does not have")
        if attribute == "KeyId" and self.resources[name]["Type"] == "AWS::KMS::Key":
            return self.name(name)
        if attribute != "Arn":
            raise TemplateError(f"Fn::GetAtt {name}.{attribute} is not known on this machine")
        return self.arn(name)

    def _sub(self, text: str, variables: Mapping[str, Json]) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1].strip()
            if name.startswith("!"):
                return f"${{{name[1:]}}}"
            if name in variables:
                return as_text(self.resolve(variables[name]))
            resource, _, attribute = name.partition(".")
            return as_text(self._get_att(resource, attribute) if attribute else self._ref(name))

        return re.sub(r"\$\{([^}]*)\}", value, text)


def _folder(name: str, properties: Mapping[str, Json], folders: Mapping[str, Path], key: str) -> Path:
    code = as_mapping(properties.get(key, {}), name)
    folder = folders.get(str(code.get("S3Key")))
    if folder is None:
        raise TemplateError(
            f"the code of {name} is not in a folder of this machine: its CodeUri or ContentUri names one"
        )
    return folder


def _layer_dir(folder: Path) -> Path:
    if not folder.is_dir():
        raise TemplateError(f"the content of a layer is not at {folder}: see its ContentUri")
    return folder / "python" if (folder / "python").is_dir() else folder


def _function(
    resolver: _Resolver, name: str, properties: Mapping[str, Json], code_dir: Path, layer_dirs: tuple[Path, ...]
) -> Function:
    variables = as_mapping(as_mapping(properties.get("Environment", {}), name).get("Variables", {}), name)
    logging = as_mapping(properties.get("LoggingConfig", {}), name)
    physical_name = resolver.name(name)
    return Function(
        name=name,
        physical_name=physical_name,
        arn=resolver.arn(name),
        handler=as_text(properties.get("Handler", "")),
        code_dir=code_dir.resolve(),
        layer_dirs=tuple(folder.resolve() for folder in layer_dirs),
        variables={key: as_text(value) for key, value in variables.items()},
        timeout=int(as_text(properties.get("Timeout", 3))),
        memory=int(as_text(properties.get("MemorySize", 128))),
        runtime=as_text(properties["Runtime"]),
        architecture=as_texts(properties.get("Architectures", ["x86_64"]))[0],
        log_group=as_text(logging.get("LogGroup", f"/aws/lambda/{physical_name}")),
    )


def _apis(resolver: _Resolver, functions: list[Function], not_emulated: list[str]) -> list[Api]:
    apis = []
    for name, properties in resolver.of_type("AWS::ApiGateway::RestApi"):
        body = as_mapping(properties.get("Body", {}), name)
        stage = _stage(resolver, "AWS::ApiGateway::Stage", "RestApiId", name, not_emulated)
        binary = frozenset(as_texts(body.get("x-amazon-apigateway-binary-media-types", [])))
        routes = _routes(body, "rest", name, functions, not_emulated, timeout_ms=29_000)
        apis.append(Api("rest", name, stage or "", routes, binary, _gateway_responses(resolver, name, body)))
    for name, properties in resolver.of_type("AWS::ApiGatewayV2::Api"):
        body = as_mapping(properties.get("Body", {}), name)
        if "x-amazon-apigateway-cors" in body or "CorsConfiguration" in properties:
            not_emulated.append(f"the CORS configuration of {name}")
        stage = _stage(resolver, "AWS::ApiGatewayV2::Stage", "ApiId", name, not_emulated)
        routes = _routes(body, "http", name, functions, not_emulated, timeout_ms=30_000)
        apis.append(Api("http", name, stage or DEFAULT, routes))
    for name, properties in resolver.of_type("AWS::Lambda::Url"):
        target = as_text(properties.get("TargetFunctionArn", ""))
        function = next((each for each in functions if target in (each.arn, each.physical_name)), None)
        if function is None:
            not_emulated.append(f"{name} (the URL of no Python function)")
            continue
        authorizer = None if properties.get("AuthType") == "NONE" else Nobody.IAM
        if authorizer:
            not_emulated.append(f"the authorization of {name}")
        if "Cors" in properties:
            not_emulated.append(f"the CORS configuration of {name}")
        streams = properties.get("InvokeMode") == "RESPONSE_STREAM"
        route = Route(DEFAULT, _ANY_METHOD, function, math.inf, "2.0", streams, authorizer)
        apis.append(Api("url", name, DEFAULT, (route,)))
    return apis


def _gateway_responses(resolver: _Resolver, api: str, body: Mapping[str, Json]) -> dict[str, GatewayResponse]:
    """Those of the OpenAPI document, and those that are resources of their own."""
    key = "x-amazon-apigateway-gateway-responses"
    responses = gateway_responses_of(as_mapping(body.get(key, {}), key))
    for _, properties in resolver.of_type("AWS::ApiGateway::GatewayResponse"):
        if properties.get("RestApiId") == api:
            fields = {f"{name[:1].lower()}{name[1:]}": value for name, value in properties.items()}
            responses[as_text(properties["ResponseType"])] = gateway_response(fields)
    return responses


def _stage(resolver: _Resolver, type: str, key: str, api: str, not_emulated: list[str]) -> str | None:
    """Name of an API's first stage, the one that is served; None when it has none."""
    names = [as_text(stage["StageName"]) for _, stage in resolver.of_type(type) if stage.get(key) == api]
    # "Stage" is a second one that SAM itself adds to a REST API without an OpenApiVersion.
    not_emulated += [f"stage {name} of {api}" for name in names[1:] if name != "Stage"]
    return names[0] if names else None


def _routes(
    body: Mapping[str, Json],
    kind: Literal["rest", "http"],
    name: str,
    functions: list[Function],
    not_emulated: list[str],
    *,
    timeout_ms: int,
) -> tuple[Route, ...]:
    """Reads https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-swagger-extensions.html"""
    routes: list[Route] = []
    authorizers = authorizers_of(body, kind, {function.arn: function.name for function in functions})
    for path, item in as_mapping(body.get("paths", {}), name).items():
        for method, operation in as_mapping(item, path).items():
            if not isinstance(operation, dict) or "x-amazon-apigateway-integration" not in operation:
                continue
            integration = as_mapping(operation["x-amazon-apigateway-integration"], path)
            uri = as_text(integration.get("uri", ""))
            function = next((each for each in functions if re.search(rf"/{re.escape(each.arn)}[/:]", uri)), None)
            if integration.get("type") != "aws_proxy" or function is None:
                not_emulated.append(f"{path} (an integration that is no Python function's)")
                continue
            methods = _ANY_METHOD if method == "x-amazon-apigateway-any-method" else (method.upper(),)
            timeout = float(as_text(integration.get("timeoutInMillis", timeout_ms))) / 1000
            payload = as_text(integration.get("payloadFormatVersion", "1.0"))
            streams = integration.get("responseTransferMode") == "STREAM"
            routes.append(
                Route(path, methods, function, timeout, payload, streams, *authorization_of(operation, authorizers))
            )
    refusing = {route.authorizer for route in routes if isinstance(route.authorizer, Nobody)}
    not_emulated += [f"{each.value} of {name} (such routes refuse everybody)" for each in Nobody if each in refusing]
    if body.get("security"):
        not_emulated.append(f"security for all of {name} (nor does API Gateway know it: it is a route's)")
    return tuple(routes)


def _tables(resolver: _Resolver, not_emulated: list[str]) -> tuple[Table, ...]:
    """Reads https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-dynamodb-table.html"""
    tables = []
    for name, properties in resolver.of_type("AWS::DynamoDB::Table"):
        same = ("AttributeDefinitions", "BillingMode", "KeySchema", "ProvisionedThroughput")
        indexes = ("GlobalSecondaryIndexes", "LocalSecondaryIndexes")
        of_index = ("IndexName", "KeySchema", "Projection", "ProvisionedThroughput")
        known = {*same, *indexes, *_TABLE_WITHOUT_EFFECT, "TableName", "TimeToLiveSpecification"}
        not_emulated += [f"{property} of {name}" for property in properties if property not in known]
        definition = _picked(properties, same) | {"TableName": resolver.name(name)}
        for kind in indexes:
            entries = properties.get(kind, [])
            if isinstance(entries, list) and entries:
                definition[kind] = [_picked(as_mapping(entry, f"{name}.{kind}"), of_index) for entry in entries]
        ttl = as_mapping(properties.get("TimeToLiveSpecification", {}), name)
        attribute = as_text(ttl["AttributeName"]) if as_text(ttl.get("Enabled", False)) == "true" else None
        tables.append(Table(name, resolver.name(name), definition, attribute))
    return tuple(tables)


def _picked(properties: Mapping[str, Json], names: tuple[str, ...]) -> dict[str, Json]:
    """Properties that CloudFormation and DynamoDB call the same; a parameter's number is no text to DynamoDB."""
    picked = {name: properties[name] for name in names if name in properties}
    if "ProvisionedThroughput" in picked:
        units = as_mapping(picked["ProvisionedThroughput"], "ProvisionedThroughput")
        picked["ProvisionedThroughput"] = {name: int(as_text(value)) for name, value in units.items()}
    return picked


def _keys(resolver: _Resolver, not_emulated: list[str]) -> tuple[Key, ...]:
    """Reads https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-kms-key.html"""
    same = ("Description", "KeySpec", "KeyUsage")
    keys = []
    for name, properties in resolver.of_type("AWS::KMS::Key"):
        known = {*same, *_KEY_WITHOUT_EFFECT}
        not_emulated += [f"{property} of {name}" for property in properties if property not in known]
        keys.append(Key(name, resolver.name(name), _picked(properties, same)))
    return tuple(keys)


def _aliases(resolver: _Resolver, keys: tuple[Key, ...], not_emulated: list[str]) -> tuple[Alias, ...]:
    """Reads https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-kms-alias.html"""
    aliases = []
    for name, properties in resolver.of_type("AWS::KMS::Alias"):
        alias = Alias(as_text(properties["AliasName"]), as_text(properties["TargetKeyId"]).rpartition("/")[2])
        if any(key.id == alias.key_id for key in keys):
            aliases.append(alias)
        else:
            not_emulated.append(f"{name} (an alias of a key that is not in the template)")
    return tuple(aliases)
