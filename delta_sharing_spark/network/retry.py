"""Decides when a request is retried and given up, alike for the sharing server, data URLs and storage, and says why a connection failed."""

from __future__ import annotations

import http.client
import logging
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import urllib3

from delta_sharing_spark import metrics
from delta_sharing_spark.errors import DeltaSharingError, ServerError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.urls import url_or_none
from delta_sharing_spark.network.waits import FIRST, say_waiting
from delta_sharing_spark.redaction import redact

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Without a state: a fork does not repeat its parent's draws, and nobody's seeded generator is moved on.
JITTER = random.SystemRandom()
#: Retry-After is honoured up to this many seconds.
LONGEST_RETRY_AFTER = 300.0
#: So often in a row an answer may hold other bytes than asked for.
_MAX_WRONG_RANGES = 3
#: So many 500s in the same words are the server's last word on a request; they come within five seconds.
_MAX_SAME_500 = 3
#: So many answers that cannot be read for the same thing in them are the server's own, and no damage on the way.
_MAX_SAME_ANSWERS = 2
_WAITS_AFTER_500 = (1.0, 3.0)


class RetryableError(Exception):
    """A failure that a retry may mend. It never reaches a user.

    Args:
        reason: The error to raise once the retries are used up, or a text that the caller makes one of.

    Attributes:
        error: That error, if it was one.
        wait: The seconds of ``Retry-After``.
        is_first_contact: Whether the host has never answered this process, so that retries end soon.
        busy: Whether the other side answered that it is not ready.
        cause: What in an answer could not be read; the same one again is no damage on the way. None for other failures.
        permanent: Whether the same failure came so often that no retry will help.
    """

    permanent = False

    def __init__(
        self,
        reason: str | DeltaSharingError,
        wait: float | None = None,
        *,
        is_first_contact: bool = False,
        busy: bool = False,
        cause: object = None,
    ) -> None:
        super().__init__(str(reason))
        self.error = reason if isinstance(reason, DeltaSharingError) else None
        self.wait, self.is_first_contact, self.busy, self.cause = wait, is_first_contact, busy, cause


class WrongRangeError(RetryableError):
    """An answer holds other bytes than asked for."""


def retry(
    call: Callable[[], _T],
    settings: NetworkSettings,
    *,
    reached: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] | None = None,
    what: str = "",
) -> _T:
    """Call until no ``RetryableError`` is raised, with growing, jittered waits or those that ``Retry-After`` asks for.

    Args:
        call: Makes one request, from where the last one ended.
        settings: How long retries go on, and with what waits.
        reached: Bytes that have arrived, over all tries. Progress starts the count of tries anew; the time stays.
        sleep: Waits instead of the settings' function; may raise to end the tries.
        what: The request's name in the log.

    Raises:
        RetryableError: The last one, once the tries or the time are used up.
    """
    tries = _Tries(settings, reached)
    while True:
        try:
            return call()
        except RetryableError as failure:
            if (pause := tries.pause_after(failure)) is None:
                raise
            _log.info("%s: trying again in %.1f s: %s", what, pause, failure)
            metrics.count(metrics.RETRIES, 1, table=settings.table, server=settings.server)
            tries.say(what, failure, pause)
        (sleep or settings.sleep)(pause)


class _Tries:
    """Decides about the retries of one call."""

    def __init__(self, settings: NetworkSettings, reached: Callable[[], int]) -> None:
        self._settings, self._reached = settings, reached
        self._start = settings.clock()
        self._progress = self._failures = self._wrong_ranges = self._same = 0
        self._cause: object = None
        self._bound = settings.retry_seconds

    def say(self, what: str, failure: RetryableError, pause: float) -> None:
        """Tell whoever waits what the tries wait for, where the next one comes late."""
        now = self._settings.clock()
        if now + pause - self._start >= FIRST:
            say_waiting(what, str(failure), now, now - self._start, self._bound, "retryTimeout")

    def pause_after(self, failure: RetryableError) -> float | None:
        """Seconds before the next try; None to give up."""
        self._count(failure)
        settings = self._settings
        grown = backoff(self._failures, settings.first_wait, settings.longest_wait)
        if failure.wait is not None:
            # A little more than what was asked for, so that clients part.
            pause = max(failure.wait * JITTER.uniform(1.0, 1.1), min(grown, 1.0))
        elif _status(failure) == 500 and self._failures <= len(_WAITS_AFTER_500):
            # A server that stumbles has time to recover before it is held to have failed for good.
            pause = _WAITS_AFTER_500[self._failures - 1] * JITTER.uniform(0.5, 1.0)
        else:
            pause = grown
        bound = settings.retry_seconds
        if failure.is_first_contact or _status(failure) == 500:
            # A host never reached may not exist, and a 500 is a fault of the server more often than a busy one.
            bound = min(bound, settings.first_contact_seconds)
        self._bound = bound
        failure.permanent = self._same >= (_MAX_SAME_500 if failure.cause is None else _MAX_SAME_ANSWERS)
        is_late = settings.clock() + pause > self._start + bound
        return None if is_late or failure.permanent or self._wrong_ranges > _MAX_WRONG_RANGES else pause

    def _count(self, failure: RetryableError) -> None:
        reached = self._reached()
        if reached > self._progress:
            self._progress, self._failures, self._wrong_ranges = reached, 0, 0
        self._failures += 1
        self._wrong_ranges += isinstance(failure, WrongRangeError)
        error, cause = failure.error, failure.cause
        if isinstance(error, ServerError) and error.status == 500:
            cause = error.error_code, error.server_message
        self._same = (self._same + 1 if cause == self._cause else 1) if cause is not None else 0
        self._cause = cause


def _status(failure: RetryableError) -> int | None:
    return getattr(failure.error, "status", None)


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds before the try after ``failures`` ones in a row: doubling, with jitter, at most ``longest``."""
    return min(longest, first * 2.0 ** min(failures - 1, 30)) * JITTER.uniform(0.5, 1.0)


def retry_after(text: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or a date; None if it is neither.

    >>> retry_after("7"), retry_after("soon"), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=lambda: 50.0)
    (7.0, None, 10.0)
    """
    text = (text or "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    moment = http_seconds(text)
    return None if moment is None else max(0.0, min(moment - now(), LONGEST_RETRY_AFTER))


def http_seconds(text: str) -> float | None:
    """HTTP's date in seconds since the epoch; None if it is none."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


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


def _is_tls_final(error: BaseException) -> bool:
    """Whether no retry can mend a failure of TLS: a refused certificate, a version or a key that one side does not take."""
    for inner in beneath(error):
        if isinstance(inner, ssl.SSLCertVerificationError | ssl.CertificateError):
            return True
        if isinstance(inner, ssl.SSLError) and any(at.search(inner.reason or "") for at, _ in _ADVICE_BY_REASON):
            return True
    return False


def _tls_failure(error: BaseException, host: str | None) -> str:
    """What failed, why, and what to do, such as ``TLS with example.com failed (certificate verify failed: ...); ...``."""
    reason, advice = "the connection broke off", "check the network and any proxy in between"
    for inner in beneath(error):
        if isinstance(inner, ssl.SSLCertVerificationError):
            reason = f"certificate verify failed: {inner.verify_message}"
            advice = _ADVICE_BY_CODE.get(inner.verify_code, _OWN_CERTIFICATES)
            break
        if isinstance(inner, ssl.SSLError) and inner.reason:
            reason = inner.reason.replace("_", " ").lower()
            advice = next((advice for pattern, advice in _ADVICE_BY_REASON if pattern.search(inner.reason)), advice)
            break
    return f"TLS with {host} failed ({reason}); {advice.format(host=host)}"


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
    if _is_tls_final(error):
        return _tls_failure(error, f"the proxy on the way to {host}" if _is_of_proxy(error) else host)
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
