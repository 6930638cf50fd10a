"""Answers which files of one load a scan needs, and remembers the answers: the listings of the native lane, free of Spark."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Protocol

from delta_sharing_spark.access.cached_access import table_namespace
from delta_sharing_spark.access.contract import NotPinnedError
from delta_sharing_spark.access.load import ScanListing
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import PlanReport, plan
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.errors import VersionError
from delta_sharing_spark.native.plan import (
    COUNTED,
    COUNTED_TOGETHER,
    Joined,
    LoadColumns,
    NativePlan,
    UncountedError,
    renewing_here,
)
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.parquet.decoding import OLDEST, Release
from delta_sharing_spark.predicates.tree import Expression

_log = logging.getLogger(__name__)

#: Questions of one load whose answers can be made anew once they were let go.
_QUESTIONS = 10_000
#: Files of a load's listings of which it is remembered which were shown as one.
_JOINED_FILES = 1_000_000

#: Tables, by server and recipient, whose files the server lists at their newest version alone.
_unpinned: ProcessCache[str, bool] = ProcessCache(1_000)

#: A condition of ``where`` (None for all files), and the rows that are enough (None for all; or COUNTED, COUNTED_TOGETHER).
Question = tuple[Expression | None, int | None]


class ListingKeeper(Protocol):
    """Keeps listings within bounds (``gateway.Gateway``)."""

    def plan(self, token: str) -> NativePlan | None:
        """The listing of a token, if it is kept."""

    def keep(self, index: TableIndex, plan: NativePlan) -> None:
        """Serve a listing of an index."""

    def release(self, plan: NativePlan) -> None:
        """Let go of a listing."""


class TableIndex:
    """The listings of one load. All are of one version. Safe to call from several threads.

    Args:
        opener: What it was resolved over.
        keeper: Serves the listings.
        is_read_here: Whether files are read in this process; elsewhere what is carried there is as the load's options say.
        release: Spark's; its reader decodes more or less.

    Attributes:
        load: The load.
        token: Names the load in paths; not a secret.
        identity: Equal for loads of the same rows by the same recipient alone.
        shown: The columns as Spark is shown them.
    """

    def __init__(
        self,
        load: ResolvedScan,
        opener: TableOpener,
        keeper: ListingKeeper,
        *,
        is_read_here: bool = True,
        release: Release = OLDEST,
    ) -> None:
        self.load, renewing = renewing_here(load, opener) if is_read_here else (load, opener)
        self._opener = renewing or TableOpener(self.load)
        self._keeper = keeper
        self._lock = threading.RLock()
        self._questions: OrderedDict[Question, int] = OrderedDict()
        #: By a question's number: which files its listing shows as one, so that one made anew has the same names.
        self._joined: OrderedDict[int, Joined] = OrderedDict()
        self._joined_files = 0
        self._numbers = 0
        self._fixed: NativePlan | None = None
        self._total: tuple[int, int] | None = None
        self._name = table_namespace(load.profile, load.table, load.shape.id)
        self.token = secrets.token_hex(16)
        self.identity = identity_of(load)
        self.shown = LoadColumns(self.load, release)

    def begin(self) -> None:
        """List the files now if they cannot be asked for later, or the load's own limit says which they are.

        A server that lists its newest version alone cannot be asked for another one, and moments may be another version's.

        Raises:
            StepAsideError: Statistics do not tell which files hold the rows of a limit.
            DeltaSharingError: As ``listed``.
        """
        with self._lock:
            if self._fixed is None and is_listed_once(self.load):
                self._fix(None)

    def listed(
        self, filters: tuple[str, ...], question: Question, listed: Callable[[int], None] | None = None
    ) -> tuple[NativePlan, ScanListing]:
        """The files of a question, and what was done for it.

        Args:
            filters: Spark's filters as SQL, for the record.
            question: The condition that files are left out by, and the rows that are enough.
            listed: As for ``access.plan.plan``; what it raises ends the listing.

        Raises:
            DeltaSharingError: The files cannot be listed; another one than today's version of the table.
        """
        began = time.monotonic()
        with self._lock:
            listing = self._listing_for(question)
            native = listing or self._make(question, listed)
        report = native.report
        record = ScanListing(
            native.table,
            native.version,
            report.mode,
            filters,
            None if question[0] is None or self._fixed is not None else str(question[0]),
            question[1] if self._fixed is None and (question[1] or 0) >= 0 else None,
            any(file.rows is not None for file in native.files),
            report.sent,
            report.listed,
            report.files,
            report.bytes,
            len(native.files),
            self._total_files(report),
            time.monotonic() - began,
            listing is not None or report.is_repeated,
        )
        _log.info("%s", record)
        return native, record

    def again(self, token: str) -> NativePlan | None:
        """A listing that was let go, made anew with at least the same files; None if it is not known any more."""
        number = token.rpartition("-")[2]
        with self._lock:
            if self._fixed is not None:
                return self._listing_for((None, None))
            question = next((q for q, n in self._questions.items() if str(n) == number), None)
            if question is None:
                return None
            return self._keeper.plan(token) or self._make(question, None, every=True)

    def size_in_bytes(self) -> int:
        """The bytes of all files: as the server states or an earlier listing told, else by one listing, which is kept."""
        head = self.load.head
        with self._lock:
            if self._total is not None:
                return self._total[1]
            is_current = head.version in (None, self.load.version) and not self.load.options.read_change_feed
            if is_current and head.metadata.size is not None:
                return head.metadata.size
            return self.listed((), (None, None))[0].report.bytes

    def _listing_for(self, question: Question) -> NativePlan | None:
        """A listing that answers a question; one whose files could not be read is asked for again."""
        if self._fixed is not None:
            if self._keeper.plan(self._fixed.token) is None:
                self._keeper.keep(self, self._fixed)
            return self._fixed
        number = self._questions.get(question)
        held = None if number is None else self._keeper.plan(f"{self.token}-{number}")
        if held is None:
            return None
        if held.has_failed:
            self._keeper.release(held)
            self._opener.table().forget_listing()
            return None
        self._questions.move_to_end(question)
        return held

    def _make(self, question: Question, listed: Callable[[int], None] | None, *, every: bool = False) -> NativePlan:
        """List the files of a question; ``every`` one that fulfils its condition, whatever rows are enough."""
        condition, rows = question
        load = self.load
        is_count = rows is not None and rows < 0
        asked = replace(load, pushed=condition, is_pinned=True, rows_needed=None if every or is_count else rows)
        # A count and a scan of one condition are of the same files.
        alike = (None, COUNTED, COUNTED_TOGETHER) if rows is None or is_count else ()
        other = next((listing for of in alike if of != rows and (listing := self._listing_for((condition, of)))), None)
        try:
            planned = plan(asked, opener=self._opener, listed=listed) if other is None else other.planned
        except NotPinnedError as refusal:
            _log.info("table %s: %s; its files are listed once, all of them", load.table, refusal)
            _unpinned.put(self._name, True)
            return self._fix(listed)
        assert planned is not None, "another process makes no listing"
        if is_count:
            try:
                counted = NativePlan(load, planned, self.shown, self._token(question), counts=rows)
            except UncountedError:
                question, rows = (condition, None), None
                self._questions[condition, COUNTED] = self._numbered(question)
                self._questions[condition, COUNTED_TOGETHER] = self._numbered(question)
                if (listing := self._listing_for(question)) is not None:
                    return listing
            else:
                self._keeper.keep(self, counted)
                return counted
        if rows is None and planned.report.files == self._total_files(planned.report):
            # The condition leaves out nothing: queries share what is read of the files.
            self._questions[question] = self._numbered((None, None))
            question = None, None
            if (listing := self._listing_for(question)) is not None:
                return listing
        number = self._numbered(question)
        joined = self._joined.get(number)
        native = NativePlan(load, planned, self.shown, self._token(question), joined)
        if joined is None:
            self._remember(number, native)
        if question == (None, None):
            self._total = planned.report.files, planned.report.bytes
        self._keeper.keep(self, native)
        return native

    def _remember(self, number: int, native: NativePlan) -> None:
        self._joined[number] = native.joined
        self._joined_files += native.report.files
        while self._joined_files > _JOINED_FILES and len(self._joined) > 1:
            _, oldest = self._joined.popitem(last=False)
            self._joined_files -= sum(map(len, oldest))

    def _token(self, question: Question) -> str:
        """The token of a question's listing."""
        return f"{self.token}-{self._numbered(question)}"

    def _numbered(self, question: Question) -> int:
        """The number of a question, by which its listing is named."""
        if question not in self._questions:
            self._questions[question] = self._numbers
            self._numbers += 1
            if len(self._questions) > _QUESTIONS:
                self._questions.popitem(last=False)
        return self._questions[question]

    def _total_files(self, report: PlanReport) -> int | None:
        """The number of the version's files, where it is known."""
        head = self.load.head
        if self._total is not None:
            return self._total[0]
        if report.total_files is not None:
            return report.total_files
        is_current = head.version in (None, self.load.version) and not self.load.options.read_change_feed
        return head.metadata.num_files if is_current else None

    def _fix(self, listed: Callable[[int], None] | None) -> NativePlan:
        """List all files at the newest version, once for the load's life.

        Raises:
            VersionError: Files of another version were listed before.
        """
        planned = plan(self.load, opener=self._opener, listed=listed)
        if self._numbers and planned.report.version != self.load.version:
            raise VersionError(
                f"the server no longer lists version {self.load.version} of {self.load.table}, which this DataFrame has read, but "
                f"{planned.report.version}: load the table again"
            )
        number = self._numbered((None, None))
        self._fixed = NativePlan(self.load, planned, self.shown, f"{self.token}-{number}", self._joined.get(number))
        self._total = planned.report.files, planned.report.bytes
        self._keeper.keep(self, self._fixed)
        return self._fixed


def is_listed_once(load: ResolvedScan) -> bool:
    """Whether the files of a load are listed when it is loaded, whatever its queries ask."""
    options = load.options
    if load.version is None or options.limit is not None or options.ending_timestamp is not None:
        return True
    return table_namespace(load.profile, load.table, load.shape.id) in _unpinned


def identity_of(load: ResolvedScan) -> str:
    """A digest that is equal for loads of the same rows by the same recipient; of no other load where the version is unknown."""
    if load.version is None:
        return secrets.token_hex(32)
    named = ("path", "credentials", "loaded_at")
    options = {name: value for name, value in asdict(load.options).items() if name not in named}
    moment = load.options.loaded_at if load.options.where is not None else None
    parts = (
        table_namespace(load.profile, load.table, load.shape.id),
        load.version,
        sorted(options.items()),
        moment,
        load.output,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
