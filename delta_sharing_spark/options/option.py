"""Describes an option: its name, type, default, parser and documentation, and the field that declares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from delta_sharing_spark.options import values

Scope = Literal["both", "batch", "stream"]


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: Its spelling in documentation and errors.
        attribute: The field of :class:`ReadOptions` that holds its value.
        parse: Parses its text (:mod:`delta_sharing_spark.options.values`).
        type: The type as documented.
        default: The value where the option is not set.
        shown: The default as documented.
        doc: Its documentation, one or two sentences of Markdown.
        group: The section of the documentation.
        scope: The kinds of load that it applies to.
        sensitive: Whether its value is a secret.
        aliases: Other names of the same option.
    """

    name: str
    attribute: str
    parse: values.Parser
    type: str
    default: Any
    shown: str
    doc: str
    group: str
    scope: Scope
    sensitive: bool
    aliases: tuple[str, ...]


_TYPES: Mapping[values.Parser, str] = {
    values.text: "text",
    values.expression: "text",
    values.boolean: "`true`, `false`",
    values.response_format: "`parquet`, `delta`",
    values.version: "version",
    values.starting_version: "version or `latest`",
    values.count: "number",
    values.positive: "number > 0",
    values.size: "size",
    values.duration: "duration",
    values.names: "names",
    values.web_address: "URL",
    values.time_zone: "time zone",
    values.timestamp: "timestamp",
    values.first_moment: "timestamp",
}


def option_field(
    parse: values.Parser,
    default: Any,
    doc: str,
    group: str,
    *,
    shown: str = "",
    type: str = "",
    scope: Scope = "both",
    sensitive: bool = False,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field of ``ReadOptions`` that declares an option."""
    if not shown and default is not None:
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    described = {"parse": parse, "type": type or _TYPES[parse], "doc": doc, "group": group, "shown": shown}
    return field(
        default=default,
        repr=not sensitive,
        metadata={"option": {**described, "scope": scope, "sensitive": sensitive, "aliases": aliases}},
    )
