"""Holds the certificate that is shown to a sharing server which demands one of its clients, and loads it for TLS."""

from __future__ import annotations

import os
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from urllib3.util.ssl_ import create_urllib3_context

from delta_sharing_spark.errors import OptionError

_LARGEST = 1 << 20
#: Where the key's password stands if no option names it.
PASSWORD_VARIABLE = "DELTA_SHARING_CLIENT_KEY_PASSWORD"  # noqa: S105  # a name


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate and its key, both PEM, by their files. An executor, which may not have the files, holds their bytes.

    Attributes:
        certificate_file: The certificate, with the chain above it, and its key unless that has a file of its own.
        key_file: The key.
        password: The key's password; None where the environment may have it.
        contents: The bytes of both files, instead of what they hold now.
    """

    certificate_file: str
    key_file: str | None = None
    password: str | None = field(default=None, repr=False)
    contents: tuple[bytes, bytes] | None = field(default=None, repr=False)

    def with_bytes(self) -> ClientCertificate:
        """The same for another machine; raises OptionError where a file cannot be read."""
        return replace(self, contents=self._read(), password=self._password)

    def state(self) -> tuple[int, ...]:
        """What changes when one of the files is written anew, as certificates of hours are."""
        if self.contents is not None:
            return ()
        try:
            states = [os.stat(path) for path in (self.certificate_file, self._key_path)]
        except OSError:
            return ()  # said when it is loaded
        return tuple(number for state in states for number in (state.st_mtime_ns, state.st_size))

    def context(self) -> ssl.SSLContext:
        """A TLS context that shows the certificate to servers which ask for one.

        Raises:
            OptionError: A file that is missing or no PEM, a certificate that has ended, a key that is another certificate's, a
                password that is missing or wrong; names the option.
        """
        certificate, key = self._read()
        self._check_pem(certificate, key)
        context: ssl.SSLContext = create_urllib3_context()
        needs_password = False

        def password() -> str:
            nonlocal needs_password
            needs_password = True
            return self._password or ""

        try:
            with ExitStack() as stack:
                paths = [self.certificate_file, self._key_path]
                if self.contents is not None and not self._is_here():
                    paths = [stack.enter_context(_path_of(data)) for data in (certificate, key)]
                self._check_time(paths[0])
                context.load_cert_chain(paths[0], paths[1], password)
        except (ssl.SSLError, ValueError) as error:
            raise self._refused(error, needs_password=needs_password) from None
        return context

    @property
    def _password(self) -> str | None:
        return self.password if self.password is not None else os.environ.get(PASSWORD_VARIABLE)

    @property
    def _key_path(self) -> str:
        return self.key_file or self.certificate_file

    def _read(self) -> tuple[bytes, bytes]:
        if self.contents is not None:
            return self.contents
        certificate = _bytes_of(self.certificate_file, "clientCertificate")
        return certificate, _bytes_of(self.key_file, "clientKey") if self.key_file else certificate

    def _is_here(self) -> bool:
        """Whether the files of this machine have the bytes of ``contents``."""
        try:
            return replace(self, contents=None)._read() == self.contents
        except OptionError:
            return False

    def _check_pem(self, certificate: bytes, key: bytes) -> None:
        if b"-----BEGIN CERTIFICATE-----" not in certificate:
            raise OptionError(
                f"the client certificate {self.certificate_file} holds no certificate in PEM; name a PEM file, made of another "
                f"form by openssl",
                option="clientCertificate",
            )
        if b"PRIVATE KEY-----" not in key:
            advice = "name a PEM file of the key" if self.key_file else "name the file of its key in clientKey"
            raise OptionError(f"{self._key_path} holds no private key in PEM; {advice}", option="clientKey")

    def _check_time(self, path: str) -> None:
        # Not public; where a Python has it not, the server's alert tells.
        decode: Any = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
        if decode is None:
            return
        fields = decode(path)
        begins, ends = (ssl.cert_time_to_seconds(fields[name]) for name in ("notBefore", "notAfter"))
        now = time.time()
        if begins <= now <= ends:
            return
        moment = datetime.fromtimestamp(ends if now > ends else begins, timezone.utc)
        how = "expired at" if now > ends else "is not valid before"
        raise OptionError(
            f"the client certificate {self.certificate_file} {how} {moment:%Y-%m-%dT%H:%M:%SZ}; ask whoever issued it for a new "
            f"one, and check the clock of this machine",
            option="clientCertificate",
        )

    def _refused(self, error: Exception, *, needs_password: bool) -> OptionError:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            return OptionError(
                f"the key {self._key_path} is not that of the client certificate {self.certificate_file}; name the two of one pair",
                option="clientKey",
            )
        if needs_password:
            problem = "is not the right one" if self._password else "is missing"
            return OptionError(
                f"the key {self._key_path} is encrypted, and its password {problem}; give it by the option clientKeyPassword or "
                f"{PASSWORD_VARIABLE}",
                option="clientKeyPassword",
            )
        return OptionError(
            f"the client certificate {self.certificate_file} or its key {self._key_path} cannot be read "
            f"({getattr(error, 'reason', None) or type(error).__name__}); check both files",
            option="clientCertificate",
        )


def _bytes_of(path: str, option: str) -> bytes:
    why: str | None = "it is no regular file of 1 MiB at most"
    try:
        state = os.stat(path)
        if stat.S_ISREG(state.st_mode) and state.st_size <= _LARGEST:
            with open(path, "rb") as file:
                return file.read(_LARGEST)
    except OSError as error:
        why = error.strerror
    raise OptionError(f"the file {path} of the option {option} cannot be read ({why}); correct the path", option=option)


@contextmanager
def _path_of(data: bytes) -> Iterator[str]:
    """A path by which OpenSSL, which reads nothing else, finds bytes that are on no disk."""
    if not hasattr(os, "memfd_create"):
        raise OptionError(
            f"a client certificate cannot be handed to executors on {sys.platform}; set carryProfile to false",
            option="clientCertificate",
        )
    number = os.memfd_create("delta-sharing-certificate")
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
