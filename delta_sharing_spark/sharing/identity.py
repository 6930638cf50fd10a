"""Where a recipient without a secret gets its token, which endpoint may see it, and what profiles may do with the recipient's key.

Profiles are written by providers, so nothing here is ever read from one: the recipient asks for it by options or by the environment.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError, CredentialError, OptionError
from delta_sharing_spark.network.http import json_object
from delta_sharing_spark.network.urls import url_or_none
from delta_sharing_spark.options.declared import IDENTITY, KEYS, OPTIONS, ReadOptions, parse_options
from delta_sharing_spark.schema.instants import parse_instant
from delta_sharing_spark.storage.user_files import LARGEST_SECRET, UnfitFile, read_text

#: The environment variable with the token that a Flight gateway asks for; at the gateway, with those that may call, one a line.
TOKEN_VARIABLE = "DELTA_SHARING_FLIGHT_TOKEN"  # noqa: S105  # a name
_T = TypeVar("_T")
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
        source: The file's whole path, the command, or the variable's name; a command may hold a secret.
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
        return is_same_endpoint(self.endpoint, endpoint)


def is_same_endpoint(one: str, other: str) -> bool:
    """Whether two texts are URLs of the same scheme, host, port and path, and of no query."""
    mine, yours = url_or_none(one), url_or_none(other)
    if mine is None or yours is None or mine.query or mine.fragment or yours.query or yours.fragment:
        return False
    return mine.origin == yours.origin and mine.path.rstrip("/") == yours.path.rstrip("/")


def identity_of(options: ReadOptions) -> Identity | None:
    """The identity that a load's options ask for, if any; raises OptionError where the command is none, or two endpoints are allowed."""
    file, command, kind = options.bearer_token_file, options.bearer_token_command, options.identity
    if file is not None:
        kind, source = "file", whole_path(file)
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
            options.token_exchange_endpoint,
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


def whole_path(path: str) -> str:
    """The whole path of a file of the recipient, which may be read when the process is in another directory."""
    with suppress(FileNotFoundError):  # the working directory is gone
        return os.path.abspath(os.path.expanduser(path))
    return path


@dataclass(frozen=True, slots=True)
class KeyConsent:
    """What the recipient lets profiles do with a private key.

    Attributes:
        origin: A URL of the origin that may receive assertions.
        endpoint: The one sharing endpoint that may be shown the tokens which assertions get.
        file: The key's whole path; None for the one that a profile in a local file names.
        audience: For whom assertions may be, if that is no URL of ``origin``.
    """

    origin: str
    endpoint: str
    file: str | None = None
    audience: str | None = None


def key_consent(options: ReadOptions) -> KeyConsent | None:
    """What a load's options let profiles do with a private key, if anything."""
    origin, endpoint, file = options.private_key_origin, options.identity_endpoint, options.private_key_file
    if origin is None or endpoint is None:
        return None
    return KeyConsent(origin, endpoint, None if file is None else whole_path(file), options.private_key_audience)


def from_environment(make: Callable[[ReadOptions], _T | None]) -> _T | None:
    """What ``make`` makes of the environment's options of identities and keys, None without any.

    Raises:
        ConfigError: Its variables contradict each other.
    """
    variables = {option.name: variable_of(option.name) for option in OPTIONS if option.group in (IDENTITY, KEYS)}
    texts = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable, "").strip()}
    if not texts:
        return None
    try:
        return make(parse_options({"path": "share.schema.table", **texts}))
    except OptionError as error:
        names = ", ".join(variables[name] for name in texts)
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
        assert identity.audience is not None
        if identity.kind == "azure":
            text, end = azure_token(identity.audience, identity.client_id)
        else:
            text, end = google_token(identity.audience)
    token = text.strip()
    if identity.kind == "command" and token.startswith("{"):
        token, end = _exec_credential(token)
    if len(token) > LARGEST_SECRET or not is_header_text(token):
        empty = "is empty" if not token else "holds no token: a token is one word of visible ASCII characters"
        raise CredentialError(f"what {identity} gives {empty}; check it")
    ends = [moment for moment in (end, token_end(token)) if moment is not None]
    if not ends:
        return token, None
    seconds = min(ends) - time.time()
    if seconds <= 0:
        raise CredentialError(
            f"the token of {identity} ended {-seconds:.0f} s ago and has not been renewed; see to what renews it, and to this "
            f"machine's clock"
        )
    return token, seconds


def is_header_text(text: str) -> bool:
    """Whether a token can stand in a header: visible ASCII (RFC 6750 allows less).

    gRPC would refuse another on its way, or bring it as another one.
    """
    return bool(text) and all("!" <= c <= "~" for c in text)


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
        return json_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None


def _read_file(path: str) -> str:
    """The text of a token's file."""
    try:
        return read_text(path)
    except UnfitFile as why:
        raise CredentialError(
            f"bearerTokenFile {path} {why}; name the file that holds the token, and check its permissions"
        ) from None


def _exec_credential(text: str) -> tuple[str, float | None]:
    """The token in the JSON that a command prints, and its end."""
    tree = json_object(text) or {}
    value = tree.get("access_token")
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


def azure_token(audience: str, client_id: str | None) -> tuple[str, float | None]:
    """A token of the machine's managed identity (azure-identity), and its end in seconds since 1970.

    Args:
        audience: The resource that the token is for, an application id URI such as ``api://sharing``.
        client_id: Of an identity that was assigned by a user; None means the system's.

    Raises:
        ConfigError: azure-identity is not installed.
        CredentialError: The platform issues no token.
    """
    try:
        from azure.identity import ManagedIdentityCredential
    except ImportError:
        raise _missing("azure", "azure-identity", "azure-identity") from None
    scope = audience if audience.endswith("/.default") else f"{audience}/.default"
    try:
        # A new credential each time: one that was used before would hand out the token that it has kept.
        with ManagedIdentityCredential(client_id=client_id) as credential:
            token = credential.get_token(scope)
    # The library lets errors of its own, of its transport and of msal pass; their texts may quote an answer.
    except Exception as error:
        raise _refused("azure", audience, error, "that a managed identity is assigned to this machine") from None
    return token.token, float(token.expires_on)


def google_token(audience: str) -> tuple[str, float | None]:
    """An id token of the machine's service account (google-auth); the token itself tells its end.

    Raises:
        ConfigError: google-auth is not installed.
        CredentialError: The platform issues no token.
    """
    try:
        from google.auth.transport.requests import Request
        from google.oauth2.id_token import fetch_id_token_credentials
    except ImportError:
        raise _missing("google", "google-auth", "google-identity") from None
    import requests

    try:
        with requests.Session() as session:
            request = Request(session)
            credentials = fetch_id_token_credentials(audience, request)
            credentials.refresh(request)
        return str(credentials.token or ""), None
    except Exception as error:  # as above
        raise _refused("google", audience, error, "that a service account is attached to this machine") from None


def _missing(kind: str, package: str, extra: str) -> ConfigError:
    return ConfigError(f"identity={kind} needs the package '{package}'; {install_line(extra)}")


def _refused(kind: str, audience: str, error: Exception, check: str) -> CredentialError:
    return CredentialError(
        f"identity={kind}: the platform issued no token for the audience {audience} ({type(error).__name__}); check {check}, "
        f"and the audience"
    )


#: Seconds that the command may take.
TIME_LIMIT = 30.0
#: Variables that the command is not handed: secrets of Spark's own connections, profiles and tokens of this package.
_WITHHELD = (
    "DELTA_SHARING_", "PYTHON_WORKER_FACTORY_", "PYSPARK_GATEWAY_", "SPARK_CONNECT_AUTHENTICATE_", "_SPARK_", "SPARK_AUTH"
)  # fmt: skip


def parse_command(text: str) -> tuple[str, ...]:
    """A program and its arguments, from a line as a shell would split it or a JSON list of texts.

    Raises:
        OptionError: The text is neither. It is not quoted: an argument may be a secret.
    """
    try:
        words = json.loads(text) if text.lstrip().startswith("[") else shlex.split(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not words or not words[0] or not all(isinstance(word, str) for word in words):
        raise OptionError(
            "option 'bearerTokenCommand' must be a program and its arguments, with every quote closed, or a JSON list of them",
            option="bearerTokenCommand",
        )
    return tuple(words)


def run_command(command: tuple[str, ...], seconds: float = TIME_LIMIT) -> str:
    """What the command prints. It inherits no input, and its error output is dropped.

    Args:
        command: The program, found by ``PATH`` where it names no directory, and its arguments.
        seconds: How long it may run; then it is ended, with whatever it started.

    Raises:
        CredentialError: It cannot be started, fails, takes too long, or prints too much. The message names the program
            and quotes neither its arguments nor its output.
    """
    program = command[0]
    advice = "run it by hand to see what it says"
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(_WITHHELD)}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CredentialError(
            f"the command of bearerTokenCommand, {program}, cannot be started ({type(error).__name__}); check its path"
        ) from None
    until = time.monotonic() + seconds
    late = CredentialError(f"the command of bearerTokenCommand, {program}, took more than {seconds:g} s; {advice}")
    stdout = process.stdout
    assert stdout is not None
    printed: list[bytes] = []
    # A thread, because a pipe cannot be waited for on every system, and a child of the command may hold it open.
    reading = threading.Thread(target=lambda: printed.append(stdout.read(LARGEST_SECRET + 1)), daemon=True)
    reading.start()
    try:
        reading.join(max(0.0, until - time.monotonic()))
        if reading.is_alive():
            raise late
        if len(printed[0]) > LARGEST_SECRET:
            raise CredentialError(
                f"the command of bearerTokenCommand, {program}, printed more than {LARGEST_SECRET >> 10} KiB; {advice}"
            )
        with stdout:
            status = process.wait(max(0.0, until - time.monotonic()))
    except BaseException as error:
        _end(process)
        reading.join(1.0)
        if not reading.is_alive():
            stdout.close()
        if isinstance(error, subprocess.TimeoutExpired):
            raise late from None
        raise
    if status != 0:
        raise CredentialError(f"the command of bearerTokenCommand, {program}, ended with status {status}; {advice}")
    return printed[0].decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that runs, or was not waited for yet, and what it started: all of its process group."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
