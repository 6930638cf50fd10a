"""Secrets of each cloud, as the sharing server's answer would hold them."""

from __future__ import annotations

from delta_sharing_spark.storage.clouds.contract import Secret


def aws_session(key: str, secret: str, token: str | None = None, kind: str = "aws") -> Secret:
    """A session's keys; those of Cloudflare are of the kind ``r2``."""
    parts = {"accessKeyId": key, "secretAccessKey": secret}
    return Secret(kind, parts if token is None else {**parts, "sessionToken": token})


def azure_sas(text: str) -> Secret:
    return Secret("azure", {"sasToken": text})


def gcp_bearer(text: str) -> Secret:
    return Secret("gcp", {"oauthToken": text})


def no_secret() -> Secret:
    return Secret("local")
