"""Listings, authentication, versions, metadata, credentials: the endpoints that answer with one object."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import requests

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.server.sharing_server import JWT_BEARER
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from unit.testing.plain_http import Asker, lines, refused


def get(server: SharingServer, path: str, **parameters: Any) -> requests.Response:
    headers = {"Authorization": f"Bearer {server.token}"}
    return requests.get(f"{server.endpoint}/{path}", params=parameters, headers=headers, timeout=HANGS)


def all_names(server: SharingServer, path: str, size: int) -> list[str]:
    names, token = [], None
    while True:
        tree = get(server, path, maxResults=size, **({"pageToken": token} if token else {})).json()
        assert len(tree["items"]) <= size
        names += [item["name"] for item in tree["items"]]
        token = tree["nextPageToken"]
        if not token:
            return names


@pytest.mark.parametrize("size", [1, 2, 500])
def test_listings_in_pages(server: SharingServer, plain: DeltaTableBuilder, size: int) -> None:
    for name in ("my.share.x.one", "my.share.x.two", "my.share.y.three"):
        server.add_table(name, plain.path)
    assert all_names(server, "shares", size) == ["s", "my.share"]
    assert all_names(server, "shares/My.Share/schemas", size) == ["x", "y"]
    assert all_names(server, "shares/my.share/schemas/X/tables", size) == ["one", "two"]
    assert all_names(server, "shares/my.share/all-tables", size) == ["one", "two", "three"]
    assert get(server, "shares/MY.SHARE").json()["share"]["name"] == "my.share"


def test_listing_fields_and_variants(server: SharingServer, plain: DeltaTableBuilder) -> None:
    server.add_table("s.default.dir", plain.path, access_modes=["url", "dir"], auxiliary_locations=["file:///aux"])
    items = {i["name"]: i for i in get(server, "shares/s/all-tables").json()["items"]}
    assert "accessModes" not in items["plain"]
    assert items["dir"]["accessModes"] == ["url", "dir"]
    assert items["dir"]["location"] == plain.uri
    assert items["dir"]["auxiliaryLocations"] == ["file:///aux"]
    assert get(server, "shares", maxResults=0).json()["items"] == []
    assert get(server, "shares", maxResults=0).json()["nextPageToken"]
    assert "maxResults" in refused(get(server, "shares", maxResults=501), 400)
    server.settings.missing_items, server.settings.all_tables = True, False
    server.catalog.add_share("empty")
    assert get(server, "shares/empty/schemas").json() == {}
    refused(get(server, "shares/s/all-tables"), 404)
    for path in ("shares/x", "shares/s/schemas/x/tables", "shares/s/schemas/default/tables/x/version", "nonsense"):
        refused(get(server, path), 404)


def test_authentication(server: SharingServer) -> None:
    url = f"{server.endpoint}/shares"
    wrong = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {server.token}"})
    answers = [refused(requests.get(url, headers=headers, timeout=HANGS), 401) for headers in wrong]
    assert [answer for answer in answers if "bearer token" not in answer] == []
    server.identity.username, server.identity.password = "me", "päss"
    basic = base64.b64encode("me:päss".encode()).decode()
    assert requests.get(url, headers={"Authorization": f"Basic {basic}"}, timeout=HANGS).status_code == 200


@pytest.mark.skipif(os.name == "nt", reason="file modes")
def test_a_profile_is_its_owners_alone(server: SharingServer, tmp_path: Path) -> None:
    """Also where a file is replaced that others could read."""
    before = tmp_path / "before.share"
    before.touch(mode=0o644)
    paths = [server.write_profile(path) for path in (before, tmp_path / "new.share")]
    assert [oct(Path(path).stat().st_mode & 0o777) for path in paths] == ["0o600", "0o600"]


def test_oauth(server: SharingServer) -> None:
    server.identity.client_id, server.identity.client_secret = "client", "secret"
    form = {"grant_type": "client_credentials"}

    def token(**kwargs: Any) -> requests.Response:
        return requests.post(server.token_endpoint, timeout=HANGS, **kwargs)

    assert token(data=form, auth=("client", "wrong")).status_code == 401
    answered = token(data=form, auth=("client", "secret")).json()
    assert answered["expires_in"] == 3600
    headers = {"Authorization": f"Bearer {answered['access_token']}"}
    assert requests.get(f"{server.endpoint}/shares", headers=headers, timeout=HANGS).status_code == 200
    server.identity.revoke()
    refused(requests.get(f"{server.endpoint}/shares", headers=headers, timeout=HANGS), 401)
    server.identity.check_assertion = lambda claims, _: claims["iss"] == "client"

    def status_for(issuer: str) -> int:
        claims = base64.urlsafe_b64encode(json.dumps({"iss": issuer}).encode()).decode().rstrip("=")
        return token(data={"grant_type": JWT_BEARER, "assertion": f"h.{claims}.s"}).status_code

    assert [status_for("client"), status_for("other")] == [200, 401]
    assert server.identity.token_requests == 4


def test_versions(server: SharingServer, ask: Asker, plain: DeltaTableBuilder) -> None:
    assert ask.get("version").headers["delta-table-version"] == "4"
    plain.append([{"id": 100}])
    assert ask.get("version").headers["delta-table-version"] == "5"
    assert requests.head(ask.base, headers=ask.headers, timeout=HANGS).headers["delta-table-version"] == "5"
    # Version v was committed v + 1 ticks after the builder's first look at the clock.
    stamps = {v: c[0]["commitInfo"]["timestamp"] for v, c in plain.commits.items()}
    assert stamps[0] == 1_700_000_000_000
    texts = ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20.001Z", "2023-11-14T23:13:22%2B01:00")
    answered = [ask.get(f"version?startingTimestamp={text}").headers["delta-table-version"] for text in texts]
    assert answered == ["0", "1", "2"]
    assert "after the newest version" in refused(ask.get("version?startingTimestamp=2030-01-01T00:00:00Z"), 400)
    assert "offset" in refused(ask.get("version?startingTimestamp=2030-01-01T00:00:00"), 400)
    server.settings.version_by_get = False
    refused(ask.get("version"), 404)


def test_metadata(server: SharingServer, ask: Asker) -> None:
    protocol, metadata = lines(ask.get("metadata"))
    assert protocol == {"protocol": {"minReaderVersion": 1}}
    assert metadata["metaData"]["numFiles"] == 3
    assert metadata["metaData"]["partitionColumns"] == ["city"]
    earlier = [ask.get(f"metadata?{query}") for query in ("version=1", "timestamp=2023-11-14T22:13:22.5Z")]
    assert [answered.headers["delta-table-version"] for answered in earlier] == ["1", "2"]
    assert [lines(answered)[1]["metaData"]["version"] for answered in earlier] == [1, 2]
    server.settings.announce_size = False
    assert "size" not in lines(ask.get("metadata"))[1]["metaData"]
    delta = ask.get("metadata", "responseFormat=DELTA;includeEndStreamAction=true")
    assert lines(delta)[0]["protocol"]["deltaProtocol"]["minReaderVersion"] == 1
    assert lines(delta)[-1] == {"endStreamAction": {}}
    assert delta.headers["delta-sharing-capabilities"] == "responseformat=delta;includeEndStreamAction=true"


def test_credentials(server: SharingServer, plain: DeltaTableBuilder) -> None:
    ask = Asker(server, "s.default.plain")
    assert "not supported" in refused(ask.query(path="temporary-table-credentials"), 400)
    server.add_table("s.default.plain", plain.path, access_modes=["dir"], auxiliary_locations=["s3://aux/x"])
    assert "accessModes" in refused(ask.query(), 400)
    answered = ask.query(path="temporary-table-credentials").json()["credentials"]
    assert answered["location"] == plain.uri
    assert set(answered) == {"location", "expirationTime"}
    for location in ("s3://aux/xy", "file:///etc"):
        refused(ask.query({"location": location}, path="temporary-table-credentials"), 400)
    assert "scheme s3" in refused(ask.query({"location": "s3://aux/x"}, path="temporary-table-credentials"), 400)
    secret = {"awsTempCredentials": {"accessKeyId": "a"}, "expirationTime": 1}
    server.vendors["s3"] = lambda location, table: dict(secret, seen=f"{table} {location}")
    answered = ask.query({"location": "s3://aux/x"}, path="temporary-table-credentials").json()["credentials"]
    assert answered == {"location": "s3://aux/x", "seen": "s.default.plain s3://aux/x", **secret}
