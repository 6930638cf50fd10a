"""Listings, names, authentication: over plain HTTP."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import requests
from conftest import Http

from delta_sharing_spark.sharing.profile import load_profile
from delta_sharing_spark.testing.server import SharingServer


@pytest.fixture
def many(server: SharingServer, tmp_path: Path) -> SharingServer:
    for share in ("one", "Two.Parts", "three"):
        for table in range(5):
            server.add_table(f"{share}.default.t{table}", tmp_path, comment=f"table {table}")
    server.add_table("one.other.öäü 空", tmp_path)
    server.catalog.add_share("one", displayName="Number one", comment="first", properties={"k": "v"})
    server.catalog.add_share("empty")
    return server


def test_shares(many: SharingServer, http: Http) -> None:
    items = http.get("/shares").json()["items"]
    assert [i["name"] for i in items] == ["one", "Two.Parts", "three", "empty"]
    assert items[0] | {"id": ""} == {
        "name": "one",
        "id": "",
        "displayName": "Number one",
        "comment": "first",
        "properties": {"k": "v"},
    }
    assert http.get("/shares/TWO.PARTS").json()["share"]["name"] == "Two.Parts"


def test_schemas_and_tables(many: SharingServer, http: Http) -> None:
    schemas = http.get("/shares/ONE/schemas").json()["items"]
    assert schemas == [{"name": "default", "share": "one"}, {"name": "other", "share": "one"}]
    tables = http.get("/shares/one/schemas/Default/tables").json()["items"]
    assert [(t["share"], t["schema"], t["name"], t["comment"]) for t in tables] == [
        ("one", "default", f"t{n}", f"table {n}") for n in range(5)
    ]
    assert "accessModes" not in tables[0]
    every = http.get("/shares/one/all-tables").json()["items"]
    assert len(every) == 6
    assert every[-1]["name"] == "öäü 空"
    many.settings.all_tables = False
    assert http.get("/shares/one/all-tables").status_code == 404


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("by", ["client", "server"])
def test_pages(many: SharingServer, http: Http, size: int, by: str) -> None:
    if by == "server":
        many.settings.list_page_size = size
    names, token = [], None
    for _ in range(20):
        params = {"maxResults": size} if by == "client" else {}
        answer = http.get("/shares/one/all-tables", params=params | ({"pageToken": token} if token else {})).json()
        assert len(answer["items"]) <= size
        names += [i["name"] for i in answer["items"]]
        token = answer.get("nextPageToken")
        if not token:
            break
    assert names == ["t0", "t1", "t2", "t3", "t4", "öäü 空"]


def test_empty_listing(many: SharingServer, http: Http) -> None:
    assert http.get("/shares/empty/schemas").json() == {"items": [], "nextPageToken": ""}
    many.settings.missing_items = True
    assert http.get("/shares/empty/schemas").json() == {}
    assert http.get("/shares/one/schemas", params={"maxResults": 0}).json()["nextPageToken"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/shares/none", 404, "RESOURCE_DOES_NOT_EXIST"),
        ("/shares/none/schemas", 404, "RESOURCE_DOES_NOT_EXIST"),
        ("/shares/one/schemas/none/tables", 404, "RESOURCE_DOES_NOT_EXIST"),
        ("/shares/one/schemas/default/tables/none/version", 404, "RESOURCE_DOES_NOT_EXIST"),
        ("/nothing", 404, "RESOURCE_DOES_NOT_EXIST"),
        ("/shares?maxResults=501", 400, "INVALID_PARAMETER_VALUE"),
        ("/shares?maxResults=-1", 400, "INVALID_PARAMETER_VALUE"),
        ("/shares?pageToken=nonsense", 400, "INVALID_PARAMETER_VALUE"),
    ],
)
def test_errors(many: SharingServer, http: Http, path: str, status: int, code: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.json()["errorCode"]) == (status, code)
    assert set(answer.json()) == {"errorCode", "message"}


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic eDp5", "nonsense"])
def test_unauthenticated(server: SharingServer, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = requests.get(f"{server.endpoint}/shares", headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["errorCode"]) == (401, "UNAUTHENTICATED")
    assert requests.post(f"{server.endpoint}/shares/a/b/query", headers=headers, timeout=20).status_code == 401


def test_basic_authentication(server: SharingServer) -> None:
    server.identity.username, server.identity.password = "me", "pass:wörd"
    good = requests.get(f"{server.endpoint}/shares", auth=(b"me", "pass:wörd".encode()), timeout=20)
    bad = requests.get(f"{server.endpoint}/shares", auth=("me", "else"), timeout=20)
    assert (good.status_code, bad.status_code) == (200, 401)
    assert server.profile("basic")["username"] == "me"


def test_oauth_tokens(server: SharingServer) -> None:
    server.identity.client_id, server.identity.client_secret = "client", "secret"
    form = {"grant_type": "client_credentials", "scope": "all"}
    refused = requests.post(server.token_endpoint, data=form, auth=("client", "wrong"), timeout=20)
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
    issued = requests.post(server.token_endpoint, data=form, auth=("client", "secret"), timeout=20).json()
    assert issued["expires_in"] == 3600
    headers = {"Authorization": f"Bearer {issued['access_token']}"}
    assert requests.get(f"{server.endpoint}/shares", headers=headers, timeout=20).status_code == 200
    server.identity.revoke()
    assert requests.get(f"{server.endpoint}/shares", headers=headers, timeout=20).status_code == 401
    server.identity.token_ttl = 0
    late = requests.post(server.token_endpoint, data=form, auth=("client", "secret"), timeout=20).json()
    headers = {"Authorization": f"Bearer {late['access_token']}"}
    assert requests.get(f"{server.endpoint}/shares", headers=headers, timeout=20).status_code == 401
    assert server.identity.token_requests == 3


def test_profiles_load(server: SharingServer, tmp_path: Path) -> None:
    path = server.write_profile(tmp_path / "profile.share")
    assert Path(path).stat().st_mode & 0o077 == 0
    profile = load_profile(path)
    assert profile.endpoint == server.endpoint
    assert "T" in server.profile(expires_in=timedelta(seconds=-1))["expirationTime"]
    server.identity.client_id, server.identity.client_secret = "client", "secret"
    assert load_profile(server.profile("oauth_client_credentials")).endpoint == server.endpoint


def test_names_are_quoted_segment_by_segment(server: SharingServer, http: Http, tmp_path: Path) -> None:
    server.add_table("a share?.sch#ema.t%2F", tmp_path)
    answer = http.get("/shares/a%20share%3F/schemas/sch%23ema/tables")
    assert [i["name"] for i in answer.json()["items"]] == ["t%2F"]


def test_records(server: SharingServer, http: Http) -> None:
    http.get("/shares", headers={"X-Test": "1"})
    http.post("/shares/x/schemas/y/tables/z/query", {"limitHint": 3})
    first, second = server.requests
    assert (first.method, first.kind, first.status, first.path) == ("GET", "shares", 200, "/delta-sharing/shares")
    assert (first.headers["x-test"], first.headers["authorization"]) == ("1", "")
    assert (second.kind, second.status, second.json) == ("query", 404, {"limitHint": 3})
    assert first.connection == second.connection
    assert server.token not in repr(list(server.requests))
    server.reset_metrics()
    assert server.count() == 0
