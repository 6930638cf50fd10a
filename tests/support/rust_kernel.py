"""Tables and feeds as Delta Lake's Rust kernel reads them; who imports this is skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

kernel = pytest.importorskip("delta_kernel_rust_sharing_wrapper")


def kernel_rows(path: Path) -> pa.Table:
    location = path.absolute().as_uri() + "/"
    interface = kernel.PythonInterface(location)
    return kernel.ScanBuilder(kernel.Table(location).snapshot(interface)).build().execute(interface).read_all()


def kernel_changes(path: Path, start: int, end: int) -> pa.Table:
    location = path.absolute().as_uri() + "/"
    interface = kernel.PythonInterface(location)
    scan = kernel.TableChangesScanBuilder(kernel.Table(location), interface, start, end).build()
    return scan.execute(interface).read_all()
