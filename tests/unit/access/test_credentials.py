"""Storage tokens: issued, shown, pickled, bound and kept."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from delta_sharing_spark.access.directory.access import SharingIssuer, StorageToken, TokenCache, issue, token_covering
from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_records import TemporaryCredentials
from delta_sharing_spark.storage.clouds.contract import Secret
from delta_sharing_spark.storage.clouds.registry import parse_location
from support.cloud_secrets import aws_session
from unit.access.issuing import CountingIssuer, secret_for

NOW = 1_700_000_000.0
LATER = int((NOW + 3600) * 1000)
S3, ABFSS = "s3://bucket/table", "abfss://cont@acct.dfs.core.windows.net/table"
GS, FILE = "gs://bucket/table", "file:///tmp/table"
AWS = {"accessKeyId": "AKIDVALUE", "secretAccessKey": "SECRETVALUE", "sessionToken": "SESSIONVALUE"}
AZURE = {"sasToken": "sv=2021&sp=r&sig=SIGVALUE%3D"}
GCP = {"oauthToken": "ya29.BEARERVALUE"}
Raw = Mapping[str, str] | None


def _answer(location: str | None, *, aws: Raw = None, azure: Raw = None, gcp: Raw = None, expires: int | None = LATER):
    sent = {"awsTempCredentials": aws, "azureUserDelegationSas": azure, "gcpOauthToken": gcp}
    secrets = {name: parts for name, parts in sent.items() if parts is not None}
    return TemporaryCredentials(location=location, expiration_time=expires, secrets=secrets)


def _issue(answer: TemporaryCredentials, requested: str) -> StorageToken:
    return issue(answer, parse_location(requested), origin="https://server s.d.t", now=NOW)


@pytest.mark.parametrize(
    ("answer", "requested", "kind"),
    [
        (_answer(S3, aws=AWS), S3, "aws"),
        (_answer("s3a://bucket/table/", aws=AWS), S3, "aws"),
        (_answer("s3://bucket", aws=AWS), S3, "aws"),
        (_answer(ABFSS, azure=AZURE), ABFSS, "azure"),
        (_answer(ABFSS, azure={"sasToken": "?" + AZURE["sasToken"]}), ABFSS, "azure"),
        (_answer(GS, gcp=GCP), GS, "gcp"),
        (_answer(FILE), "file:/tmp/table", "local"),
    ],
)
def test_issuing(answer: TemporaryCredentials, requested: str, kind: str) -> None:
    token = _issue(answer, requested)
    assert (token.kind, token.expires, token.issued) == (kind, NOW + 3600, NOW)
    assert token.location == parse_location(requested), "held to what was asked for, even where more was granted"


@pytest.mark.parametrize(
    ("answer", "requested", "says"),
    [
        (_answer(S3), S3, "exactly one kind.*none"),
        (_answer(S3, aws=AWS, gcp=GCP), S3, "exactly one kind.*awsTempCredentials, gcpOauthToken"),
        (_answer(S3, gcp=GCP), S3, "of kind gcp.*'s3' takes aws"),
        (_answer(FILE, aws=AWS), FILE, "of kind aws"),
        (_answer("s3://bucket/other", aws=AWS), S3, "does not cover"),
        (_answer("s3://bucket/table/sub", aws=AWS), S3, "does not cover"),
        (_answer("s3://bucket/tab", aws=AWS), S3, "does not cover"),
        (_answer(ABFSS, azure={"sasToken": ""}), ABFSS, "sasToken is empty"),
        (_answer(ABFSS, azure={"sasToken": "?"}), ABFSS, "sasToken is empty"),
        (_answer(ABFSS, azure={}), ABFSS, "sasToken is empty"),
        (_answer(ABFSS, azure={"sasToken": "sv=1;AccountKey=x&sig=y"}), ABFSS, "characters"),
        (_answer(ABFSS, azure={"sasToken": "sv=1&sp=r"}), ABFSS, "no signature"),
        (_answer(GS, gcp={"oauthToken": " "}), GS, "oauthToken is empty"),
        (_answer(GS, gcp={"oauthToken": "a\r\nX-Evil: 1"}), GS, "characters"),
        *[
            (_answer(S3, aws={**AWS, name: value}), S3, f"{name} is empty")
            for name in AWS
            for value in ("", "  ", None)
            if (name, value) != ("sessionToken", None)
        ],
    ],
)
def test_what_is_not_accepted(answer: TemporaryCredentials, requested: str, says: str) -> None:
    with pytest.raises(CredentialError, match=says) as caught:
        _issue(answer, requested)
    _shows_no_secret(str(caught.value))


SECRETS = ("AKIDVALUE", "SECRETVALUE", "SESSIONVALUE", "SIGVALUE", "BEARERVALUE")


def _shows_no_secret(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize(
    ("answer", "requested"),
    [(_answer(S3, aws=AWS), S3), (_answer(ABFSS, azure=AZURE), ABFSS), (_answer(GS, gcp=GCP), GS)],
)
def test_nothing_shows_the_secret_and_the_pickle_carries_it(answer: TemporaryCredentials, requested: str) -> None:
    token = _issue(answer, requested)
    for text in (repr(token), str(token), f"{token}", repr([token]), repr(token.secret), str(token.secret)):
        _shows_no_secret(text)
    assert token.uuid in str(token)
    copy = pickle.loads(pickle.dumps(token))
    assert copy == token
    assert copy.secret == token.secret
    assert hash(copy) == hash(token)


def test_equality_is_by_uuid() -> None:
    one, other = _issue(_answer(S3, aws=AWS), S3), _issue(_answer(S3, aws=AWS), S3)
    assert one.secret == other.secret
    assert one != other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b/t/f.parquet", "s3://b/t"),
        ("s3a://b/t/aux/f.parquet", "s3://b/t/aux"),
        ("s3://b/t/auxiliary/f.parquet", "s3://b/t"),
        ("s3://b/t/aux", "s3://b/t/aux"),
        ("gs://b/t/f", "gs://b/t"),
        ("s3://b/t2/f", None),
        ("s3://other/t/f", None),
        ("file:///b/t/f", None),
    ],
)
def test_binding_by_the_longest_prefix(text: str, expected: str | None) -> None:
    tokens = [_token(location) for location in ("s3://b/t", "s3://b/t/aux", "gs://b/t")]
    if expected is None:
        with pytest.raises(CredentialError, match=r"outside.*s\.d\.t|s\.d\.t lies outside"):
            token_covering(tokens, parse_location(text), table="s.d.t")
    else:
        assert str(token_covering(tokens, parse_location(text), table="s.d.t").location) == expected
        assert str(token_covering(tokens[::-1], parse_location(text), table="s.d.t").location) == expected


def _token(text: str, secret: Secret | None = None, lifetime: float = 3600.0) -> StorageToken:
    location = parse_location(text)
    return StorageToken(location, secret or secret_for(location), time.time(), time.time() + lifetime, "test")


def test_a_token_checks_its_kind_by_itself() -> None:
    with pytest.raises(CredentialError, match="of kind aws"):
        _token("gs://b/t", aws_session("a", "b", "c"))


@pytest.mark.parametrize(("lifetime", "margin"), [(3600, 300), (43_200, 300), (600, 60), (10, 1)])
def test_renewed_shortly_before_expiry(lifetime: float, margin: float) -> None:
    token = StorageToken(parse_location(S3), secret_for(parse_location(S3)), NOW, NOW + lifetime, "test")
    assert token.renew_at == pytest.approx(NOW + lifetime - margin)


def test_kept_until_shortly_before_expiry() -> None:
    issuer, clock = CountingIssuer(), [time.time()]
    cache = TokenCache(clock=lambda: clock[0])
    root, aux = parse_location(S3), parse_location("s3://other/aux")
    first = cache.get(issuer, root)
    assert cache.get(issuer, root) == first
    assert cache.get(issuer, aux) != first, "one token per location"
    clock[0] += 3200
    assert cache.get(issuer, root) == first
    clock[0] += 200
    assert cache.get(issuer, root) != first
    assert issuer.asked == [root, aux, root]


def test_a_carried_token_does_not_displace_a_renewed_one() -> None:
    issuer, cache = CountingIssuer(), TokenCache()
    carried = _token(S3, lifetime=7200)
    cache.put(issuer, carried.location, carried)
    assert cache.get(issuer, carried.location) == carried
    renewed = cache.get(issuer, carried.location, refused=carried)
    cache.put(issuer, carried.location, carried)
    assert cache.get(issuer, carried.location) == renewed


@pytest.mark.parametrize("expires", [int((NOW - 3600) * 1000), int(NOW * 1000), int(NOW) + 3600, 0, -1])
def test_one_that_had_ended_by_this_machines_clock_is_tried_and_tells_both_times(expires: int) -> None:
    """As a presigned URL is: the clocks differ, or the server counts in seconds, and the storage's clock decides."""
    token = _issue(_answer(S3, aws=AWS, expires=expires), S3)
    assert NOW < token.renew_at < token.expires
    assert "had ended when it was issued" in token.validity
    assert "2023-11-14T22:13:20Z: check the clock of this machine" in token.validity
    with pytest.raises(CredentialError, match=r"the credential for s3://bucket/table is one which had ended"):
        token.check_end()


def test_one_that_had_ended_takes_no_place_of_one_that_works() -> None:
    clock, location = [time.time()], parse_location(S3)

    class Stale(CountingIssuer):
        def issue_token(self, location, seconds=None):
            token = super().issue_token(location)
            return token if len(self.asked) == 1 else replace(token, ended=clock[0] - 5)

    issuer, cache = Stale(), TokenCache(clock=lambda: clock[0])
    token = cache.get(issuer, location)
    clock[0] = token.renew_at
    assert cache.get(issuer, location) == token
    assert len(issuer.asked) == 2


def test_the_cache_is_bounded() -> None:
    issuer, cache = CountingIssuer(), TokenCache(size=3)
    for number in range(10):
        cache.get(issuer, parse_location(f"s3://bucket/t{number}"))
    assert len(cache) == 3


@pytest.mark.parametrize(
    ("left", "retries", "silence"), [(None, 600.0, 320.0), (300.0, 5.0, 30.0), (20.0, 5.0, 10.0), (2.0, 2.0, 5.0)]
)
def test_a_sharing_server_is_asked_with_little_patience_while_a_token_works(
    monkeypatch: pytest.MonkeyPatch, left: float | None, retries: float, silence: float
) -> None:
    asked: list[tuple[float, float]] = []

    def answer(rest: SharingRest, *_: object) -> TemporaryCredentials:
        asked.append((rest.settings.retry_seconds, rest.settings.read_timeout))
        return _answer(S3, aws=AWS, expires=int((time.time() + 60) * 1000))

    monkeypatch.setattr(SharingRest, "credentials", answer)
    profile, location = Profile("https://sharing.example", bearer_token="t"), parse_location(S3)
    issuer = SharingIssuer(profile, NetworkSettings(), TableName("s", "d", "t"), location)
    assert issuer.issue_token(location, left).kind == "aws"
    assert asked == [(retries, silence)]


def test_the_log_names_the_token_and_hides_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        token = TokenCache().get(CountingIssuer(), parse_location(S3))
    assert token.uuid in caplog.text
    assert "session-token-text" not in caplog.text
