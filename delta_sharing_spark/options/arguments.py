"""Names what the user wrote, in errors about the options that it became: arguments of methods, and those of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from delta_sharing_spark.errors import OptionError

#: The arguments of ``scan`` and ``changes`` by the options that they become, where the two are called differently.
ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "versionAsOf": "version",
        "timestampAsOf": "timestamp",
        "startingVersion": "starting_version",
        "endingVersion": "ending_version",
        "startingTimestamp": "starting_timestamp",
        "endingTimestamp": "ending_timestamp",
    }
)


@contextmanager
def naming(arguments: Mapping[str, str]) -> Iterator[None]:
    """Within it an OptionError names ``arguments``, by their options, instead of the options."""
    try:
        yield
    except OptionError as error:
        text = str(error)
        for option, argument in arguments.items():
            text = re.sub(rf"(?:option )?'{option}'|\b{option}\b", argument, text)
        if text == str(error):
            raise
        raise OptionError(text, **vars(error)) from None
