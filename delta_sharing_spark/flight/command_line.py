"""The command ``delta-sharing-spark flight``: a gateway until it is interrupted."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from delta_sharing_spark.access.flight.connection import TOKEN_VARIABLE
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.flight.settings import GatewaySettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("profile", nargs="?", help="a profile (DELTA_SHARING_PROFILE where it is left out)")
    parser.add_argument(
        "--listen", default="grpc+tcp://127.0.0.1:0", metavar="URI", help="grpc+tcp://HOST:PORT or grpc+tls://HOST:PORT"
    )
    parser.add_argument("--cert", type=Path, metavar="PEM", help="the server's certificate, for grpc+tls")
    parser.add_argument("--key", type=Path, metavar="PEM", help="its private key")
    parser.add_argument("--mtls-ca", type=Path, metavar="PEM", help="callers must have certificates of this authority")
    parser.add_argument(
        "--token",
        action="append",
        default=[],
        help=f"a token that may call; better in --token-file or {TOKEN_VARIABLE}",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="tokens that may call, one a line")
    parser.add_argument("--ticket-key", type=Path, metavar="FILE", help="32 bytes in hex that several gateways share")
    parser.add_argument(
        "--advertise", action="append", default=[], metavar="URI", help="an address that clients fetch from"
    )


def settings_of(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> GatewaySettings:
    """The gateway's settings.

    Raises:
        ConfigError: A file cannot be read, or holds no token or no key.
    """
    tokens = [*given.token, *environment.get(TOKEN_VARIABLE, "").split()]
    if given.token_file is not None:
        lines = _text(given.token_file).split()
        if not lines:
            raise ConfigError(f"{given.token_file} holds no token; write one a line")
        tokens += lines
    key = None
    if given.ticket_key is not None:
        try:
            key = bytes.fromhex(_text(given.ticket_key).strip())
        except ValueError:
            raise ConfigError(
                f"{given.ticket_key} is not 32 bytes in hex; make one with: openssl rand -hex 32"
            ) from None
    return GatewaySettings(
        given.listen,
        tuple(tokens) or None,
        given.cert,
        given.key,
        given.mtls_ca,
        key,
        tuple(given.advertise),
    )


def run(given: argparse.Namespace, options: Mapping[str, str], out: TextIO, wait: Callable[[], None]) -> None:
    """Serve until ``wait`` returns.

    Args:
        given: The arguments.
        options: Options of every load.
        out: Where the address is told and, where it was drawn, the token.
        wait: Returns when the gateway is to end.
    """
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.flight.gateway import FlightGateway

    settings = settings_of(given)
    with FlightGateway(SharingClient(given.profile or None, **options), settings) as gateway:
        out.write(f"A Flight gateway to {gateway.share} listens on {gateway.uri}\n")
        if settings.tokens is None and gateway.settings.tokens:
            out.write(f"Its token, drawn for this run: {gateway.settings.tokens[0]}\n")
        out.write("End it with Ctrl-C.\n")
        out.flush()
        wait()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}); check its path and rights") from None
