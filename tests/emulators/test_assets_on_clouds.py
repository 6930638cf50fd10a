"""Volumes against the real protocols of S3, Azure and GCS: listings of directories, odd names, ranges, downloads."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import NoSuchFileError
from delta_sharing_spark.testing.server import SharingServer
from emulators.clouds import Cloud, put_table

pytestmark = pytest.mark.emulators

NAMES = ["a.csv", "sub/with space", "sub/per%cent", "sub/pl+us", "sub/ünï", "sub/q?mark", "sub/ha#sh", "sub/deep/er/x"]


def test_a_volume(cloud: Cloud, tmp_path: Path) -> None:
    files = {name: name.encode() * 1000 for name in NAMES}
    for name, data in files.items():
        path = tmp_path / "shared" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    location = put_table(cloud, tmp_path / "shared", f"v{uuid.uuid4().hex[:8]}")

    def vend(location: str, _: Any) -> dict[str, Any]:
        credentials: dict[str, Any] = cloud.vend(location)["credentials"]
        del credentials["location"]
        return credentials

    with SharingServer() as server:
        server.vendors[location.partition(":")[0]] = vend
        server.add_volume("s.d.v", location)
        volume = SharingClient(server.profile(), storageEndpoint=cloud.endpoint).volume("s.d.v")
        assert {file.path: file.size for file in volume.files()} == {name: len(data) for name, data in files.items()}
        fs = volume.fs()
        assert sorted(fs.ls("", detail=False)) == ["a.csv", "sub"]
        assert sorted(fs.ls("sub", detail=False)) == sorted(
            {"sub/deep", *(n for n in NAMES if n.count("/") == 1 and n != "sub/deep")}
        )
        assert fs.isdir("sub/deep")
        with pytest.raises(NoSuchFileError):
            volume.open("sub/de")
        for name, data in files.items():
            assert fs.cat_file(name, 1000, 2000) == data[1000:2000]
        volume.download(to=tmp_path / "to")
        assert all((tmp_path / "to" / name).read_bytes() == data for name, data in files.items())
        assert volume.download(to=tmp_path / "to").present == len(files)
