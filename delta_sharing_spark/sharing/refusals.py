"""Classifies a server's refusals by their words, because the protocol has no codes for them."""

from __future__ import annotations

import re

from delta_sharing_spark.errors import ServerError

#: How the reference server, Delta Kernel, Delta Standalone and Delta Lake say that a version is not to be had.
_VERSIONS = re.compile(
    r"""(?ix) you \s can \s only \s query \s table \s data \s since \s version
    | cannot \s (?:load|read|time \s travel) .{0,80} \b version
    | history \s sharing \s is \s not \s enabled
    | reading \s table \s by \s version \s or \s timestamp \s is \s not \s supported
    | timestamp .{0,120} \b (?:before|after|earlier|later|older|greater)\b
    | not \s a \s valid \s starting \s timestamp
    | version .{0,60} (?:does \s not \s exist|is \s not \s available|not \s found|cannot \s be \s negative)
    | (?:no|missing) \s .{0,40} (?:commit|checkpoint|delta \s log) .{0,40} version
    """
)


def is_about_versions(refusal: ServerError) -> bool:
    """Whether a refusal is about a version or a moment that the server does not have or does not share."""
    return bool(refusal.server_message and _VERSIONS.search(refusal.server_message))
