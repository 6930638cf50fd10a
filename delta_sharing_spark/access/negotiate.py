"""Chooses the access mode: by what the server offers, the user asked for and this client can read (protocol, "Access Modes")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from delta_sharing_spark.errors import AccessModeError

Mode = Literal["url", "dir", "flight"]

#: With both modes on offer, tables of more files than this are read by directory.
MANY_FILES = 1000


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode of one load.

    Attributes:
        mode: ``"url"``, ``"dir"`` or ``"flight"``.
        reason: Why, for the log.
        fallback: The other mode, where it may be tried if this one turns out not to work; else None.
    """

    mode: Mode
    reason: str
    fallback: Mode | None = None


def negotiate(
    offered: Sequence[str] | None,
    requested: str = "auto",
    *,
    table: str,
    num_files: int | None = None,
    location: str | None = None,
    url_refusal: str | None = None,
) -> Decision:
    """Choose a mode.

    Args:
        offered: The server's ``accessModes``; None and empty mean url only, as the protocol says.
        requested: The option ``accessMode``: ``"auto"``, ``"url"`` or ``"dir"``.
        num_files: The server's count of the table's files, if it says.
        location: The table's root, as the server says.
        url_refusal: Why the server would not answer for this table in url mode (its features), if it was asked.

    Raises:
        AccessModeError: No mode fits; names what the server offers and what can be done.
    """
    modes = _known(offered)
    if not modes:
        raise AccessModeError(
            f"the sharing server offers table {table} by {_listed(offered)} only, and this client knows url and dir; "
            f"upgrade delta-sharing-spark, or ask the provider to offer one of them"
        )
    dir_refusal = None
    if "dir" in modes and not location:
        dir_refusal = "the server names no location for it, which the protocol requires"
    if requested == "url":
        return _only_url(modes, offered, table, url_refusal)
    if requested == "dir":
        return _only_dir(modes, offered, table, dir_refusal)
    can_url = "url" in modes and url_refusal is None
    can_dir = "dir" in modes and dir_refusal is None
    if can_url and can_dir:
        if num_files is not None and num_files > MANY_FILES:
            return Decision("dir", f"both modes are offered and the table has {num_files} files", fallback="url")
        return Decision("url", f"both modes are offered, and url is preferred up to {MANY_FILES} files")
    if can_url:
        why = "the server offers url only" if "dir" not in modes else f"dir cannot be used: {dir_refusal}"
        return Decision("url", why if offered else "the server names no access modes, which means url")
    if can_dir:
        return Decision(
            "dir", "the server offers dir only" if "url" not in modes else f"url was refused: {url_refusal}"
        )
    causes = "; ".join(
        part
        for part in (
            f"url was refused: {url_refusal}" if "url" in modes and url_refusal else "",
            f"dir cannot be used: {dir_refusal}" if "dir" in modes and dir_refusal else "",
        )
        if part
    )
    raise AccessModeError(
        f"table {table} cannot be read by what the sharing server offers ({_listed(offered)}): {causes}; "
        f"ask the provider to offer {'dir' if 'dir' not in modes else 'url'} as well"
    )


def _only_url(modes: set[Mode], offered: Sequence[str] | None, table: str, refusal: str | None) -> Decision:
    if "url" not in modes:
        raise AccessModeError(
            f"accessMode=url was asked for, but the sharing server offers table {table} by {_listed(offered)} only; "
            f"set accessMode to auto or dir"
        )
    if refusal is not None:
        other = "set accessMode to auto or dir" if "dir" in modes else "ask the provider to offer dir as well"
        raise AccessModeError(f"table {table} cannot be read with accessMode=url: {refusal}; {other}")
    return Decision("url", "accessMode=url")


def _only_dir(modes: set[Mode], offered: Sequence[str] | None, table: str, refusal: str | None) -> Decision:
    if "dir" not in modes:
        offer = f"offers table {table} by {_listed(offered)} only" if offered else f"names no access modes for {table}"
        raise AccessModeError(
            f"accessMode=dir was asked for, but the sharing server {offer}, which means url; "
            f"set accessMode to auto or url, or ask the provider to offer dir"
        )
    if refusal is not None:
        other = "set accessMode to auto or url" if "url" in modes else "ask the provider to correct it or to offer url"
        raise AccessModeError(f"table {table} cannot be read with accessMode=dir: {refusal}; {other}")
    return Decision("dir", "accessMode=dir")


def _known(offered: Sequence[str] | None) -> set[Mode]:
    if not offered:
        return {"url"}
    names = {mode.strip().lower() for mode in offered}
    modes: tuple[Mode, ...] = ("url", "dir")
    return {mode for mode in modes if mode in names}


def _listed(offered: Sequence[str] | None) -> str:
    return ", ".join(repr(mode) for mode in offered) if offered else "'url' (it names none)"
