"""Says why a connection failed, by the exceptions within those of requests, urllib3 and ssl."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from delta_sharing_spark.errors import redact

#: Letters of a proxy's answer in an error.
_LONGEST_ANSWER = 100
#: A proxy's answers that mean no: any 4xx but those that ask to come again.
_PROXY_REFUSES = re.compile(r"4(?!08|25|29)[0-9]{2}\b")
#: OpenSSL's reasons where the other side answered with something else, such as HTTP.
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})


def beneath(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those it wraps, in arguments, ``reason``, cause or context; the innermost comes last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = [a for a in (*error.args, getattr(error, "reason", None)) if isinstance(a, BaseException)]
        error = inner[0] if inner else error.__cause__ or error.__context__


def forget_frames(error: BaseException) -> None:
    """Take the tracebacks from an exception and those it wraps, once it is told in our own words.

    Frames of a library that name their own error form a circle with it, and hold the frames of all callers: the bytes
    of a read would stay in memory until Python's collector comes, which is seldom where a few large objects are made.
    """
    for inner in beneath(error):
        inner.__traceback__ = None


def is_certificate(error: BaseException) -> bool:
    """Whether a certificate was refused; other TLS failures may be a connection that broke off."""
    return any(isinstance(e, ssl.SSLCertVerificationError | ssl.CertificateError) for e in beneath(error))


def tls_failure(error: BaseException, host: str | None) -> str:
    """What failed, why, and what to do, such as ``TLS with example.com failed (certificate verify failed: ...); ...``."""
    advice = "set the option caBundle if your network uses its own certificates"
    reason = redact(str(error))
    for inner in beneath(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            reason = f"certificate verify failed: {inner.verify_message}"
            break
        if isinstance(inner, ssl.SSLError) and inner.reason:
            reason = inner.reason.replace("_", " ").lower()
            if inner.reason in _NOT_TLS:
                advice = "no TLS is spoken on that port; check the scheme and the port of the address"
            break
    return f"TLS with {host} failed ({reason}); {advice}"


def proxy_reason(error: BaseException) -> str | None:
    """A proxy's answer when it did not connect, such as ``407 Proxy Authentication Required``; None for any other failure."""
    prefix = "Tunnel connection failed: "
    for inner in beneath(error):
        text = str(inner)
        if isinstance(inner, OSError) and text.startswith(prefix):
            return redact(text.removeprefix(prefix))[:_LONGEST_ANSWER]
        if isinstance(inner, ConnectionRefusedError):
            return "nothing listens at its address"
    return None


def proxy_refusal(answer: str, host: str | None) -> str:
    """What a proxy answered instead of connecting, and what to do."""
    return (
        f"the proxy on the way to {host} refused to connect ({answer}); set the option proxy, with a user and a password if "
        f"it asks for them, or ask who runs the proxy to let {host} pass"
    )


def final_reason(error: BaseException, host: str | None) -> str | None:
    """What failed and what to do, where no retry can mend it: a refused certificate, a proxy's refusal; else None."""
    if is_certificate(error):
        return tls_failure(error, host)
    answer = proxy_reason(error) or ""
    return proxy_refusal(answer, host) if _PROXY_REFUSES.match(answer) else None


def connection_reason(error: BaseException, url: str) -> str | None:
    """The reason if it is a usual one: a proxy, an unknown host, a port that nothing listens on, no route; else None."""
    if any(type(inner).__name__ == "ProxyError" for inner in beneath(error)):
        why = proxy_reason(error)
        return f"the proxy on the way to {urlsplit(url).hostname} did not connect{f': {why}' if why else ''}"
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    for inner in beneath(error):
        if isinstance(inner, socket.gaierror):
            return f"there is no host of the name {host}"
        if isinstance(inner, ConnectionRefusedError):
            return f"{host} refused the connection: nothing listens on port {port}"
        if isinstance(inner, ConnectionResetError | BrokenPipeError):
            return f"{host} closed the connection"
        if isinstance(inner, OSError) and inner.errno is not None and "unreachable" in (inner.strerror or "").lower():
            return f"there is no route to {host}"
    return None
