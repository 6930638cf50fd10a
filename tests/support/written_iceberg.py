"""Writes Iceberg tables by pyiceberg at locations of a cloud, with their files in a directory of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

_LOCATION, _DIRECTORY = "lake.location", "lake.directory"


class DirectoryIO(PyArrowFileIO):
    """Finds the files of a location in a directory; pyiceberg makes it by its name."""

    def new_input(self, location: str) -> PyArrowFile:
        return self._at(location, super().new_input(self._local(location)))

    def new_output(self, location: str) -> PyArrowFile:
        return self._at(location, super().new_output(self._local(location)))

    def _local(self, location: str) -> str:
        return location.replace(self.properties[_LOCATION], self.properties[_DIRECTORY], 1)

    def _at(self, location: str, file: PyArrowFile) -> PyArrowFile:
        file._location = location
        return file


def catalog_at(location: str, directory: Path) -> SqlCatalog:
    """A catalog with the namespace ``db`` whose tables are at ``location``, and their files in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": location,
        "py-io-impl": f"{__name__}.{DirectoryIO.__name__}",
        _LOCATION: location,
        _DIRECTORY: str(directory),
    }
    made = SqlCatalog("lake", **settings)
    made.create_namespace("db")
    return made


def metadata_file(table: Any, catalog: SqlCatalog) -> Path:
    """Where a table's newest metadata document lies."""
    return Path(str(table.metadata_location).replace(catalog.properties[_LOCATION], catalog.properties[_DIRECTORY], 1))
