"""Code that is written for the reference client goes on: what it exports and takes is here, at the same places.

Its newest release is compared where it is installed; its next one that has more fails here.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import delta_sharing_spark
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.table import Scan, SharedTable

delta_sharing = pytest.importorskip("delta_sharing", reason="the reference client is not installed here")
theirs = delta_sharing.delta_sharing
protocol = delta_sharing.protocol

#: Their classes, and what has its methods and attributes here; those that this release of theirs lacks are passed over.
CLASSES: dict[str, tuple[Any, Any]] = {
    name: (their, our)
    for name, their, our in [
        ("SharingClient", theirs.SharingClient, delta_sharing_spark.SharingClient),
        ("DeltaSharingTable", getattr(theirs, "DeltaSharingTable", None), SharedTable),
        ("TableSnapshot", getattr(theirs, "TableSnapshot", None), Scan),
        ("TableChanges", getattr(theirs, "TableChanges", None), Scan),
        ("DeltaSharingProfile", protocol.DeltaSharingProfile, delta_sharing_spark.Profile),
        ("Share", protocol.Share, delta_sharing_spark.Share),
        ("Schema", protocol.Schema, delta_sharing_spark.Schema),
        ("Table", protocol.Table, delta_sharing_spark.Table),
        ("Protocol", protocol.Protocol, Protocol),
        ("Metadata", protocol.Metadata, Metadata),
    ]
    if their is not None
}
#: What is meant otherwise here: lines of a server's answer are parsed by this package alone, which says itself what is too new.
NOT_HERE = {
    *(f"{name}.from_json" for name in ("Share", "Schema", "Table", "Protocol", "Metadata")),
    *(f"{name}.CURRENT" for name in ("DeltaSharingProfile", "Protocol")),
}


def _parameters(function: Any) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


def _check_that_calls_go_on(name: str, their: Any, our: Any) -> None:
    ours = {p.name: p for p in _parameters(our)}
    positions = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, parameter in enumerate(_parameters(their)):
        assert parameter.name in ours, f"{name}({parameter.name}=)"
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert positions[place : place + 1] == [parameter.name], f"{name}: {parameter.name} is argument {place}"
        if parameter.default is not parameter.empty:
            assert ours[parameter.name].default is not parameter.empty, f"{name}: {parameter.name} may be left out"


@pytest.mark.parametrize("name", sorted(set(delta_sharing.__all__) - {"__version__"}))
def test_what_it_exports_is_here(name: str) -> None:
    their, our = getattr(delta_sharing, name), getattr(delta_sharing_spark, name)
    if not inspect.isclass(their):
        _check_that_calls_go_on(name, their, our)


@pytest.mark.parametrize("name", CLASSES)
def test_its_methods_and_fields_are_here(name: str) -> None:
    their, our = CLASSES[name]
    for member, value in vars(their).items():
        if member.startswith("_") or f"{name}.{member}" in NOT_HERE:
            continue
        assert hasattr(our, member), f"{name}.{member}"
        if callable(value) or isinstance(value, staticmethod):
            ours = inspect.getattr_static(our, member)
            if isinstance(ours, property):  # whose value can be called
                continue
            _check_that_calls_go_on(f"{name}.{member}", getattr(their, member), getattr(our, member))
    for field in fields(their) if is_dataclass(their) else ():
        assert hasattr(our, field.name), f"{name}.{field.name}"


@pytest.mark.parametrize("name", ["Share", "Schema", "Table"])
def test_names_are_made_alike(name: str) -> None:
    their, our = CLASSES[name]
    places = [p.name for p in _parameters(their)]
    assert [p.name for p in _parameters(our)][: len(places)] == places
