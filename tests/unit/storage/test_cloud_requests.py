"""What the three clouds are asked: signatures beside botocore's, URLs, pages, and answers that are none."""

from __future__ import annotations

import json
import pickle
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import FileError
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.storage.answers import StorageRefusal, action_of, failure_of, is_sure, reason_of
from delta_sharing_spark.storage.clouds import s3
from delta_sharing_spark.storage.clouds.azure import Azure
from delta_sharing_spark.storage.clouds.contract import UnreadableAnswer
from delta_sharing_spark.storage.clouds.gcs import Google
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.clouds.s3 import S3, sign
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from support import HANGS
from support.cloud_secrets import aws_session, azure_sas, gcp_bearer
from support.drawing import cases
from support.refusals import not_refused

SESSION = aws_session("AKIDEXAMPLE", "secret/key+", "session/token==")
NOW = 1_795_251_600.0
_names = st.text("abAB09-_.~/ %+&=?#:;'*()é日", min_size=1, max_size=12).filter(lambda t: "/." not in f"/{t}")


@cases(200)
@given(
    _names,
    st.sampled_from(["http://127.0.0.1:9000", "https://minio.example", "https://h:443", "http://[::1]:9"]),
    _names,
)
def test_signatures_are_botocores(key: str, endpoint: str, prefix: str) -> None:
    """Of the URL as it is sent, by path and by query."""
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    cloud = S3(SESSION, StorageSettings(endpoint=endpoint, region="eu-west-1"))
    location = parse_location("s3://bucket/t")
    urls = [
        cloud.list_url(location, prefix, prefix + "x", None),
        cloud.list_url(location, prefix, prefix, f"{key}=="),
        f"{endpoint}/bucket/{quote(key, safe='/-_.~')}",
    ]

    def theirs(url: str, ours: dict[str, str]) -> str:
        request = AWSRequest("GET", url, headers={"x-amz-content-sha256": ours["x-amz-content-sha256"]})
        request.context["timestamp"] = ours["x-amz-date"]
        request.headers["X-Amz-Date"] = ours["x-amz-date"]
        request.headers["X-Amz-Security-Token"] = SESSION.parts["sessionToken"]
        signer = auth.S3SigV4Auth(Credentials(*SESSION.parts.values()), "s3", "eu-west-1")
        return str(signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request))

    ours = {url: sign("GET", url, SESSION.parts, "eu-west-1", NOW) for url in urls}
    signatures = {url: headers["Authorization"].rpartition("Signature=")[2] for url, headers in ours.items()}
    assert signatures == {url: theirs(url, headers) for url, headers in ours.items()}


def test_what_is_sent_is_what_was_signed() -> None:
    """The request line and the Host header, as a server sees them, whatever the key is called."""
    names = [
        "a b",
        "a%20b",
        "a+b~",
        "ä",
        "a#b",
        "a=b&c",
        "a;b",
        "a'b",
        "a,b@c:d",
        "a?b",
        "a%3Fb",
        "a//b",
        "(*!$)",
        "..a",
        "%2E%2e",
    ]
    seen: list[tuple[str, str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(404)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        storage = Storage(parse_location("s3://bucket/t"), SESSION, StorageSettings(endpoint=endpoint))
        locations = [parse_location(f"s3://bucket/t/{name}") for name in names]
        actions = [partial(action, location) for action in (storage.get, storage.info) for location in locations]
        actions += [partial(storage.list_from, *at) for at in zip(locations, names, strict=True)]
        assert not_refused(FileNotFoundError, "", *actions) == []
        server.shutdown()
    assert len(seen) == 3 * len(names)

    def signature(method: str, path: str, headers: dict[str, str]) -> str:
        moment = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%S%z").timestamp()
        return sign(method, f"{endpoint}{path}", SESSION.parts, "us-east-1", moment)["Authorization"]

    assert [path for method, path, sent in seen if sent["authorization"] != signature(method, path, sent)] == []
    assert {headers["host"] for *_, headers in seen} == {f"127.0.0.1:{server.server_port}"}
    assert {unquote(path) for method, path, _ in seen if method == "HEAD"} == {f"/bucket/t/{name}" for name in names}


@pytest.mark.parametrize(
    ("bucket", "region", "url"),
    [
        ("bucket", None, "https://bucket.s3.us-east-1.amazonaws.com/t/a%20b%2Bc"),
        ("bucket", "cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn/t/a%20b%2Bc"),
        ("bucket", "us-isob-east-1", "https://bucket.s3.us-isob-east-1.sc2s.sgov.gov/t/a%20b%2Bc"),
        ("a.b", "eu-west-1", "https://s3.eu-west-1.amazonaws.com/a.b/t/a%20b%2Bc"),
        ("Old_Bucket", "eu-west-1", "https://s3.eu-west-1.amazonaws.com/Old_Bucket/t/a%20b%2Bc"),
    ],
)
def test_where_buckets_are(bucket: str, region: str | None, url: str) -> None:
    assert S3(SESSION, StorageSettings(region=region)).object_url(parse_location(f"s3://{bucket}/t/a b+c")) == url


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("abfss://c@acct.dfs.core.windows.net/t", "acct.blob.core.windows.net"),
        ("wasbs://c@acct.blob.core.windows.net/t", "acct.blob.core.windows.net"),
        ("wasb://c@acct.blob.core.windows.net/t", "acct.blob.core.windows.net"),
        ("abfss://c@acct.z12.dfs.storage.azure.net/t", "acct.z12.blob.storage.azure.net"),
        ("wasbs://c@acct.z01.blob.storage.azure.net/t", "acct.z01.blob.storage.azure.net"),
        ("abfss://c@blob.dfs.core.chinacloudapi.cn/t", "blob.blob.core.chinacloudapi.cn"),
        ("abfss://c@3fa85f64571.z3f.dfs.fabric.microsoft.com/t", "3fa85f64571.z3f.blob.fabric.microsoft.com"),
        ("abfss://c@onelake.dfs.fabric.microsoft.com/t", "onelake.blob.fabric.microsoft.com"),
    ],
)
def test_where_accounts_are(location: str, host: str) -> None:
    """wasb is asked by TLS as well: a SAS is never sent in the clear."""
    azure = Azure(azure_sas("sv=1&sig=x"), StorageSettings())
    assert azure.object_url(parse_location(location)) == f"https://{host}/c/t?sv=1&sig=x"


def test_a_workspace_of_onelake_may_have_any_name() -> None:
    location = parse_location("abfss://My_Space & more@onelake.dfs.fabric.microsoft.com/L.Lakehouse/Tables/t")
    url = Azure(azure_sas("sv=1&sig=x"), StorageSettings()).object_url(location)
    assert url == "https://onelake.blob.fabric.microsoft.com/My_Space%20%26%20more/L.Lakehouse/Tables/t?sv=1&sig=x"


@pytest.mark.parametrize(
    ("text", "sas"),
    [
        ("?sv=1&sig=a%2Bb%3D", "sv=1&sig=a%2Bb%3D"),
        (" \r\nsv=1&sig=a%2Bb%3D\n", "sv=1&sig=a%2Bb%3D"),
        ("sig=a+b/c=&sv=1", "sig=a%2Bb/c=&sv=1"),
        ("sv=1&rscd=a+b&sig=+", "sv=1&rscd=a+b&sig=%2B"),
    ],
)
def test_a_sas_is_taken_out_of_what_surrounds_it(text: str, sas: str) -> None:
    """A ``+`` in a query is a blank to Azure, and no signature in base64 has one."""
    parts = Azure.parts_of({"sasToken": text})
    Azure.check(parts, "azureUserDelegationSas")
    assert parts == {"sasToken": sas}


@pytest.mark.parametrize("location", ["s3://bucket/t", "gs://bucket/t", "abfss://c@acct.dfs.core.windows.net/t"])
def test_a_location_that_leads_to_this_machine_is_not_asked(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name resolves to: an endpoint there is the user's to name."""
    lookup = socket.getaddrinfo
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *a, **k: lookup(*there, *a, **k))
        secret = {"s3": SESSION, "gs": gcp_bearer("t"), "abfss": azure_sas("sv=1&sig=x")}[location.partition(":")[0]]
        storage = Storage(parse_location(location), secret, StorageSettings())
        refused = r"leads to 127\.0\.0\.1, .*; name it in the option storageEndpoint if"
        with pytest.raises(FileError, match=refused):
            storage.get(storage.location)
        with pytest.raises(FileError, match=refused):
            storage.get(storage.location, 0, 1)


def test_a_key_that_begins_with_a_slash() -> None:
    url = "https://bucket.s3.us-east-1.amazonaws.com//t/x"
    assert S3(SESSION, StorageSettings()).object_url(parse_location("s3://bucket//t/x")) == url


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (301, {"x-amz-bucket-region": "eu-west-1"}, b""),
        (307, {"x-amz-bucket-region": "eu-west-1"}, b""),
        (400, {}, b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"),
    ],
)
def test_s3_tells_its_region(status: int, headers: dict[str, str], body: bytes) -> None:
    cloud = S3(SESSION, StorageSettings(), clock=lambda: NOW)
    assert cloud.corrected(status, headers, body)
    assert cloud.object_url(parse_location("s3://bucket/k")) == "https://bucket.s3.eu-west-1.amazonaws.com/k"
    assert "/eu-west-1/s3/" in cloud.headers("GET", "https://h/k")["Authorization"]
    assert not cloud.corrected(status, headers, body), "the same once more is an error"
    assert not cloud.corrected(403, {}, b"<Region>us-west-2</Region>")


def test_a_blob_whose_name_is_encoded_and_a_directory() -> None:
    body = b"""<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>
      <BlobPrefix><Name>t/d/</Name></BlobPrefix>
      <Blob><Name Encoded="true">t/%EF%BF%BE</Name><Properties><Last-Modified>Tue, 24 Nov 2026 00:00:00 GMT</Last-Modified>
        <Content-Length>7</Content-Length></Properties></Blob>
      <Blob><Name>t/d</Name><Properties><Last-Modified>Tue, 24 Nov 2026 00:00:00 GMT</Last-Modified>
        <Content-Length>0</Content-Length><ResourceType>directory</ResourceType></Properties></Blob>
      </Blobs><NextMarker>m</NextMarker></EnumerationResults>"""
    entries, token = Azure(azure_sas("sv=1&sig=x"), StorageSettings()).page(body)
    assert [(entry.name, entry.size) for entry in entries] == [("t/\ufffe", 7), ("t/d/", 0)]
    assert token == "m"


@pytest.mark.parametrize("cloud", ["s3", "gs", "abfss"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>sign in</html",
        b"[]",
        b'{"items": 1}',
        b'{"items": [{"name": "t/x", "size": "many", "updated": "2026-11-24T00:00:00Z"}]}',
        b'{"items": [{"name": "t/x", "size": "1", "updated": "today"}]}',
        b'{"items": [{"size": "1", "updated": "2026-11-24T00:00:00Z"}]}',
        b"<ListBucketResult><Contents><Size>1</Size><LastModified>2026-11-24T00:00:00Z</LastModified></Contents>"
        b"</ListBucketResult>",
        b"<EnumerationResults><Blobs><Blob><Name/><Properties><Content-Length>1</Content-Length>"
        b"<Last-Modified>Tue, 24 Nov 2026 00:00:00 GMT</Last-Modified></Properties></Blob></Blobs></EnumerationResults>",
        b'<!DOCTYPE l [<!ENTITY a "aa">]><l>&a;</l>',
        b"<html><body>sign in</body></html>",
        b"<ListBucketResult><Contents><Key>t/x</Key><Size>-1</Size><LastModified>2026-11-24T00:00:00Z</LastModified>"
        b"</Contents></ListBucketResult>",
        b"<EnumerationResults><Blobs><Blob><Name>t/x</Name></Blob></Blobs></EnumerationResults>",
    ],
)
def test_pages_that_are_none(cloud: str, body: bytes) -> None:
    """Never fewer objects: an error."""
    made: Any = {
        "s3": S3(SESSION, StorageSettings()),
        "gs": Google(gcp_bearer("t"), StorageSettings()),
        "abfss": Azure(azure_sas("sv=1&sig=x"), StorageSettings()),
    }[cloud]
    with pytest.raises(UnreadableAnswer):
        made.page(body)


def test_a_listing_goes_on_over_pages_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    root = parse_location("gs://bucket/t")
    storage = Storage(root, gcp_bearer("t"), StorageSettings())
    pages: list[tuple[list[Any], str | None]] = []
    monkeypatch.setattr(storage, "_request", lambda *_, **__: pages.pop(0))
    from delta_sharing_spark.storage.locations import StoredObject

    pages += [
        ([StoredObject("t/a", 1, 0), StoredObject("t/", 0, 0)], "1"),
        ([], "2"),
        ([StoredObject("t/b", 2, 0), StoredObject("t/b/c", 1, 0)], None),
    ]
    assert [entry.name for entry in storage.list_from(root, "")] == ["a", "b"]
    pages += [([], "1"), ([], "1")]
    with pytest.raises(FileError, match="goes on with the same page"):
        storage.list_from(root, "")


def xml(code: str, message: str = "m") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message><Key>t/f</Key></Error>".encode()


def google(reason: str, message: str = "m") -> bytes:
    return json.dumps(
        {"error": {"message": message, "errors": [{"reason": reason, "message": message}]}}, indent=1
    ).encode()


SSE_C = "The object was stored using a form of Server Side Encryption. The correct parameters must be provided."
DECRYPT = "User: arn:aws:sts::1:assumed-role/x is not authorized to perform: kms:Decrypt on the resource"
PERIMETER = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, xml("InvalidObjectState"), r"is archived .*InvalidObjectState.*; ask the provider to restore it"),
        (409, xml("BlobArchived"), r"is archived .*BlobArchived.*; ask the provider to restore it"),
        (409, xml("BlobBeingRehydrated"), "being restored .*; try again"),
        (404, xml("NoSuchBucket"), "does not exist there .*; ask the provider where"),
        (404, xml("ContainerNotFound"), "does not exist there .*; ask the provider where"),
        (
            404,
            google("notFound", "The specified bucket does not exist."),
            "does not exist there .*; ask the provider where",
        ),
        (403, xml("AllAccessDisabled"), "account is disabled"),
        (403, xml("AccountIsDisabled"), "account is disabled"),
        (403, google("accountDisabled"), "account is disabled"),
        (400, google("required", "Bucket is a requester pays bucket but no user project provided."), "requester pays"),
        (400, xml("UserProjectMissing"), "requester pays"),
        (400, xml("KMS.DisabledException"), "key that it is encrypted with"),
        (400, google("cloudKmsDisabledKey"), "key that it is encrypted with"),
        (
            400,
            xml("InvalidRequest", SSE_C),
            "a key that only its writer has .*; ask the provider to store shared tables under",
        ),
        (409, xml("BlobUsesCustomerSpecifiedEncryption"), "a key that only its writer has"),
        (400, google("resourceIsEncryptedWithCustomerEncryptionKey"), "a key that only its writer has"),
    ],
)
def test_what_nothing_mends_is_told_at_once(status: int, body: bytes, words: str) -> None:
    """Neither refused nor absent: where a log is read by GET alone, a commit of those would count as not written yet."""
    meant = failure_of(status, {}, body, what="file t/f", method="GET", host="h")
    assert type(meant) is FileError
    assert meant.file == "t/f"
    assert re.search(words, str(meant))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, xml("AccessDenied", DECRYPT), r"KMS.*; ask the provider to allow that"),
        (403, google("forbidden", "Permission denied on Cloud KMS key."), r"KMS.*; ask the provider to allow that"),
        (403, xml("AuthorizationSourceIPMismatch"), "addresses .*; ask the provider to let"),
        (403, google("vpcServiceControls", PERIMETER), "VPC Service Controls .*; ask the provider to let"),
        (403, PERIMETER.encode(), "VPC Service Controls .*; ask the provider to let"),
        (403, xml("KeyBasedAuthenticationNotPermitted"), "made with its key; ask .* user delegation SAS"),
        (403, xml("RequestTimeTooSkewed"), "clocks .* differ; check the clock"),
    ],
)
def test_a_refusal_whose_cause_is_told_is_no_absence(status: int, body: bytes, words: str) -> None:
    meant = failure_of(status, {}, body, what="f", method="GET", host="h")
    assert isinstance(meant, StorageRefusal)
    assert is_sure(meant)
    copied = pickle.loads(pickle.dumps(copy(meant)))
    assert re.search(words, f"{reason_of(copied)}; {action_of(copied, '')}")


@pytest.mark.parametrize(
    ("code", "refused"), [("ExpiredRequest", "ended"), ("InvalidTokenId", "credential"), ("ExpiredToken", "ended")]
)
def test_codes_of_other_storages_that_speak_s3(code: str, refused: str) -> None:
    """Cloudflare's of a signature that ended, MinIO's of a session token."""
    meant = failure_of(400, {}, xml(code), what="f", method="GET", host="h")
    assert isinstance(meant, StorageRefusal)
    assert meant.refused == refused


def test_the_code_of_json_that_is_not_googles() -> None:
    """Azure's other endpoint and OneLake; a gateway in between may drop the header that says the same."""
    body = json.dumps({"error": {"code": "BlobArchived", "message": "archived"}}).encode()
    assert "(HTTP 409 BlobArchived from h)" in str(failure_of(409, {}, body, what="f", method="GET", host="h"))


def test_a_quota_of_google_that_is_used_up_is_waited_for() -> None:
    assert isinstance(failure_of(403, {}, google("quotaExceeded"), what="f", method="GET", host="h"), RetryableError)


def test_a_400_to_head_is_a_refusal_only_without_a_code() -> None:
    """S3 sends none with a credential that has ended; Azure says what is wrong."""
    assert isinstance(failure_of(400, {}, b"", what="f", method="HEAD", host="h"), StorageRefusal)
    told = {"x-ms-error-code": "InvalidQueryParameterValue"}
    assert type(failure_of(400, told, b"", what="f", method="HEAD", host="h")) is FileError


def test_a_region_that_could_not_be_asked_for_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every engine of the process would be told the wrong one."""
    answers: list[Any] = [
        requests.ConnectionError("no route"),
        SimpleNamespace(headers={"x-amz-bucket-region": "eu-west-1"}),
    ]

    class Session:
        def head(self, *_: object, **__: object) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(s3, "data_session", lambda _: Session())
    told = [s3.find_region("bucket-of-the-test", StorageSettings()) for _ in range(3)]
    assert told == ["us-east-1", "eu-west-1", "eu-west-1"]


@pytest.mark.parametrize("what", ["region", "time"])
def test_requests_under_way_at_once_are_all_asked_otherwise(what: str) -> None:
    """A process begins to read in several threads: each of them is told the bucket's region, or S3's time, and only one is the first."""
    at_once = threading.Barrier(4)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            day = f"/{self.headers['x-amz-date'][:8]}/"
            if what == "region" and "/us-east-1/s3/" in self.headers["authorization"]:
                at_once.wait(HANGS)
                self.send(
                    400, xml("AuthorizationHeaderMalformed").replace(b"<Key>", b"<Region>eu-west-1</Region><Key>")
                )
            elif what == "time" and "/20301231/" not in self.headers["authorization"]:
                assert day in self.headers["authorization"]
                at_once.wait(HANGS)
                self.send(403, xml("RequestTimeTooSkewed"))
            else:
                self.send(206, b"bytes", "bytes 0-4/5")

        def send(self, status: int, body: bytes, content_range: str = "") -> None:
            self.send_response_only(status)
            told = {"Date": "Tue, 31 Dec 2030 12:00:00 GMT"} if what == "time" else {}
            told |= {"Content-Range": content_range} if content_range else {}
            for name, value in {**told, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        storage = Storage(parse_location("s3://bucket/t"), SESSION, StorageSettings(endpoint=endpoint))
        with ThreadPoolExecutor(4) as pool:
            read = list(pool.map(lambda _: bytes(storage.get(parse_location("s3://bucket/t/f"), 0, 5)), range(4)))
        server.shutdown()
    assert read == [b"bytes"] * 4
