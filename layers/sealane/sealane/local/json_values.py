"""JSON values of a template, as what they should be."""

from typing import TypeAlias

from sealane.local.errors import TemplateError

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


def as_mapping(value: Json, what: str) -> dict[str, Json]:
    """A mapping.

    Raises:
        TemplateError: it is none.
    """
    if not isinstance(value, dict):
        raise TemplateError(f"{what} in the template must be a mapping, not {value!r}")
    return value


def as_text(value: Json) -> str:
    """A scalar as CloudFormation writes it.

    Raises:
        TemplateError: it is none.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise TemplateError(f"{value!r} in the template must be a single value")


def as_texts(value: Json) -> list[str]:
    """A list of scalars.

    Raises:
        TemplateError: it is none.
    """
    if not isinstance(value, list):
        raise TemplateError(f"{value!r} in the template must be a list")
    return [as_text(item) for item in value]
