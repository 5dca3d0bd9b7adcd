"""This machine as a small AWS: API Gateway and Lambda for a SAM template, without a container engine.

Needs the extra `local`. Nothing that is deployed imports it, and the layer's build leaves it out.
"""

from sealane.local.errors import FunctionError, LocalError, TemplateError
from sealane.local.gateway import LocalGateway
from sealane.local.records import Call, LogLine, Record

__all__ = ["Call", "FunctionError", "LocalError", "LocalGateway", "LogLine", "Record", "TemplateError"]
