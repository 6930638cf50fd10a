"""Receives the bytes of one read from a storage, and checks that all of its requests are answered from one version of the file."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import numpy as np

from delta_sharing_spark.errors import CorruptFileError, FileError
from delta_sharing_spark.network.bodies import declared_length
from delta_sharing_spark.network.connections import Canceller, ReadCancelled
from delta_sharing_spark.network.retry import RetryableError, WrongRangeError
from delta_sharing_spark.storage.ranges import Range

T = TypeVar("T")

_CHUNK = 1 << 20
#: Bytes of an object that is read whole: a commit, a checkpoint of the log.
_LARGEST_OBJECT = 1 << 30
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


class FileVersion:
    """The size and ETag of one file, by which a storage's answers are compared with the plan and with each other.

    Args:
        name: How errors name the file.
        size: Planned bytes; None where the plan does not say.
    """

    def __init__(self, name: str, size: int | None) -> None:
        self.name, self.size = name, size
        self._etag: str | None = None
        self._lock = threading.Lock()

    def accept(self, requested: Range, status: int, headers: Mapping[str, str]) -> int:
        """Check the head of an answer of status 200 or 206; returns how many bytes of its body come before ``requested``.

        Args:
            requested: The range that was asked for.
            status, headers: Those of the answer; ``headers`` is looked up by names in lower case.

        Raises:
            WrongRangeError: The answer holds other bytes.
            CorruptFileError: The answer is of another file than the one planned, or than the last answer.
            FileError: Something in between changed the body.
        """
        if status == 206:
            self._check_range(requested, headers.get("content-range", ""))
        else:
            declared = declared_length(headers)
            if declared is not None:
                self._check_size(declared)
        if headers.get("content-encoding", "identity").lower() not in ("", "identity", "aws-chunked"):
            raise FileError(
                f"file {self.name}: the storage sent it compressed though that was not asked for; "
                f"look for a proxy in between that changes what it passes on",
                file=self.name,
            )
        self._check_etag(headers.get("etag"))
        return 0 if status == 206 else requested.start

    def changed(self, why: str) -> CorruptFileError:
        """The error of a file that was replaced since it was planned."""
        return CorruptFileError(
            f"file {self.name} is not the one that was planned: {why}; reload the table", file=self.name
        )

    def _check_range(self, requested: Range, text: str) -> None:
        match = _CONTENT_RANGE.fullmatch(text.strip())
        if match is None or int(match[1]) != requested.start or not requested.start <= int(match[2]) < requested.end:
            raise WrongRangeError(f"asked for bytes {requested.start}-{requested.end - 1}, got {text!r}")
        if match[3] != "*":
            self._check_size(int(match[3]))

    def _check_size(self, size: int) -> None:
        if self.size is not None and size != self.size:
            raise self.changed(f"it has {size} bytes, planned were {self.size}")

    def _check_etag(self, etag: str | None) -> None:
        if etag is None or etag.startswith("W/"):
            return
        with self._lock:
            if self._etag is None:
                self._etag = etag
            elif self._etag != etag:
                raise self.changed("its ETag changed between two ranges")


class Transfer:
    """One read of a file, over as many requests as it takes: each asks for what is still missing.

    Args:
        requested: The range; None for the whole object, which is always read from its start.
        version: What the answers are compared with.

    Attributes:
        arrived: How many bytes have arrived.
    """

    def __init__(self, requested: Range | None, version: FileVersion) -> None:
        self.arrived = 0
        self._requested, self._version = requested, version
        self._skip = 0
        #: All of a range has its room at once: what grows is held up to an eighth larger, and twice while it moves.
        self._range = np.empty(0 if requested is None else requested.length, dtype=np.uint8).data
        self._whole = bytearray()

    @property
    def data(self) -> bytes | memoryview:
        """The bytes that have arrived; of a range without a copy."""
        return bytes(self._whole) if self._requested is None else self._range[: self.arrived]

    @property
    def missing(self) -> Range | None:
        """The range that the next request asks for; None for the whole object."""
        return None if self._requested is None else Range(self._requested.start + self.arrived, self._requested.end)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing; of a whole object, only the end of its body tells."""
        return self._requested is not None and self.arrived >= self._requested.length

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of the next request."""
        missing = self.missing
        return {} if missing is None else {"Range": missing.header}

    async def receive(
        self, status: int, headers: Mapping[str, str], read: Callable[[int], Awaitable[bytes | memoryview]]
    ) -> None:
        """Receive an answer; its bytes are kept as they arrive, also if it breaks off.

        Args:
            status, headers: Those of the answer.
            read: Returns at most so many bytes of its body, none at its end.

        Raises:
            As ``FileVersion.accept``.
        """
        self._begin(status, headers)
        while not self.is_complete and (chunk := await read(_CHUNK)):
            self._add(chunk)

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        missing = self.missing
        if missing is None:
            self._whole.clear()
            self.arrived = 0
        else:
            self._skip = self._version.accept(missing, status, headers)

    def _add(self, chunk: bytes | memoryview) -> None:
        if self._requested is None:
            self._whole += chunk
            self.arrived = len(self._whole)
            if self.arrived > _LARGEST_OBJECT:
                raise FileError(
                    f"file {self._version.name} has more than {_LARGEST_OBJECT >> 20} MiB; ask the provider to check it"
                )
            return
        skipped = min(self._skip, len(chunk))
        self._skip -= skipped
        wanted = memoryview(chunk)[skipped : skipped + self._requested.length - self.arrived]
        self._range[self.arrived : self.arrived + len(wanted)] = wanted
        self.arrived += len(wanted)


class Cancellation(Canceller):
    """A ``Canceller`` that also ends requests in a storage library's loop."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._under_way: set[concurrent.futures.Future[Any]] = set()

    def run(self, request: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, seconds: float) -> T:
        """Run a request in the storage library's loop, until it ends, is cancelled, or its time is over.

        Raises:
            ReadCancelled: It was cancelled.
            RetryableError: It had not ended after ``seconds``.
        """
        with self._lock:
            if self._broken.is_set():
                request.close()
                self.check()
            future = asyncio.run_coroutine_threadsafe(request, loop)
            self._under_way.add(future)
        try:
            return future.result(seconds)
        except (TimeoutError, concurrent.futures.TimeoutError):
            if future.done():
                raise  # the library's own
            future.cancel()
            raise RetryableError(f"it had not answered completely after {seconds:.0f} s") from None
        except concurrent.futures.CancelledError:
            raise ReadCancelled from None
        finally:
            with self._lock:
                self._under_way.discard(future)
            # Its error's frames refer to this one: a circle, which would keep the bytes of the read in memory.
            del future

    def break_off(self) -> None:
        super().break_off()
        with self._lock:
            under_way = list(self._under_way)
        for future in under_way:
            future.cancel()


def close_later(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Close a library's session in its loop, from whatever thread lets go of it, without waiting.

    s3fs allows 0.1 s for it, gcsfs calls the loop from the wrong thread: both leave connections to the garbage collector.
    """

    def begin() -> None:
        task = loop.create_task(close())
        _CLOSING.add(task)
        task.add_done_callback(_CLOSING.discard)

    with contextlib.suppress(RuntimeError):  # the loop has ended, and its connections with it
        loop.call_soon_threadsafe(begin)


#: A loop keeps no task alive by itself; each goes once its session is closed.
_CLOSING: set[asyncio.Task[object]] = set()
