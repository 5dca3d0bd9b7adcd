"""The template as CloudFormation gets it, with any parameters."""

import copy
import functools
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from sealane.local.errors import TemplateError
from sealane.local.json_values import Json, as_texts
from sealane.local.template import _parameter_values, _read, _Resolver, _take_local_code, _translate
from tests.template.conftest import ROOT

TEMPLATE = ROOT / "template.yaml"


class Translated(_Resolver):
    """The resources that there are under some parameters, and their properties with every value filled in.

    References to what is not there are a `TemplateError`. Attributes that the local gateway does not know are the names
    of resource and attribute.

    Args:
        parameters: those that are not to be the defaults.
        path: the template.
    """

    def __init__(self, parameters: dict[str, str], path: Path = TEMPLATE) -> None:
        document = _read(path)
        self.document = cast(dict[str, Any], copy.deepcopy(document))
        self.parameters = _parameter_values(self.document["Parameters"], parameters)
        _take_local_code(document, ROOT)
        self.template: Any = _translate(document, self.parameters, path)
        super().__init__(self.template, self.parameters)

    def broken_rules(self) -> list[str]:
        """What CloudFormation says of parameters that do not fit, before it changes anything."""
        return [
            assertion["AssertDescription"]
            for rule in self.document["Rules"].values()
            if self.resolve(rule["RuleCondition"]) is True
            for assertion in rule["Assertions"]
            if self.resolve(assertion["Assert"]) is not True
        ]

    def _get_att(self, name: str, attribute: str) -> str:
        try:
            return super()._get_att(name, attribute)
        except TemplateError:
            if name not in self.resources:
                raise
            return f"{name}.{attribute}"

    def _call(self, function: str, argument: Json) -> Json:
        match function, argument:
            # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/intrinsic-function-reference-rules.html
            case "Fn::EachMemberEquals", [members, value]:
                return all(member == value for member in as_texts(self.resolve(members)))
        return super()._call(function, argument)


def is_counted_as_kms_failure(message: str) -> bool:
    """Whether the template's metric filter sees a line of the log.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/matching-terms-json-log-events.html
    """
    return any(fnmatchcase(message, pattern) for pattern in _kms_patterns())


@functools.cache
def _kms_patterns() -> list[str]:
    [(_, properties)] = Translated({}).of_type("AWS::Logs::MetricFilter")
    return re.findall(r'\$\.message = "([^"]+)"', str(properties["FilterPattern"]))
