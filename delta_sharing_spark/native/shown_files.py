"""Shows one plan's files to Spark's reader, and fetches the footers of those that it will open next."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from delta_sharing_spark.native.budget import Budget
from delta_sharing_spark.native.files import ShownFile
from delta_sharing_spark.native.plan import NativePlan, ScanColumns
from delta_sharing_spark.native.schema_match import NotNativeError
from delta_sharing_spark.network.open_ones import OpenOnes
from delta_sharing_spark.storage.ranges import ByteSource

#: Files whose footers are fetched ahead, at least and at most.
_FEWEST, _MOST = 2, 32


class ShownFiles:
    """The files of one plan as they are served, by number. Safe to call from several threads.

    Args:
        plan: The plan.
        budget: Bounds the footers that all plans hold.
    """

    def __init__(self, plan: NativePlan, budget: Budget) -> None:
        self._plan = plan
        self._budget = budget
        self._lock = threading.Lock()
        self._shown: dict[int, Future[ShownFile]] = {}
        self._sources: OpenOnes[ByteSource] = OpenOnes()
        self._ahead: set[int] = set()
        self._window = _FEWEST

    def get(self, number: int, columns: ScanColumns | None = None) -> ShownFile:
        """A file as it is served, for a scan of ``columns`` (None where nobody told them); waits for its footer.

        Raises:
            DeltaSharingError: As ``show_file``.
        """
        with self._lock:
            is_first = number not in self._shown or number in self._ahead
            future = self._show(number, columns)
            if number in self._ahead:
                self._ahead.discard(number)
                if not future.done():  # Spark waits for it: it should have been begun earlier
                    self._window = min(_MOST, self._window * 2)
            self._budget.use(self, number)
            if is_first:
                self._show_ahead(number, columns)
        try:
            return future.result()
        except NotNativeError:  # it was fetched ahead, and nothing is rewritten ahead
            with self._lock:
                self._forget(number, future)
                future = self._show(number, columns)
            return future.result()
        except BaseException:
            with self._lock:
                self._forget(number, future)  # the next try asks anew
            raise

    def ready(self, number: int) -> ShownFile | None:
        """A file whose footer was fetched, and could be read; None otherwise."""
        future = self._shown.get(number)
        if future is None or not future.done() or future.cancelled() or future.exception() is not None:
            return None
        return future.result()

    def forget(self, number: int) -> None:
        """Release a file's footer; reads of the file go on."""
        with self._lock:
            self._shown.pop(number, None)

    def close(self) -> None:
        """Release everything; reads under way are broken off."""
        with self._lock:
            self._shown = {}
        self._sources.close()
        self._budget.forget(self)

    def _show(self, number: int, columns: ScanColumns | None, *, is_ahead: bool = False) -> Future[ShownFile]:
        future = self._shown.get(number)
        if future is None:
            future = self._shown[number] = self._budget.openers.submit(self._opened, number, columns, not is_ahead)
        return future

    def _forget(self, number: int, future: Future[ShownFile]) -> None:
        if self._shown.get(number) is future:
            del self._shown[number]

    def _show_ahead(self, number: int, columns: ScanColumns | None) -> None:
        if len(self._ahead) > 2 * self._window:
            self._ahead.clear()  # Spark reads other files than was expected
            self._window = _FEWEST
        size = 0
        for _, other in zip(range(self._window), self._plan.after(number), strict=False):
            file = self._plan.files[other]
            if len(file.members) > 1:  # it may be fetched whole
                size += file.size
            if size and not self._budget.has_room_for(size):
                break
            if other not in self._shown:
                self._ahead.add(other)
                self._show(other, columns, is_ahead=True)

    def _opened(self, number: int, columns: ScanColumns | None, may_rewrite: bool) -> ShownFile:
        file, budget = self._plan.files[number], self._budget
        size = 2 * file.size if len(file.members) > 1 else 0
        arriving: set[int] = set()  # stands for the small files that are fetched, and for all as one
        budget.admit_in_time(arriving, size) or budget.admit(arriving, size, at_all=True)
        shown = self._plan.show(number, self._sources, budget.fetchers, columns, may_rewrite=may_rewrite)
        if shown.whole is not None:
            budget.admit(shown.whole, len(shown.whole), at_all=True)
        self._budget.hold(self, number, shown)
        return shown
