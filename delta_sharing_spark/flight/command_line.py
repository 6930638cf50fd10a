"""Runs the command ``delta-sharing-spark flight``: a gateway until it is interrupted."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.network.process_end import leave_no_core_file
from delta_sharing_spark.sharing.identity import TOKEN_VARIABLE
from delta_sharing_spark.storage.user_files import UnfitFile, read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
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
    parser.add_argument(
        "--poll-port",
        type=int,
        metavar="PORT",
        help="answer PollFlightInfo, and what else plans, on this port too; 0 takes a free one",
    )


def settings_of(arguments: argparse.Namespace) -> GatewaySettings:
    """The gateway's settings; raises ConfigError where a file cannot be read, or holds no token or no key."""
    tokens = [*arguments.token, *os.environ.get(TOKEN_VARIABLE, "").split()]
    if arguments.token_file is not None:
        lines = _text(arguments.token_file).split()
        if not lines:
            raise ConfigError(f"{arguments.token_file} holds no token; write one a line")
        tokens += lines
    key = None
    if arguments.ticket_key is not None:
        try:
            key = bytes.fromhex(_text(arguments.ticket_key).strip())
        except ValueError:
            raise ConfigError(
                f"{arguments.ticket_key} is not 32 bytes in hex; make one with: openssl rand -hex 32"
            ) from None
    pem = (arguments.cert, arguments.key, arguments.mtls_ca)
    return GatewaySettings(
        arguments.listen,
        tuple(tokens) or None,
        *pem,
        key,
        tuple(arguments.advertise),
        poll_port=arguments.poll_port,
    )


def run(arguments: argparse.Namespace, options: Mapping[str, Any], out: TextIO, wait: Callable[[], None]) -> None:
    """Serve until ``wait`` returns.

    Args:
        out: Receives the gateway's address and, if it was drawn, its token.
        wait: Returns when the gateway is to end.
    """
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.flight.gateway import FlightGateway

    leave_no_core_file()
    settings = settings_of(arguments)
    with FlightGateway(SharingClient(arguments.profile or None, **options), settings) as gateway:
        out.write(f"A Flight gateway to {gateway.share} listens on {gateway.uri}\n")
        if gateway.poll_uri is not None:
            out.write(f"It answers polls on {gateway.poll_uri}\n")
        if settings.tokens is None and gateway.settings.tokens:
            out.write(f"Its token, drawn for this run: {gateway.settings.tokens[0]}\n")
        out.write("End it with Ctrl-C.\n")
        out.flush()
        wait()


def _text(path: Path) -> str:
    """The text of a file that decides who may call."""
    try:
        return read_text(str(path), decides=True)
    except UnfitFile as why:
        raise ConfigError(f"{path} is not used, for it {why}") from None
