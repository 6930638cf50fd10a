"""The recipient's own key, which signs OAuth assertions: which file it is, where assertions may go, and who may see the token.

A profile is written by others. What it names is compared with what the recipient allows before the key is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.errors import ProfileError, printable
from delta_sharing_spark.network.urls import url_or_none
from delta_sharing_spark.sharing.identity import KeyConsent, is_same_endpoint
from delta_sharing_spark.storage.user_files import UnfitFile, read_text

_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """The key that signs an OAuth assertion. It is read with the profile, because executors that renew have not got the file."""

    private_key_file: str
    key_id: str
    algorithm: str
    pem: str = field(repr=False)


def read_key(
    key: Mapping[str, Any],
    consent: KeyConsent | None,
    name: str,
    *,
    endpoint: str,
    token_endpoint: str,
    audience: str,
    is_local_file: bool,
) -> PrivateKey:
    """The key that signs for a profile.

    Args:
        key: The profile's ``privateKey``, with ``keyId``.
        consent: What the recipient allows.
        name: What errors call the profile.
        endpoint, token_endpoint: Where the profile has tokens and assertions sent.
        audience: For whom it has assertions made.
        is_local_file: Whether the profile is a file of this machine, whose key the recipient may confirm.

    Raises:
        ProfileError: The recipient does not allow it, or the key's file cannot be read. Nothing was read unless it was allowed.
    """
    named = key.get("privateKeyFile")
    file = consent.file if consent is not None else None
    if file is None and is_local_file and isinstance(named, str) and named.strip():
        file = named
    if consent is None or file is None:
        key_text, yours = ("a key", "privateKeyFile to your key, ") if file is None else (f"the key {_path(file)}", "")
        raise ProfileError(
            f"{name} would sign with {key_text} for {_without_query(token_endpoint)}, and whether your key signs is not for a profile "
            f"to say: it was not read; if you trust this one, set the options {yours}privateKeyOrigin to the origin that may "
            f"receive assertions, and identityEndpoint to {_without_query(endpoint)}"
        )
    origin = consent.origin
    for is_allowed, option, why in (
        (
            is_same_endpoint(consent.endpoint, endpoint),
            "identityEndpoint",
            f"names the endpoint {_without_query(endpoint)}, and tokens that the key gets may be shown to {consent.endpoint} only",
        ),
        (
            _is_of(token_endpoint, origin),
            "privateKeyOrigin",
            f"has assertions sent to {_without_query(token_endpoint)}, and the key may sign for {origin} only",
        ),
        (
            audience == consent.audience or _is_of(audience, origin),
            "privateKeyAudience",
            f"has assertions made for {_without_query(audience)}, which is of another origin than {origin}",
        ),
    ):
        if not is_allowed:
            advice = f"set {option} to what the profile names if you trust it"
            raise ProfileError(f"{name} {why}: the key was not read; {advice}")
    try:
        pem = read_text(file)
    except UnfitFile as unfit:
        raise ProfileError(f"the private key {_path(file)} {unfit}; check privateKeyFile") from None
    return PrivateKey(file, str(key["keyId"]), str(key.get("algorithm") or "RS256"), pem)


def _is_of(text: str, origin: str) -> bool:
    """Whether a URL is of the origin of another one."""
    one, other = url_or_none(text), url_or_none(origin)
    return one is not None and other is not None and one.origin == other.origin


def _without_query(url: str) -> str:
    """A URL that a profile names, as an error may show it: without a query, and not for ever."""
    parts = url_or_none(url)
    return "what is no URL" if parts is None else printable(parts.root + parts.path)[:_LONGEST_NAME]


def _path(file: str) -> str:
    return printable(file, one_line=True)[:_LONGEST_NAME]
