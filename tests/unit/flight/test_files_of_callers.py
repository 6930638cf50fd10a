"""The files that say who may call a gateway: what others can write decides nothing, and nothing hangs on what is no file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from delta_sharing_spark.access.flight.connection import gateway_address
from delta_sharing_spark.errors import ConfigError, ProfileError
from delta_sharing_spark.flight import command_line
from delta_sharing_spark.options.declared import parse_options

KEY = "ab" * 32
posix = pytest.mark.skipif(os.name == "nt", reason="owners, modes and pipes of POSIX")
as_root = pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs a second user")


def settings(**files: Path) -> object:
    parser = argparse.ArgumentParser()
    command_line.add_arguments(parser)
    named = [part for name, path in files.items() for part in (f"--{name.replace('_', '-')}", str(path))]
    return command_line.settings_of(parser.parse_args(["p.share", *named]))


@pytest.mark.parametrize("name", ["token_file", "ticket_key"])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param(0o666, "can be changed by other users of this machine.*chmod go-w", marks=posix),
        pytest.param(0o620, "can be changed by other users", marks=posix),
        pytest.param("theirs", "belongs to another user of this machine.*copy it to a file of your own", marks=as_root),
        pytest.param("pipe", "is not a regular file", marks=posix),
        ("missing", r"cannot be read on this machine \(FileNotFoundError\)"),
        ("large", "has more than 64 KiB"),
    ],
)
def test_what_others_could_write_lets_nobody_in(
    tmp_path: Path, name: str, state: int | str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    if state == "pipe":
        os.mkfifo(path)
    elif state != "missing":
        path.write_text(KEY + " " * (65_536 if state == "large" else 0))
        path.chmod(state if isinstance(state, int) else 0o644)
        if state == "theirs":
            os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match=f"^{path} .*{words}") as refused:
        settings(**{name: path})
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o440])
def test_files_of_the_user_and_of_the_system_are_read(tmp_path: Path, mode: int) -> None:
    """As platforms mount secrets: a link to a file that all may read, in UTF-16 if PowerShell wrote it."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "key"
    path.write_bytes(f"{KEY}\r\n".encode("utf-16"))
    path.chmod(mode)
    (tmp_path / "link").symlink_to(path)
    made = settings(token_file=tmp_path / "link", ticket_key=tmp_path / "link")
    assert (made.tokens, made.key) == ((KEY,), bytes.fromhex(KEY))  # type: ignore[attr-defined]


@posix
@pytest.mark.parametrize("option", ["gatewayTokenFile", "caBundle", "gatewayCertificate", "gatewayKey"])
def test_files_of_a_callers_options_are_files(tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    named = ["gatewayCertificate", "gatewayKey"] if option in ("gatewayCertificate", "gatewayKey") else [option]
    given = {"path": "s.d.t", "gateway": "grpc+tls://127.0.0.1:1", **dict.fromkeys(named, str(tmp_path / "pipe"))}
    with pytest.raises(ProfileError, match="pipe of a Flight gateway's options is not a regular file; check its path"):
        gateway_address(parse_options(given))
