"""At the most talkative log level of every library, and in every exception: no secret is written."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable

import pytest

from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from unit.access.issuing import secret_for
from unit.access.object_server import ObjectServer, serving

SECRETS = ("secret-access-key", "session-token-text", "c2lnbmF0dXJl", "ya29.bearer-token-text")


@pytest.mark.parametrize(
    "action",
    [
        lambda storage, file: storage.get(file),
        lambda storage, file: storage.get(file, 0, 2),
        lambda storage, file: storage.info(file),
        lambda storage, file: storage.list_from(storage.location, ""),
    ],
    ids=["file", "range", "info", "list"],
)
@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("failure", [None, 503, 403, 400, 500])
@pytest.mark.parametrize(
    "location", ["s3://bucket/t", "abfss://bucket@acct.dfs.core.windows.net/t", "gs://bucket/t"], ids=["s3", "az", "gs"]
)
def test_nothing_shows_a_secret(
    location: str,
    failure: int | None,
    listing: bool,
    action: Callable[[Storage, object], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    location_of_file = parse_location(location + "/f")
    with caplog.at_level(logging.DEBUG), serving(ObjectServer({"bucket/t/f": b"data"}, listing=listing)) as server:
        endpoint = server.url + ("/acct" if location_of_file.kind == "azure" else "")
        storage = Storage(
            parse_location(location), secret_for(location_of_file), StorageSettings(endpoint=endpoint, retry_seconds=0)
        )
        server.failures = [failure] * 2 if failure else []
        try:
            action(storage, location_of_file)
        except Exception as error:
            text = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
            assert not [s for s in SECRETS if s in text]
            pickle.loads(pickle.dumps(error))
    for record in caplog.records:
        assert not [s for s in SECRETS if s in record.getMessage()], (record.name, record.getMessage())
