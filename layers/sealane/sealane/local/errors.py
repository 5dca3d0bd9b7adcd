"""What can go wrong here; the text of each error is one line, made to be shown as it is."""

import json


class LocalError(Exception):
    """The local gateway cannot do what it was asked to."""


class TemplateError(LocalError):
    """The template cannot be read, translated or run."""


class FunctionError(LocalError):
    """A function, or the environment that it ran in, failed.

    Args:
        type: the exception's type, or Lambda's own name of the failure (`Runtime.ExitError`, `Sandbox.Timedout`).
        message: the exception's text.
        where: `file:line` of the failing code, if known.
        report: the error as JSON where the function's runtime or Lambda itself has written it.
    """

    def __init__(self, type: str, message: str, where: str | None = None, report: bytes | None = None) -> None:
        self.type = type
        self.message = message
        self.where = where
        self.report = report
        text = " ".join(f"{type}: {message}".split())
        super().__init__(f"{text} ({where})" if where else text)

    def payload(self, request_id: str) -> bytes:
        """The error as Lambda gives it to the function's caller, in JSON.

        https://docs.aws.amazon.com/lambda/latest/dg/python-exceptions.html, and for a lost environment
        https://docs.aws.amazon.com/lambda/latest/dg/troubleshooting-invocation.html
        """
        if self.report is not None:
            return self.report
        text = f"RequestId: {request_id} Error: {self.message}"
        return json.dumps({"errorType": self.type, "errorMessage": text}).encode()


class Throttled(LocalError):
    """Every environment that the function may have is busy."""
