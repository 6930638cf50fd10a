"""Versions that a clean-up left between two checkpoints: what their columns were is told rightly, or refused."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given

from delta_sharing_spark.deltalog.commit_feed import load_commits
from delta_sharing_spark.deltalog.paths import commit_name, in_log
from delta_sharing_spark.deltalog.replay import head_at, load_head
from delta_sharing_spark.errors import VersionError
from support.drawing import cases, drawn, one_of
from unit.deltalog.logbuilder import MemoryLogStore, add, log, metadata, protocol, write_checkpoint

CDF = {"delta__enableChangeDataFeed": "true"}


def built(changes: list[tuple[bool, bool]], listing: bool) -> tuple[MemoryLogStore, list[list[dict[str, Any]]]]:
    """A log whose versions have another protocol, or other metadata, where ``changes`` says so; and each version's head."""
    heads: list[list[dict[str, Any]]] = []
    commits = []
    for version, (has_protocol, has_metadata) in enumerate(changes):
        own = [protocol(features=["deletionVectors"] * (version % 2))] if has_protocol or not version else []
        own += [metadata(**CDF, more=str(version))] if has_metadata or not version else []
        before = heads[-1] if heads else []
        heads.append(
            [
                next((a for a in own if kind in a), None) or next(a for a in before if kind in a)
                for kind in ("protocol", "metaData")
            ]
        )
        commits.append([*own, add(f"f{version}")])
    return log(*commits, listing=listing), heads


@cases(40)
@given(
    drawn(
        lambda draw: [(draw.random() < 0.15, draw.random() < 0.15) for _ in range(draw.randint(2, 14))],
        one_of(True, False),
        lambda draw: draw,
    )
)
def test_a_head_is_told_rightly_or_refused(case: tuple[list[tuple[bool, bool]], bool, random.Random]) -> None:
    changes, listing, draw = case
    store, heads = built(changes, listing)
    count = len(changes)
    whole = [load_head(store, version=version) for version in range(count)]
    checkpoints = sorted({draw.randrange(count) for _ in range(draw.randint(1, 2))})
    for version in checkpoints:
        write_checkpoint(store, version, [*heads[version], *(add(f"f{v}") for v in range(version + 1))], "classic")
    first = draw.randint(1, checkpoints[0] + 1)
    for version in range(first):
        del store.files[in_log(commit_name(version))]
    store.known_version = count - 1
    for version in range(first, count):
        later = next((c for c in checkpoints if c >= version), count - 1)
        is_told = version > checkpoints[0] or all(
            not any(changes[v][kind] for v in range(version + 1, later + 1))
            or any(changes[v][kind] for v in range(first, version + 1))
            for kind in (0, 1)
        )
        if not listing:  # checkpoints are not known by their names: it may be told, and never wrongly
            with contextlib.suppress(VersionError):
                assert head_at(store, version, "s.d.t") == whole[version]
        elif is_told:
            assert head_at(store, version, "s.d.t") == whole[version]
        else:
            with pytest.raises(VersionError, match=rf"version {version} of s\.d\.t cannot be read.*from a snapshot"):
                head_at(store, version, "s.d.t")
    for version in range(first):
        with pytest.raises(VersionError, match=r"no longer in its log|cannot be read") as gone:
            list(load_commits(store, version, feed=True, table="s.d.t"))
        assert "start" not in str(gone.value)
