"""Answers Spark's Parquet reader, whose requests say where it begins to read and never how far.

The footer tells where the column chunk ends that begins there; Spark's plan tells which other chunks the query reads, or
what it read of the row group before. These are fetched by parallel ranges, those of the next row group or file ahead of
need. Memory is bounded: fetched chunks by ``budget.AHEAD_BYTES``, those kept once read by ``budget.KEPT_BYTES``, a chunk
too large for that by a window of a few pieces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from delta_sharing_spark.errors import NullInRequiredError
from delta_sharing_spark.native.budget import Budget
from delta_sharing_spark.native.doubts import ENOUGH, HELD, LEAVES, SOON, TASTED, UNKNOWN, WAITS, Doubt, Reaction
from delta_sharing_spark.native.file_pass import FilePass
from delta_sharing_spark.native.files import ShownFile
from delta_sharing_spark.native.held_chunks import GROUP_BYTES, GroupKey, HeldChunks
from delta_sharing_spark.native.layout import Chunk, Layout
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.native.shown_files import ShownFiles
from delta_sharing_spark.native.visits import Certainty, Visits
from delta_sharing_spark.scan.read_ahead import BufferedRanges
from delta_sharing_spark.storage.ranges import Range, cut

_SENT = 1 << 20
#: Bytes of a small file that are sent whatever a reader wants of them: it costs less than to find out.
_SENT_WHOLE = 64 << 10
#: Bytes after a chunk that are fetched with it, in case they are wanted too: so many more each time that they were.
_NEAR, _NEARER = 64 << 10, 4
#: Bytes that are sent to a reader that may have enough: it leaves late where it decodes first what it has.
_TASTE = 4 << 10
#: Columns of a run after each of which the reader may have enough; beyond, it is asked more and more seldom.
_ASKED_EACH = 4

#: Bytes of row groups that are fetched ahead of the one that is read, and how many: those of small files are many.
_AHEAD, _GROUPS_AHEAD = 8 << 20, 16

#: Seconds between two looks for queries that Spark has begun, while none is known to read the plan, and while one is.
_LOOK, _LOOK_BESIDE = 0.02, 0.5

#: Seconds for which a file that could not be reached is not tried again.
_FAILED = 10.0

#: What an answer yields; it is sent the reader's reaction to a doubt.
Pieces = Generator[memoryview | Doubt, Reaction | None, None]


@dataclass(slots=True)
class _Run:
    """The columns that one answer sends, of which the reader may want the first ones alone.

    Attributes:
        pending: Chunks sent that the reader may not have read, each with its visit.
        visit: The reader's visit of the row group ``key``; none before the first chunk.
        doubts: Doubts after which the reader went on.
        unasked: Chunks since the latest of them.
    """

    pending: list[tuple[set[bytes], Chunk]] = field(default_factory=list)
    key: GroupKey | None = None
    visit: set[bytes] = field(default_factory=set)
    doubts: int = 0
    unasked: int = 0

    @property
    def assumed(self) -> set[bytes]:
        """The columns of the pending chunks."""
        return {chunk.column for _, chunk in self.pending}

    def is_to_be_asked(self) -> bool:
        """Whether a doubt is due where more is held."""
        self.unasked += 1
        return self.unasked >= 1 << max(0, self.doubts - _ASKED_EACH + 1)


class PlanReader:
    """Reads one plan's files, and fetches ahead what Spark will read next.

    Args:
        plan: The plan.
        budget: Bounds what all plans hold.

    Attributes:
        plan: The plan.
        files: Its files as they are served.
    """

    def __init__(self, plan: NativePlan, budget: Budget) -> None:
        self.plan = plan
        self._budget = budget
        self._lock = threading.Lock()
        self.files = ShownFiles(plan, budget)
        self._chunks = HeldChunks(budget)
        self._visits = Visits()
        self._pass = FilePass()
        #: Why files could not be reached, and until when that is the answer to who asks again.
        self._failures: dict[int, tuple[float, str]] = {}
        #: Whether a reader read more than Spark's plans say; they are not asked for again then.
        self._is_misled = False

    def _learn(self, since: float | None = None) -> bool:
        """Ask what the running queries read, those too that began before ``since``; returns whether that is news."""
        queries = self.plan.queries
        if queries is None or self._is_misled:
            return False
        return self._visits.learn(queries.scans(self.plan.scan_token, since))

    def _moment_ago(self) -> float:
        """The time that what is known of the running queries may not be older than, for what is fetched to depend on it."""
        return time.monotonic() - (_LOOK_BESIDE if self._visits.knows_scans else _LOOK)

    def note_failure(self, number: int, cause: str) -> None:
        """Note that a file could not be reached for as long as it may be tried."""
        self._failures[number] = time.monotonic() + _FAILED, cause

    def failure_of(self, number: int | None) -> str | None:
        """Why a file could not be reached a moment ago: Spark asks up to twelve times, each of which would try as long."""
        until, cause = self._failures.get(-1 if number is None else number, (0.0, ""))
        return cause if time.monotonic() < until else None

    def read(self, number: int, offset: int) -> Pieces:
        """The file's bytes from ``offset`` to its end, or until the reaction to a doubt is that the reader has left.

        Raises:
            DeltaSharingError: The bytes cannot be read; NullInRequiredError for a chunk with a NULL in a NOT NULL column.
        """
        began = time.monotonic()
        shown = self.files.get(number)
        layout = shown.layout
        if shown.whole is not None and layout.length - offset <= _SENT_WHOLE and not layout.has_nulls:
            yield memoryview(b"".join((shown.whole[: layout.data_end], layout.tail)))[offset:]
            return
        if offset >= layout.data_end:
            with self._lock:
                self._pass.opened(number)
            if self.plan.queries is not None and self._chunks.is_empty:
                # The task that reads the footer asks for columns next, and none is held.
                self._budget.openers.submit(self._learn, self._moment_ago())
            yield memoryview(layout.tail)[offset - layout.data_end :]
            return
        if offset < 4:
            yield memoryview(b"PAR1")[offset:]
            if ((yield ENOUGH if self.plan.queries is None else LEAVES) or WAITS).has_left:
                return
            offset = 4
        if self._visits.knows_scans:
            self._learn()
        if shown.whole is not None:
            yield from self._whole(number, shown, offset)
            offset = max(offset, layout.data_end)
        near, is_in_doubt, is_told, run = _NEAR, False, False, _Run()
        doubt: Doubt | None = None
        while offset < layout.data_end:
            index = layout.chunk_from(offset)
            chunk = layout.chunks[index] if index < len(layout.chunks) else None
            if chunk is not None and chunk.range.start == offset and chunk.range.length:
                start = offset
                if is_in_doubt and chunk.null_in is None:
                    start = min(offset + _TASTE, chunk.range.end)
                    yield shown.read(offset, start)
                    reaction = (yield TASTED) or WAITS
                    if reaction.has_left:
                        return
                    if doubt is LEAVES and reaction.has_read_all:
                        self._is_misled = True
                        self._visits.learn(())
                if not is_told:
                    is_told = self._chunks.find((number, chunk.row_group), chunk) is None
                    if is_told:
                        self._learn(self._moment_ago())
                yield from self._chunk(number, shown, chunk, start, near, run)
                offset = chunk.range.end
                doubt = self._next(number, layout, chunk, run)
                if doubt is UNKNOWN and self._learn(max(began, time.monotonic() - _LOOK)):
                    doubt = self._next(number, layout, chunk, run)
                is_in_doubt = doubt is not None and doubt is not HELD
            else:
                end = layout.data_end if chunk is None else min(layout.data_end, chunk.range.start)
                end = min(end, offset + _SENT) if end > offset else min(layout.data_end, offset + _SENT)
                yield shown.read(offset, end)
                doubt, offset = UNKNOWN, end
            if doubt is not None:
                doubt, reaction = yield from self._reaction(doubt, began)
                if reaction.has_read_all:
                    self._was_read(number, run.pending)
                if reaction.has_left:
                    return
                run.pending, run.doubts, run.unasked = [], run.doubts + 1, 0
                near *= _NEARER
        yield memoryview(layout.tail)[offset - layout.data_end :]

    def _reaction(self, doubt: Doubt, began: float) -> Generator[Doubt, Reaction | None, tuple[Doubt, Reaction]]:
        """The reader's reaction to a doubt; a reader is waited for long only if no query began that may want more."""
        if doubt is not LEAVES:
            return doubt, (yield doubt) or WAITS
        reaction = (yield SOON) or WAITS
        if reaction.has_left:
            return doubt, reaction
        if self._learn(began):
            return UNKNOWN, reaction
        return doubt, (yield LEAVES) or WAITS

    def _whole(self, number: int, shown: ShownFile, offset: int) -> Iterator[memoryview]:
        """The rest of a file that is in memory, up to its first chunk with a NULL in a NOT NULL column."""
        assert shown.whole is not None
        chunks = shown.layout.chunks
        bad = next((c for c in chunks[shown.layout.chunk_from(offset) :] if c.null_in is not None), None)
        end = shown.layout.data_end if bad is None else bad.range.start
        if offset < end:
            yield shown.whole[offset:end]
        if bad is not None:
            raise self._null_in(number, bad)

    def _null_in(self, number: int, chunk: Chunk) -> NullInRequiredError:
        file = self.plan.files[number].members[chunk.member].task.id
        return NullInRequiredError(
            f"file {file} of {self.plan.table} has a NULL in column {chunk.null_in!r}, which the table declares NOT NULL; "
            f"ask the provider to repair the file, or leave the column out with the option 'columns'",
            file=file,
            column=chunk.null_in,
        )

    def _chunk(
        self, number: int, shown: ShownFile, chunk: Chunk, start: int, near: int, run: _Run
    ) -> Iterator[memoryview]:
        """A chunk's bytes from ``start``."""
        if chunk.null_in is not None:
            raise self._null_in(number, chunk)
        buffer = self._expect(number, shown, chunk, near, run)
        if buffer is None:
            yield from self._chunks.windowed(shown, Range(start, chunk.range.end))
            return
        for piece in cut(Range(start, chunk.range.end), _SENT):  # none is left of a small chunk that was tasted whole
            yield buffer.read(piece.start, piece.length)
        if not any(sent is chunk for _, sent in run.pending):
            self._chunks.was_read((number, chunk.row_group), chunk.column)

    def _was_read(self, number: int, chunks: list[tuple[set[bytes], Chunk]]) -> None:
        """Remember that the reader has read chunks."""
        for visit, chunk in chunks:
            with self._lock:
                visit.add(chunk.column)
            self._chunks.was_read((number, chunk.row_group), chunk.column)

    def _expect(self, number: int, shown: ShownFile, chunk: Chunk, near: int, run: _Run) -> BufferedRanges | None:
        """The buffer of a chunk, fetched with the others that the query is likely to read; None if the chunk is too large."""
        key = (number, chunk.row_group)
        chunks = shown.layout.of_group(chunk.row_group)
        with self._lock:
            self._pass.read(number)
            is_first = run.key is None
            if run.key != key:
                run.key, run.visit = key, self._visits.enter(key, chunk.column, chunks)
            likely, certainty = self._visits.likely(run.visit, chunk, chunks, run.assumed)
            is_all = certainty is not Certainty.NONE
            if is_first or chunk.column in likely:
                run.visit.add(chunk.column)
            else:
                run.pending.append((run.visit, chunk))
            buffer = self._chunks.find(key, chunk)
            if buffer is None:
                wanted = _chunks_to_fetch(chunk, chunks, likely, 0 if is_all else near)
                buffer = self._chunks.fetch(key, shown, wanted)
            if is_all:
                self._fetch_next(number, chunk.row_group, shown, likely)
            return buffer

    def _next(self, number: int, layout: Layout, chunk: Chunk, run: _Run) -> Doubt | None:
        """The doubt to yield after a chunk; None to go on at once."""
        index = layout.chunk_from(chunk.range.end)
        after = layout.chunks[index] if index < len(layout.chunks) else None
        if after is None or after.range.start != chunk.range.end:
            return ENOUGH
        if after.row_group != chunk.row_group:
            # Of files that are shown as one, the next one: it has been fetched if the query reads the same columns of it.
            return ENOUGH if self._chunks.find((number, after.row_group), after) is None else None
        key = (number, chunk.row_group)
        chunks = layout.of_group(chunk.row_group)
        with self._lock:
            likely, certainty = self._visits.likely(run.visit, chunk, chunks, run.assumed)
            if after.column in likely:
                return None
            if certainty is Certainty.PLANNED and not self._visits.is_planned(after.column, chunks):
                return LEAVES
            if self._chunks.find(key, after) is not None:
                return HELD if run.is_to_be_asked() else None
            return UNKNOWN if certainty is Certainty.NONE else ENOUGH

    def _fetch_next(self, number: int, row_group: int, shown: ShownFile, likely: set[bytes]) -> None:
        """Fetch the same columns of the next row group, or of the file that Spark reads next."""
        size, group = 0, row_group + 1
        while following := shown.layout.of_group(group):
            following = [c for c in following if c.column in likely]
            size += sum(c.range.length for c in following)
            if group > row_group + 1 and (size > _AHEAD or group > row_group + _GROUPS_AHEAD):
                return
            self._chunks.fetch_ahead((number, group), shown, following)
            group += 1
        if group == row_group + 1:
            other = self._pass.next(self.plan.after(number))
            ahead = None if other is None else self.files.ready(other)
            if other is not None and ahead is not None and ahead.whole is None:
                first = [c for c in ahead.layout.of_group(0) if c.column in likely]
                self._chunks.fetch_ahead((other, 0), ahead, first)

    def close(self) -> None:
        """Release everything; reads under way are broken off."""
        self._chunks.close()
        self.files.close()


def _chunks_to_fetch(chunk: Chunk, chunks: list[Chunk], likely: set[bytes], near: int) -> list[Chunk]:
    """The chunks to fetch with one that is asked for: those of its row group that the query likely reads, else those ``near``."""
    after = [c for c in chunks if c.range.start >= chunk.range.start]
    selected = [c for c in after if c is chunk or c.column in likely]
    if sum(c.range.length for c in selected) > GROUP_BYTES:
        return [chunk]
    end = chunk.range.end
    for other in after[1:]:
        if other.range.start != end or other.range.end - chunk.range.end > near:
            break
        if other.column not in likely:
            selected.append(other)
        end = other.range.end
    return selected
