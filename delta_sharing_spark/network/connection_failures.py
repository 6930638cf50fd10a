"""Says why a connection failed and what to do: TLS, proxies, unknown hosts, answers that broke off."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterator

import urllib3

from delta_sharing_spark.network.urls import url_or_none
from delta_sharing_spark.redaction import redact

#: Letters of a proxy's answer in an error.
_LONGEST_ANSWER = 100
#: A proxy's answers that mean no: any 4xx but those that ask to come again.
_PROXY_REFUSES = re.compile(r"4(?!08|25|29)[0-9]{2}\b")
#: How systems say that no way leads to a host: Network is unreachable, No route to host.
_NO_ROUTE = re.compile("(?i)unreachable|no route")
_OWN_CERTIFICATES = "set the option caBundle if your network uses its own certificates, or ask who runs {host} whether it sends all of its chain"
_CLOCK = "check the clock of this machine, and ask who runs {host} for another certificate"
_OTHER_HOST = "check the address: the certificate is that of another host"
#: What to do by OpenSSL's code of a certificate that is refused (X509_V_ERR: not yet valid, expired, another name, another address).
_ADVICE_BY_CODE = {9: _CLOCK, 10: _CLOCK, 62: _OTHER_HOST, 64: _OTHER_HOST}
#: OpenSSL's reasons that no other try changes, and what to do. Any other may be a connection that broke off.
_ADVICE_BY_REASON = (
    (
        re.compile("WRONG_VERSION_NUMBER|HTTP_REQUEST|PACKET_LENGTH_TOO_LONG|RECORD_LAYER_FAILURE"),
        "no TLS is spoken on that port; check the scheme and the port of the address",
    ),
    (
        re.compile("NO_CERTIFICATE_OR_CRL_FOUND"),
        "the file of the option caBundle (or of REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE) holds no certificates; name one that does",
    ),
    (
        re.compile(
            "PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL|NO_SHARED_CIPHER|HANDSHAKE_FAILURE|KEY_TOO_SMALL|MD_TOO_WEAK"
        ),
        "ask who runs {host} to offer a newer TLS, or whether it wants a certificate of its clients (options clientCertificate and clientKey)",
    ),
    (
        re.compile(
            "CERTIFICATE_REQUIRED|UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_(?:UNKNOWN|EXPIRED|REVOKED)|UNSUPPORTED_CERTIFICATE"
        ),
        "{host} wants a certificate of its clients that it trusts: name one in the options clientCertificate and clientKey, which are "
        "for the sharing server and its token endpoint, or ask who runs it",
    ),
    (re.compile("UNRECOGNIZED_NAME"), _OTHER_HOST),
)


def beneath(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it wraps, in its arguments, ``reason``, cause or context; the innermost comes last."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        inner = [a for a in (*error.args, getattr(error, "reason", None)) if isinstance(a, BaseException)]
        error = inner[0] if inner else error.__cause__ or error.__context__


def forget_frames(error: BaseException) -> None:
    """Remove the tracebacks of an exception and of those it wraps, once our own error says what happened.

    A library's frame that holds its own error is in a cycle with it, and holds the frames of all callers. The bytes of a read
    would then stay in memory until the garbage collector runs, which few large objects seldom cause.
    """
    for inner in beneath(error):
        inner.__traceback__ = None


def _tls_reason(error: BaseException) -> tuple[str, str] | None:
    """Why TLS failed, and what to do, where no retry can mend it: a refused certificate, a version or key that one side does not take."""
    for inner in beneath(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            advice = _ADVICE_BY_CODE.get(inner.verify_code, _OWN_CERTIFICATES)
            return f"certificate verify failed: {inner.verify_message}", advice
        reason = inner.reason or "" if isinstance(inner, ssl.SSLError) else ""
        for pattern, advice in _ADVICE_BY_REASON:
            if pattern.search(reason):
                return reason.replace("_", " ").lower(), advice
    return None


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


def _is_of_proxy(error: BaseException) -> bool:
    return any(type(inner).__name__ == "ProxyError" for inner in beneath(error))


def final_reason(error: BaseException, host: str | None) -> str | None:
    """What failed and what to do, where no retry can mend it: a refused certificate, a proxy's refusal; else None."""
    if tls := _tls_reason(error):
        other_side = f"the proxy on the way to {host}" if _is_of_proxy(error) else host
        return f"TLS with {other_side} failed ({tls[0]}); {tls[1].format(host=other_side)}"
    if any(isinstance(inner, urllib3.exceptions.InvalidHeader) for inner in beneath(error)):  # two lengths
        return f"the headers of {host} contradict each other; look for a proxy in between, and ask the provider if there is none"
    answer = proxy_reason(error) or ""
    return proxy_refusal(answer, host) if _PROXY_REFUSES.match(answer) else None


def connection_reason(error: BaseException, url: str) -> str | None:
    """The reason if it is a usual one: a proxy, an unknown host, a port that nothing listens on, half an answer; else None."""
    parts = url_or_none(url)
    host, port = ("", 0) if parts is None else (parts.host, parts.port)
    if _is_of_proxy(error):
        why = proxy_reason(error)
        return f"the proxy on the way to {host} did not connect{f': {why}' if why else ''}"
    for inner in beneath(error):
        if isinstance(inner, socket.gaierror):
            is_passing = inner.errno == socket.EAI_AGAIN
            return f"the name {host} could not be looked up" if is_passing else f"there is no host of the name {host}"
        if isinstance(inner, ConnectionRefusedError):
            return f"{host} refused the connection: nothing listens on port {port}"
        if isinstance(inner, ConnectionResetError | BrokenPipeError):
            return f"{host} closed the connection"
        if isinstance(inner, http.client.IncompleteRead):
            return f"{host} ended its answer early"
        if isinstance(inner, http.client.BadStatusLine):
            return f"{host} did not answer in HTTP"
        if isinstance(inner, http.client.LineTooLong) or "more than 100 headers" in str(inner):
            return f"{host} sent more headers, or longer ones, than can be read"
        if isinstance(inner, ssl.SSLError):
            return f"TLS with {host} broke off"
        if isinstance(inner, OSError) and _NO_ROUTE.search(inner.strerror or ""):
            return f"there is no route to {host}"
        if isinstance(inner, TimeoutError):
            return f"{host} was silent for too long"
    if any(isinstance(inner, urllib3.exceptions.ProtocolError) for inner in beneath(error)):
        return f"{host} broke off its answer"
    return None
