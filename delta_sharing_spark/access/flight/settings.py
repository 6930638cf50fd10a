"""Makes a gateway's address of a load's options, and reads the certificate files that they name."""

from __future__ import annotations

import os
from pathlib import Path

from delta_sharing_spark.access.flight.connection import TOKEN_FORM, TOKEN_VARIABLE, GatewayAddress
from delta_sharing_spark.errors import ProfileError
from delta_sharing_spark.options import ReadOptions


def gateway_address(options: ReadOptions) -> GatewayAddress:
    """The gateway of a load, with the token and the certificates it is called with.

    Raises:
        ProfileError: A file cannot be read; the token cannot be sent.
    """
    assert options.gateway is not None
    token = options.gateway_token or _text(options.gateway_token_file) or os.environ.get(TOKEN_VARIABLE, "")
    token = token.strip()
    if token and not TOKEN_FORM.fullmatch(token):
        raise ProfileError(
            "the Flight gateway's token has a blank, or a letter beyond ASCII, which no header carries; "
            "give one of the gateway's tokens"
        )
    return GatewayAddress(
        options.gateway,
        token or None,
        _text(options.ca_bundle),
        _text(options.gateway_certificate),
        _text(options.gateway_key),
        options.read_timeout,
        options.retry_timeout,
    )


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"the file {path} of a Flight gateway's options cannot be read ({type(error).__name__}); check its path and rights"
        ) from None
