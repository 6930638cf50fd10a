"""A recipient for each way in which a sharing server knows who asks, and the secrets of all of them."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path
from typing import Any

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from support.buckets import BucketServer
from unit.sharing.test_authentication import jwt_of, write_key

#: The ways: a bearer token, an OAuth client's secret, a password, a private key, a token of an identity, a gateway's token.
RECIPIENTS = ("bearer", "oauth", "basic", "key", "identity", "flight")


class Recipients:
    """Has a server accept all of them.

    Args:
        directory: Receives their profiles, tokens and key.
    """

    def __init__(self, server: BucketServer, directory: Path) -> None:
        self._server, self._directory = server, directory
        identity, drawn = server.identity, secrets.token_urlsafe(24)
        self._flight_token, self._assertions = secrets.token_urlsafe(24), list[str]()
        identity.client_id, identity.client_secret = "client-of-the-test", "secret-of-the-client-of-the-test"
        identity.username, identity.password = "user-of-the-test", "password-of-the-test"
        identity.check_token = lambda token: token == drawn
        identity.check_assertion = lambda claims, text: self._assertions.append(text) is None
        (directory / "token").write_text(drawn)
        (directory / "flight-token").write_text(self._flight_token)
        write_key(directory / "key.pem", "rsa")
        for kind in ("bearer_token", "oauth_client_credentials", "basic"):
            server.write_profile(directory / f"{kind}.share", kind)
        origin = f"http://{server.address}"
        fields: dict[str, Any] = {"tokenEndpoint": server.token_endpoint, "issuer": f"{origin}/issuer"}
        profile = jwt_of(server, directory / "key.pem", "RS256", **fields) | {"endpoint": server.endpoint}
        (directory / "key.share").write_text(json.dumps(profile))
        header = base64.b64encode(f"{identity.username}:{identity.password}".encode()).decode()
        self._secrets = [server.token, identity.client_secret, identity.password, header, drawn, self._flight_token]
        self._secrets += ["X-Amz-Signature=", *(directory / "key.pem").read_text().splitlines()[1:3]]

    @property
    def secrets(self) -> list[str]:
        """What may show nowhere, the credentials among it that the server has given out so far."""
        drawn = [*self._server.issued, *self._server.identity.issued, *self._assertions]
        return [*self._secrets, *drawn]

    def gateway(self, options: dict[str, Any]) -> FlightGateway:
        """A Flight gateway that holds a profile with the bearer token."""
        client = SharingClient(self._server.profile(), **options)
        return FlightGateway(client, GatewaySettings(tokens=(self._flight_token,), key=bytes(range(32))))

    def asks(self, recipient: str, gateway: FlightGateway | None = None) -> tuple[str | None, dict[str, str]]:
        """The profile's path of a recipient, and the options that say the rest."""
        here = self._directory
        profile = {"bearer": "bearer_token", "oauth": "oauth_client_credentials"}.get(recipient, recipient)
        allows = {"identityEndpoint": self._server.endpoint}
        if recipient == "key":
            allows |= {"privateKeyFile": str(here / "key.pem"), "privateKeyOrigin": f"http://{self._server.address}"}
            return str(here / "key.share"), allows
        if recipient == "identity":
            return None, {"bearerTokenFile": str(here / "token"), **allows}
        if recipient == "flight":
            assert gateway is not None
            return None, {"gateway": gateway.uri, "gatewayTokenFile": str(here / "flight-token")}
        return str(here / f"{profile}.share"), {}
