"""What is shown holds no secret, in whatever form a server, a library or a user writes it, and all that people need to read."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.redaction import redact

SECRET = "s3cr3tK3yOfN0body/Abc+9=="
PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----"
#: A text for each form, with the secret in its place.
FORMS = {
    # Encoded as often as where it stands is.
    "a query": "GET https://h/f.parquet?X-Amz-Signature={} failed",
    "a query without names": "https://h/f.parquet?{}",
    "a query of a schemeless URL": "acct.blob.core.windows.net/c/f.parquet?sv=2024&sp=r&x={}",
    "a query of a path": "Max retries exceeded with url: /f.parquet?X-Amz-Expires=9&k={} (Caused by",
    "a query behind a quote": 'cannot open "https://h/f.parquet"?X-Amz-Credential={}',
    "a query behind a blank": "cannot open https://h/f.parquet ?sv=1&k={}",
    "a query behind a blank in the path": "https://h/my file.parquet?sv=1&k={}",
    "an encoded URL": "url=https%3A%2F%2Fh%2Ff.parquet%3Fsv%3D1%26k%3D{}",
    "a URL that is encoded twice": "next=https%253A%252F%252Fh%252Ff%253Fk%253D{}",
    "a user": "https://user:{}@h/",
    "a user alone": "https://{}@h/path",
    "a user of a second URL": "from https://h/a,https://x:{}@h/b",
    "a user without a scheme": "proxy me:{}@proxy.corp:3128 refused",
    "a user of an encoded URL": "https%3A%2F%2Fme%3A{}%40h%2Fp",
    "a user of another scheme": "s3://AKIDEXAMPLE:{}@bucket/x",
    "a header": "X-Amz-Security-Token: {}",
    "a header of Azure's": "Ocp-Apim-Subscription-Key: {}",
    "an authorization": "Authorization: Bearer {}",
    "an authorization by words": "{{'Authorization': 'Basic {}'}}",
    "an authorization of no scheme": "authorization: {}",
    "an authorization in a tuple": "('Authorization', 'Bearer {}')",
    "a shared key": "SharedKey account:{}",
    "an AWS authorization": "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/2026, SignedHeaders=host, Signature={}",
    "bearer": "sent bearer {} to the server",
    "a connection string": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x",
    "a shared access key": "SharedAccessKeyName=root;SharedAccessKey={}",
    "an API key": "api_key={}",
    "an API key in a header": "x-api-key: {}",
    "an API key by words": "apiKey => {}",
    "a client's secret": "client-secret={}",
    "a client's secret of another": "azureClientSecret = {}",
    "a key of AWS": "aws_secret_access_key = {}",
    "a key in the environment": "export AWS_SECRET_ACCESS_KEY={}",
    "a session's token": "aws_session_token={}",
    "a key of fs.s3a": "fs.s3a.secret.key={}",
    "a key of an account": "fs.azure.account.key.acct.dfs.core.windows.net={}",
    "JSON": '{{"bearerToken": "{}", "endpoint": "https://h"}}',
    "JSON in JSON": '{{\\"clientSecret\\":\\"{}\\"}}',
    "JSON of a token": '{{"token": "{}"}}',
    "JSON that was cut off": '{{"password": "{}',
    "a form": "grant_type=x&client_secret={}&scope=y",
    "an encoded form": "client_secret%3D{}%26scope",
    "bytes of Python": "{{'password': b'{}'}}",
    "XML": "<Credentials><SessionToken>{}</SessionToken></Credentials>",
    "XML of a key": "<SecretAccessKey>{}</SecretAccessKey>",
    "an argument": "tool --client-secret {} --verbose",
    "an argument by a sign": "tool --token={}",
    "a token": "token={}",
    "a PEM body": PEM,
    "a PEM body in one line": PEM.replace("\n", " "),
    "a PEM body in JSON": PEM.replace("\n", "\\n"),
    "a PEM body that was cut off": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEAxyz0123\n{}abcdefghij",
    "a signature": "sig={}",
    "a signature of Google's": "X-Goog-Signature={}",
    "a cookie": "Set-Cookie: session={}",
    "a user whose password has a slash": "https://me:ab/{}@h/x",
    "words": "the client secret is {}, the tables are",
    "words and a colon": "API key: {}",
    "a mark that JSON escapes": "https://h/f\\u003fsv=1\\u0026k={}",
    "a bearer that is encoded": "h: Bearer%20{}",
    "a token in a header": "PRIVATE-TOKEN: {}",
    "a setting of Azure's": "fs.azure.account.oauth2.client.secret.acct.dfs.core.windows.net={}",
    "an assertion": "client_assertion={}",
}
#: Those that are secrets by themselves.
TOKENS = [
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJuIn0.c2lnbmF0dXJl",
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJuIn0",
    "dapi0123456789abcdef0123456789abcdef",
    "ya29.a0AfH6SMBx-0123456789",
    "AKIAIOSFODNN7EXAMPLE",
]
#: What stays as it is.
READ = [
    "table demo.city.trips: column 'fare' is unknown; near names are 'fares'",
    "the server's answer to POST https://h:8443/delta-sharing/shares/s/schemas/d/tables/t/query is no JSON; ask the provider",
    "abfss://container@account.dfs.core.windows.net/a/b.parquet cannot be read",
    "s3://bucket/part=a/key=b/f.parquet of t: 404; reload the table",
    "the client secret is not what the server knows; the access token has ended",
    "https://h:8443/a@b.png, https://h/a@b, https://[::1]:80/a@b",
    "is it there? then set retryTimeout=1h and try again",
    "basic authentication and bearer tokens are read; a bearer profile needs no password",
    "the token has expired; the tokens of a session end after an hour; token endpoint https://h/token refuses",
    "'bearerToken' in the profile has characters that no token has, such as a line break",
    "the option accessMode=dir needs credentials: ask the provider",
    "where=city = 'Lisbon' AND started >= '2026-01-01'",
    "SELECT a, b ? c : d FROM t WHERE x = ?",
    "mail me@example.com, see https://example.com/docs#query-for-files",
    "design=a, assigned: b, pageToken and nextPageToken of the listing",
    "clientId=reader, AccountName=a, keyId: 7, a primary key: id",
    "set --option NAME=VALUE, or -o versionAsOf=3",
    "the file has 10,537,590 bytes, planned were 9; SHA-256 of it is 0123456789abcdef",
]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_no_form_shows_its_secret(form: str) -> None:
    secret = SECRET
    for _ in range(("@" in form or "%40" in form) + ("%3" in form) + 2 * ("%25" in form)):
        secret = quote(secret, safe="")
    text = redact(f"table s.d.t: {form.format(secret)}\nreload the table")
    assert not [part for part in (secret, *secret.split("/")) if part in text], text
    assert text.startswith("table s.d.t: ")
    assert text.endswith("reload the table"), "what to do is still told"


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_are_known_by_their_forms(token: str) -> None:
    assert redact(f"refused {token}, ask for another") == "refused [redacted], ask for another"


@pytest.mark.parametrize("text", READ)
def test_what_people_need_to_read_stays(text: str) -> None:
    assert redact(text) == text


WORDS = st.sampled_from(
    [
        "the",
        "server",
        "table",
        "file",
        "column",
        "has",
        "no",
        "such",
        "answer",
        "of",
        "404",
        "and",
        "reload",
        "ask",
        "provider",
        "s.d.t",
        "'fare'",
        "(x)",
    ]
)


@given(
    st.sampled_from(list(FORMS.values())),
    st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=12, max_size=60).map(
        "q7".__add__
    ),
    st.lists(WORDS, max_size=6).map(" ".join),
    st.lists(WORDS, max_size=6).map(" ".join),
)
def test_any_secret_is_hidden_and_the_words_around_it_stay(form: str, secret: str, before: str, after: str) -> None:
    text = redact(f"{before}\n{form.format(secret)}\n{after}")
    assert secret not in text
    assert text.startswith(f"{before}\n")
    assert text.endswith(f"\n{after}")
    assert redact(text) == text, "errors are made of the texts of others"


SPITEFUL = ["%3A%2F%2F", "%253", "%", "-----BEGIN A-----", "-----BEGIN A-----\n", "a-", "a.", "password", "<a", "--a-", "a:b", "?a=", "eyJ", "eyJa.",
            "authorization: ", "authorization", "authorization:", "token:", "token: ", "(a:", "a:a@", "client secret ", "https://a:b/", "a://b:c/d@", "AKIA", "b'", "\\", "x_", "?a", "a@", "%3f", "bearer a", "<secretkey>"]  # fmt: skip


@pytest.mark.parametrize("unit", SPITEFUL)
def test_it_takes_time_in_proportion_to_the_text(unit: str) -> None:
    begin = time.process_time()
    redact(unit * (100_000 // len(unit)))
    assert time.process_time() - begin < 5, "a quadratic pass takes a minute"
