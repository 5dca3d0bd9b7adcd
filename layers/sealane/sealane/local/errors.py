"""What can go wrong here; the text of each error is one line, made to be shown as it is."""


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
    """

    def __init__(self, type: str, message: str, where: str | None = None) -> None:
        self.type = type
        self.message = message
        self.where = where
        text = " ".join(f"{type}: {message}".split())
        super().__init__(f"{text} ({where})" if where else text)


class Throttled(LocalError):
    """Every environment that the function may have is busy."""
