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
from delta_sharing_spark.storage.text_files import UnfitFile, read_text

_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """The key that signs an OAuth assertion. It is read with the profile, because executors that renew have not got the file."""

    private_key_file: str
    key_id: str
    algorithm: str
    pem: str = field(repr=False)


def read_key(
    key: Mapping[str, Any], use: KeyUse, name: str, consent: KeyConsent | None, *, is_local_file: bool
) -> PrivateKey:
    """The key that signs for a profile.

    Args:
        key: The profile's ``privateKey``, with ``keyId``.
        use: What the profile would use it for.
        name: What errors call the profile.
        consent: What the recipient allows.
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
            f"{name} would sign with {key_text} for {_without_query(use.token_endpoint)}, and whether your key signs is not for a profile "
            f"to say: it was not read; if you trust this one, set the options {yours}privateKeyOrigin to the origin that may "
            f"receive assertions, and identityEndpoint to {_without_query(use.endpoint)}"
        )
    use.check(consent, name)
    try:
        pem = read_text(file)
    except UnfitFile as why:
        raise ProfileError(f"the private key {_path(file)} {why}; check privateKeyFile") from None
    return PrivateKey(file, str(key["keyId"]), str(key.get("algorithm") or "RS256"), pem)


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What a profile would use a key for: where assertions and tokens go, and for whom assertions are."""

    endpoint: str
    token_endpoint: str
    audience: str

    def check(self, consent: KeyConsent, name: str) -> None:
        """Raise ProfileError where the recipient did not allow it."""
        if not is_same_endpoint(consent.endpoint, self.endpoint):
            raise _not_allowed(
                f"{name} names the endpoint {_without_query(self.endpoint)}, and tokens that the key gets may be shown to "
                f"{consent.endpoint} only",
                "identityEndpoint",
            )
        if not _is_of(self.token_endpoint, consent.origin):
            raise _not_allowed(
                f"{name} has assertions sent to {_without_query(self.token_endpoint)}, and the key may sign for {consent.origin} only",
                "privateKeyOrigin",
            )
        if self.audience != consent.audience and not _is_of(self.audience, consent.origin):
            raise _not_allowed(
                f"{name} has assertions made for {_without_query(self.audience)}, which is of another origin than {consent.origin}",
                "privateKeyAudience",
            )


def _is_of(text: str, origin: str) -> bool:
    """Whether a URL is of the origin of another one."""
    one, other = url_or_none(text), url_or_none(origin)
    return one is not None and other is not None and one.origin == other.origin


def _not_allowed(why: str, option: str) -> ProfileError:
    return ProfileError(f"{why}: the key was not read; set {option} to what the profile names if you trust it")


def _without_query(url: str) -> str:
    """A URL that a profile names, as an error may show it: without a query, and not for ever."""
    parts = url_or_none(url)
    return "what is no URL" if parts is None else printable(parts.root + parts.path)[:_LONGEST_NAME]


def _path(file: str) -> str:
    return printable(file, one_line=True)[:_LONGEST_NAME]
