"""Where a recipient without a secret gets its token: a file that rotates, a command, the platform, and which endpoint may see it.

Profiles are written by providers, so nothing here is ever read from one: the recipient asks for it by options or by the environment.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delta_sharing_spark.errors import ConfigError, CredentialError, OptionError
from delta_sharing_spark.network.hosts import origin, split_url
from delta_sharing_spark.options import IDENTITY, OPTIONS, ReadOptions, parse_options
from delta_sharing_spark.schema.instants import parse_instant
from delta_sharing_spark.sharing.token_command import LARGEST_OUTPUT, parse_command, run_command

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Where and for what a token is exchanged (RFC 8693, section 2.1)."""

    endpoint: str
    audience: str | None = None
    scope: str | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The source of a recipient's tokens. It holds no token.

    Attributes:
        endpoint: The one endpoint that a token may be shown to.
        kind: ``file``, ``command``, ``azure``, ``google`` or ``environment``.
        source: The file's path, the command, or the variable's name; a command may hold a secret.
        audience, client_id: For ``azure`` and ``google``.
        exchange: Where the token is exchanged before it is shown.
    """

    endpoint: str
    kind: str
    source: str = field(default="", repr=False)
    audience: str | None = None
    client_id: str | None = None
    exchange: TokenExchange | None = None

    @property
    def option(self) -> str:
        """The option that asked for it, without where its token comes from."""
        return {"file": "bearerTokenFile", "command": "bearerTokenCommand"}.get(self.kind, f"identity={self.kind}")

    def __str__(self) -> str:
        source = parse_command(self.source)[0] if self.kind == "command" else self.audience or self.source
        return f"{self.option} ({source})"

    def allows(self, endpoint: str) -> bool:
        """Whether a token may be shown to an endpoint: the same scheme, host, port and path."""
        mine, other = split_url(self.endpoint), split_url(endpoint)
        if mine is None or other is None or mine.query or mine.fragment or other.query or other.fragment:
            return False
        return origin(mine) == origin(other) and mine.path.rstrip("/") == other.path.rstrip("/")


def identity_of(options: ReadOptions) -> Identity | None:
    """The identity that a load's options ask for; None if they ask for none.

    Raises:
        OptionError: The command is none, or two endpoints are allowed.
    """
    file, command, kind = options.bearer_token_file, options.bearer_token_command, options.identity
    if file is not None:
        kind, source = "file", file
    elif command is not None:
        kind, source = "command", command
        parse_command(command)
    else:
        source = options.identity_variable or ""
    endpoint = options.identity_endpoint or options.endpoint
    if kind is None or endpoint is None:
        return None
    exchange = None
    if options.token_exchange_endpoint is not None:
        exchange = TokenExchange(
            options.token_exchange_endpoint.rstrip("/"),
            options.token_exchange_audience,
            options.token_exchange_scope,
            options.token_exchange_client_id,
        )
    identity = Identity(
        endpoint.strip().rstrip("/"), kind, source, options.identity_audience, options.identity_client_id, exchange
    )
    if options.endpoint is not None and not identity.allows(options.endpoint):
        raise OptionError("options 'endpoint' and 'identityEndpoint' name two endpoints; give one", option="endpoint")
    return identity


def identity_from_environment() -> Identity | None:
    """The identity that the environment asks for: each option of the group by its variable; None if none is set.

    Raises:
        ConfigError: What the variables say is no identity.
    """
    named = {option.name: variable_of(option.name) for option in OPTIONS if option.group == IDENTITY}
    texts = {name: os.environ[variable] for name, variable in named.items() if os.environ.get(variable, "").strip()}
    if not texts:
        return None
    try:
        return identity_of(parse_options({"path": "share.schema.table", **texts}))
    except OptionError as error:
        names = ", ".join(named[name] for name in texts)
        raise ConfigError(f"the environment's {names}: {error}") from None


def variable_of(option: str) -> str:
    """The environment variable of an option: ``DELTA_SHARING_BEARER_TOKEN_FILE`` of ``bearerTokenFile``."""
    return f"DELTA_SHARING_{_CAMEL.sub('_', option).upper()}"


def token_of(identity: Identity) -> tuple[str, float | None]:
    """A token, got now, and the seconds that it is good for; None where nothing tells.

    Raises:
        CredentialError: There is none, or it has ended.
        ConfigError: The platform's library is not installed.
    """
    text, end = "", None
    if identity.kind == "file":
        text = _read_file(identity.source)
    elif identity.kind == "command":
        text = run_command(parse_command(identity.source))
    elif identity.kind == "environment":
        text = os.environ.get(identity.source, "")
    else:
        from delta_sharing_spark.sharing.platform_tokens import azure_token, google_token

        assert identity.audience is not None
        if identity.kind == "azure":
            text, end = azure_token(identity.audience, identity.client_id)
        else:
            text, end = google_token(identity.audience)
    token = text.strip()
    if identity.kind == "command" and token.startswith("{"):
        token, end = _exec_credential(token)
    if not token or len(token) > LARGEST_OUTPUT or not all("!" <= c <= "~" for c in token):
        empty = "is empty" if not token else "holds no token: a token is one word of visible ASCII characters"
        raise CredentialError(f"what {identity} gives {empty}; check it")
    ends = [moment for moment in (end, token_end(token)) if moment is not None]
    if not ends:
        return token, None
    left = min(ends) - time.time()
    if left <= 0:
        raise CredentialError(
            f"the token of {identity} ended {-left:.0f} s ago and has not been renewed; see to what renews it, and to this "
            f"machine's clock"
        )
    return token, left


def token_end(token: str) -> float | None:
    """When a JWT ends by its own ``exp``, in seconds since 1970; None for any other token. Its signature is the server's to check."""
    claims = jwt_claims(token)
    end = None if claims is None else claims.get("exp")
    return float(end) if isinstance(end, (int, float)) and not isinstance(end, bool) and abs(end) < 1e12 else None


def jwt_claims(token: str) -> dict[str, Any] | None:
    """The claims of a JWT, unchecked; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return None
    return claims if isinstance(claims, dict) else None


def _read_file(path: str) -> str:
    """The text of a token's file."""
    try:
        with open(Path(path).expanduser(), "rb", opener=_open_at_once) as file:
            # Nothing else has an end that is sure to come.
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CredentialError(
                    f"bearerTokenFile {path} is not a regular file; name the file that holds the token"
                )
            data = file.read(LARGEST_OUTPUT + 1)
    except (OSError, ValueError, RuntimeError) as error:
        raise CredentialError(
            f"bearerTokenFile {path} cannot be read on this machine ({type(error).__name__}); check the path and its permissions"
        ) from None
    if len(data) > LARGEST_OUTPUT:
        raise CredentialError(
            f"bearerTokenFile {path} has more than {LARGEST_OUTPUT >> 10} KiB; name the file of the token"
        )
    return data.decode("utf-8", "replace")


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a named pipe has nobody who writes."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _exec_credential(text: str) -> tuple[str, float | None]:
    """The token in the JSON that a command prints, and its end."""
    try:
        tree: Any = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    value = tree.get("access_token") if isinstance(tree, dict) else None
    if not isinstance(value, str):
        raise CredentialError(
            "the command of bearerTokenCommand prints JSON without 'access_token'; have it print a token, or "
            '{"access_token": "...", "expires_in": seconds}'
        )
    ends: list[float] = []
    try:
        if tree.get("expires_in") is not None:
            ends.append(time.time() + float(int(tree["expires_in"])))
        if tree.get("expiration") is not None:
            moment = parse_instant(str(tree["expiration"]))
            ends.append(moment.timestamp() if moment is not None else float(tree["expiration"]))
        if not all(abs(end) < 1e12 for end in ends):
            raise ValueError("no moment")
    except (TypeError, ValueError, OverflowError):
        raise CredentialError(
            "the command of bearerTokenCommand prints 'expires_in' that is no number of seconds, or 'expiration' that is no "
            "ISO timestamp; see to its output"
        ) from None
    return value.strip(), min(ends, default=None)
