"""A read-only WebHDFS server on loopback, in threads of this process, for Spark's own readers: planned snapshots, volumes and models.

It serves nothing but the files of its plans and places, each under a path of 128 random bits, to processes of this user alone. It
ends with the last session that loaded something. ``machines`` and ``machine_gateway`` make it serve a cluster.
"""

from __future__ import annotations

import logging
import re
import secrets
import socket
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from delta_sharing_spark.errors import DeltaSharingError, NetworkError, NoSuchFileError, displayable
from delta_sharing_spark.native import webhdfs
from delta_sharing_spark.native.answers import Pieces, send_pieces
from delta_sharing_spark.native.budget import Bounds, Budget
from delta_sharing_spark.native.peers import is_own_process
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.native.plan_reader import PlanReader
from delta_sharing_spark.native.scan_columns import UNTOLD, ScanColumns
from delta_sharing_spark.native.served_place import ServedPlace, status_of
from delta_sharing_spark.native.table_index import TableIndex
from delta_sharing_spark.native.webhdfs import Request
from delta_sharing_spark.network.newcomers import IN_ALL, Newcomers
from delta_sharing_spark.network.process_end import awaiting, closed_at_exit, is_ending, start_thread, stay_at_end
from delta_sharing_spark.storage.place import Place

_log = logging.getLogger(__name__)
#: Plans and files of plans that a gateway keeps: the longest unused plan is let go of beyond.
MAX_PLANS, MAX_PLANNED_FILES = 2_000, 500_000
#: Those that have shown that they may ask, beside newcomers.
_CONNECTIONS = 512
#: Errors that are kept, so that the cause of a failed query can be found again in Spark's message.
_ERRORS_KEPT = 64
#: Seconds: a connection may idle, or take a send; between two looks at whether the sessions still live.
_STALLED, _WATCH = 600.0, 1.0
#: Seconds for the threads of a closed gateway to stop; for all of it to end.
_STOPPING, _ENDING = 5.0, 15.0
#: Bytes before a footer that a reader may ask for with it.
_PADDING = 1 << 20
_READ_ONLY = "the native lane's gateway is read-only, and tells and gives files alone"
_LET_GO = "delta-sharing-spark: the plan of this DataFrame was let go, with its session or for newer ones; load the table again"
#: Whether a session has ended.
HasEnded = Callable[[], bool]


class GatewayClosedError(Exception):
    """The gateway has ended, with the last of what it served: another one is to serve what comes."""


class Gateway:
    """Serves plans and places at one address.

    Args:
        host, port: The address to bind; a free port by default.
        admits: Whether a connection is served; by default those of this user's processes are.
        bounds: Of the memory and the disk that it uses.

    Attributes:
        shown_length: The length that Spark is told of each file; None for its own, for which its footer is fetched.
        key_field: A field that the header of each request must have, in lower case; None where none must.
        hosts: Hosts of executors that have a gateway of their own, each of which some files prefer.
        most_files: Files of plans that it keeps.

    Raises:
        OSError: The address cannot be bound.
    """

    shown_length: int | None = None
    key_field: str | None = None
    hosts: Sequence[str] = ()
    most_files = MAX_PLANNED_FILES

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        admits: Callable[[socket.socket], bool] = is_own_process,
        bounds: Bounds | None = None,
    ) -> None:
        self.host = host
        self._admits = admits
        self._budget = Budget(bounds or Bounds())
        self._lock, self._accepting = threading.Lock(), threading.Lock()
        self._plans: OrderedDict[str, tuple[PlanReader, HasEnded]] = OrderedDict()
        self._places: dict[str, tuple[ServedPlace, HasEnded]] = {}
        #: Loads whose listings are made when they are asked for, as long as Spark has them.
        self._indexes: dict[str, tuple[weakref.ref[TableIndex], HasEnded]] = {}
        self._connections: set[socket.socket] = set()
        self._newcomers = Newcomers(_log, "the native lane's gateway")
        self._errors: deque[str] = deque(maxlen=_ERRORS_KEPT)
        #: Threads that serve connections, and those of them that wait for one.
        self._workers = self._waiting = 0
        self._closing, self._ended = threading.Event(), threading.Event()
        self._started = int(time.time() * 1000)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._begin_worker()
        start_thread(self._watch, "delta-sharing-native", is_awaited=False)
        closed_at_exit(self)

    def add(self, plan: NativePlan, has_ended: HasEnded) -> str:
        """Serve a plan until its session has ended; returns its address for Spark. Raises GatewayClosedError."""
        reader = PlanReader(plan, self._budget)
        gone = []
        with self._lock:
            self._check_open()
            self._plans[plan.token] = (reader, has_ended)
            files = sum(r.plan.report.files for r, _ in self._plans.values())
            while len(self._plans) > 1 and (len(self._plans) > MAX_PLANS or files > self.most_files):
                _, (oldest, _) = self._plans.popitem(last=False)
                files -= oldest.plan.report.files
                gone.append(oldest)
        for oldest in gone:
            self._close(oldest)
        return f"{self.address_of(plan.token)}/{UNTOLD}"

    def open(self, index: TableIndex, has_ended: HasEnded) -> TableIndex:
        """Serve the listings of a load until its session has ended; returns an equal load's if they are served already.

        Raises:
            GatewayClosedError: It serves no more.
        """
        with self._lock:
            self._check_open()
            for reference, _ in self._indexes.values():
                existing = reference()
                if existing is not None and existing.identity == index.identity:
                    return existing
            self._indexes[index.token] = weakref.ref(index), has_ended
        return index

    def share(self, place: Place, has_ended: HasEnded) -> str:
        """Serve a place until a session has ended; returns its address for Spark, the same for an equal place.

        Raises:
            GatewayClosedError: It serves no more.
        """
        with self._lock:
            self._check_open()
            tokens = (token for token, (served, _) in self._places.items() if served.place == place)
            token = next(tokens, None) or secrets.token_hex(16)
            served = self._places[token][0] if token in self._places else ServedPlace(place, token)
            self._places[token] = (served, has_ended)
        return self.address_of(token)

    def _check_open(self) -> None:
        if self.is_closed:
            raise GatewayClosedError

    def plan(self, token: str) -> NativePlan | None:
        with self._lock:
            entry = self._plans.get(token)
            if entry is not None:
                self._plans.move_to_end(token)
        return None if entry is None else entry[0].plan

    def keep(self, index: TableIndex, plan: NativePlan) -> None:
        with self._lock:
            entry = self._indexes.get(index.token)
        if entry is not None:
            self.add(plan, entry[1])

    def remember(self, error: DeltaSharingError) -> str:
        """Keep an error that ends a query, so that it can be found again in Spark's message; returns its text."""
        return self._remember(f"{type(error).__name__}: {error}")

    def _remember(self, error: str) -> str:
        stay_at_end()
        with self._lock:
            if error not in self._errors:
                self._errors.append(error)
        return error

    def address_of(self, token: str) -> str:
        """The address of a plan or a load for Spark."""
        return f"webhdfs://{self.authority}/{token}"

    @property
    def authority(self) -> str:
        """The host and port that Spark asks."""
        return authority_of(self.host, self.port)

    def serves(self, plan: NativePlan) -> bool:
        """Whether a plan is still served."""
        return plan.token in self._plans

    def release(self, plan: NativePlan) -> None:
        """Stop serving a plan."""
        with self._lock:
            entry = self._plans.pop(plan.token, None)
        if entry is not None:
            self._close(entry[0])

    def error_in(self, messages: Sequence[str]) -> str | None:
        """The error of a file that failed a query, in a line; None if the query failed by something else.

        Args:
            messages: Those of Spark's exception and of what caused it, the first cause last.
        """
        text = "\n".join(messages)
        with self._lock:
            for error in reversed(self._errors):
                if error in text:
                    return error
            failed = re.search(
                rf"FAILED_READ_FILE.* webhdfs://\S+:{self.port}/([\w-]+)/[^/\s]+/([^/\s]+\.parquet)", text
            )
            entry = self._plans.get(failed[1]) if failed else None
        number = entry[0].plan.number_of(failed[2]) if entry and failed else None
        if entry is None or number is None:
            return None
        plan, why = entry[0].plan, " ".join(messages[-1].split())
        plan.has_failed = True  # the bytes that are held may be what is damaged
        damaged = plan.damaged(number)
        if damaged is not None:
            return f"{type(damaged).__name__}: {damaged}"
        return displayable(
            f"FileError: file {plan.files[number].described()} of {plan.table}: Spark's Parquet reader failed on it "
            f"({why}); load the table with engine='python', which may say more, and ask the provider to check "
            f"the file"
        )

    @property
    def is_closed(self) -> bool:
        """Whether it serves no more."""
        return self._closing.is_set()

    def _close(self, reader: PlanReader) -> None:
        """Release what is held of a plan that is served no more."""
        reader.close()

    def close(self) -> None:
        """Release all plans, end the threads, close the sockets."""
        with self._lock:
            if self.is_closed:
                return
            self._closing.set()
        self._end()

    def _end(self) -> None:
        """Let go of everything, once it is closed. At the end of the process readers are left waiting, rather than told of an error."""
        with self._lock:
            plans, self._plans = self._plans, OrderedDict()
            self._indexes.clear()
            connections, waiting = (set(), 0) if is_ending() else (set(self._connections), self._waiting)
        # No system but Linux wakes a thread that waits for a connection other than by one.
        for _ in range(waiting):
            with suppress(OSError):
                socket.create_connection((self.host, self.port), timeout=_WATCH).close()
        # Wait for the accepting threads before the socket is closed: they could accept on a descriptor that is used again.
        patience = time.monotonic() + _STOPPING
        while waiting and self._waiting and time.monotonic() < patience:
            time.sleep(0.001)
        if not is_ending():
            self._listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for reader, _ in plans.values():
            reader.close()
        self._budget.close()
        self._ended.set()

    def wait_until_ended(self) -> None:
        """Wait until a closed one has let go of its port, which another one may be told to bind."""
        self._ended.wait(_ENDING)

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH):
            self._newcomers.end_late()
            if self._release_ended():
                self._end()

    def _release_ended(self) -> bool:
        """Release the plans and places whose session has ended; closes, and returns True, where none is left."""
        with self._lock:
            ended = [token for token, (_, has_ended) in self._plans.items() if has_ended()]
            gone = [self._plans.pop(token)[0] for token in ended]
            ended_indexes = [
                token for token, (index, has_ended) in self._indexes.items() if index() is None or has_ended()
            ]
            for token in ended_indexes:
                del self._indexes[token]
                of_it = [listing for listing in self._plans if listing.startswith(f"{token}-")]
                gone += [self._plans.pop(listing)[0] for listing in of_it]
            places = [token for token, (_, has_ended) in self._places.items() if has_ended()]
            for token in places:
                del self._places[token]
            remains = self._plans or self._indexes or self._places or self.is_closed
            were_last = bool(gone or ended_indexes or places) and not remains
            if were_last:
                self._closing.set()  # before another load can come
        for reader in gone:
            self._close(reader)
        return were_last

    def _begin_worker(self) -> None:
        with self._lock:
            if self.is_closed or self._waiting or self._workers >= _CONNECTIONS + IN_ALL:
                return
            self._workers += 1
            self._waiting += 1
        try:
            why = (
                None
                if start_thread(self._work, "delta-sharing-native-connection", is_awaited=False)
                else "the process is ending"
            )
        except RuntimeError as error:
            why = str(error)
        if why is not None:  # no more threads: connections wait for those that there are
            with self._lock:
                self._workers -= 1
                self._waiting -= 1
                if not self._workers:
                    raise DeltaSharingError(f"the native lane's gateway cannot begin: {why}")

    @contextmanager
    def _beside_workers(self) -> Iterator[None]:
        """Have another thread serve readers in place of this one, whose connection lasts."""
        with self._lock:
            self._workers -= 1
        self._begin_worker()
        try:
            yield
        finally:
            with self._lock:
                self._workers += 1

    def _work(self) -> None:
        """Serve one connection after another; of the waiting threads one at a time accepts one."""
        while True:
            try:
                with self._accepting:  # newcomers stand in the order in which they came, whichever thread runs first
                    connection, _ = self._listener.accept()
                    self._newcomers.enter(connection)
            except OSError as error:
                connection = None
                if not self.is_closed:  # too many open files, perhaps
                    _log.warning("the native lane's gateway could not accept a connection: %s", error)
                    time.sleep(_WATCH)
            with self._lock:
                self._waiting -= 1
                if connection is not None:
                    self._connections.add(connection)
            if connection is not None:
                self._begin_worker()
                self._converse(connection)
                del connection
            with self._lock:
                if self.is_closed:
                    return
                self._waiting += 1

    def _converse(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._admits(connection):
                self._newcomers.note("its process is another user's")
                return
            connection.settimeout(_STALLED)
            if self._is_taken_over(connection):
                return
            waiting = b""
            while not self.is_closed:
                request, waiting = webhdfs.read_request(connection, waiting)
                if request is None:
                    return
                with awaiting():
                    if not self._answer(connection, request):
                        return
        except (OSError, ValueError) as error:
            _log.debug("a connection of the gateway ended: %s", type(error).__name__)
        finally:
            stay_at_end()
            self._newcomers.leave(connection)
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _is_taken_over(self, connection: socket.socket) -> bool:
        """Whether a connection was another one than a reader's, and has been served."""
        return False

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer a request; returns whether the connection can be used for another."""
        if self.key_field is not None and self.key_field not in request.field_names:
            self._newcomers.note("it has not the key")
            connection.sendall(webhdfs.failure("the native lane's gateway serves its own Spark application alone"))
            return False
        self._newcomers.leave(connection)
        if request.method != "GET" or request.path is None:
            connection.sendall(webhdfs.failure(_READ_ONLY))
            return request.method == "GET"
        if request.operation == "GETDELEGATIONTOKEN":  # a Kerberized client asks before all else, and goes on without
            connection.sendall(webhdfs.json_answer({}))
            return True
        return self._serve(connection, request, *request.path.partition("/")[::2])

    def _serve(self, connection: socket.socket, request: Request, token: str, below: str) -> bool:
        """Answer a request for what lies below a token."""
        served = None
        try:
            served = self._place(token)
            if served is None:
                return self._serve_plan(connection, request, token, below)
            if (failure := served.failures.of(below)) is not None:
                connection.sendall(self._failure(failure))
                return True
            if request.operation == "OPEN":
                return self._open_place(connection, request, served, below)
            connection.sendall(self._answer_of_place(served, below, request.operation))
        except NoSuchFileError:
            connection.sendall(webhdfs.not_found(below))
        except DeltaSharingError as error:
            message = self.remember(error) if served is None else self._failed(served, below, error)
            connection.sendall(webhdfs.failure(message))
        return True

    def _serve_plan(self, connection: socket.socket, request: Request, token: str, below: str) -> bool:
        scan, _, name = below.partition("/")
        try:
            reader = self._reader(token)
        except DeltaSharingError as error:
            connection.sendall(self._failure(self.remember(error)))
            return True
        if reader is None:
            connection.sendall(self._failure(_LET_GO))
            return False
        columns, number = reader.plan.shown.scans.columns_of(scan), reader.plan.number_of(name)
        try:
            if (failure := reader.failures.of(number)) is not None:
                connection.sendall(self._failure(failure))
            elif number is None:
                connection.sendall(webhdfs.not_found(name))
            elif request.operation == "OPEN":
                return self._open(connection, reader, number, request, columns)
            else:
                connection.sendall(self._described(reader, number, request.operation, columns))
        except DeltaSharingError as error:
            error.name_table(reader.plan.table)
            assert number is not None, "only files fail"
            connection.sendall(webhdfs.failure(self._failed(reader, number, error)))
        except OSError:
            raise
        except Exception as error:  # a defect of ours, or what closing the plan broke off: Spark's query fails with it
            stay_at_end()
            if not self.serves(reader.plan):
                connection.sendall(self._failure(_LET_GO))
                return True
            reader.plan.has_failed = True
            _log.exception("the native lane's gateway failed on a file of %s", reader.plan.table)
            connection.sendall(
                self._failure(
                    f"delta-sharing-spark: a file of {reader.plan.table} could not be served ({type(error).__name__}); "
                    f"load the table with engine='python', and report it"
                )
            )
        return True

    def _place(self, token: str) -> ServedPlace | None:
        with self._lock:
            return self._places.get(token, (None, None))[0]

    def _open_place(self, connection: socket.socket, request: Request, served: ServedPlace, path: str) -> bool:
        """Send a file from the request's offset on; returns whether the connection can be used for another."""
        return served.send(connection, path, request.offset, self._budget, partial(self._failed, served, path))

    def _answer_of_place(self, served: ServedPlace, path: str, operation: str) -> bytes:
        if operation == "LISTSTATUS":
            statuses = [status_of(entry, entry.name.rstrip("/").rpartition("/")[2]) for entry in served.listed(path)]
            return webhdfs.json_answer({"FileStatuses": {"FileStatus": statuses}})
        if operation == "GETFILESTATUS":
            return webhdfs.json_answer({"FileStatus": status_of(served.info(path), "")})
        if operation in ("GETFILEBLOCKLOCATIONS", "GET_BLOCK_LOCATIONS"):
            return webhdfs.json_answer(webhdfs.locations(served.info(path).size))
        return webhdfs.failure(f"what is shared is read-only, and {operation or 'such a request'} is not known")

    def _failed(self, served: PlanReader | ServedPlace, file: int | str, error: DeltaSharingError) -> str:
        """Note that a file could not be read; returns the cause, for Spark."""
        return self._note_failure(served, file, f"{type(error).__name__}: {error}", isinstance(error, NetworkError))

    def _note_failure(self, served: PlanReader | ServedPlace, file: int | str, cause: str, is_of_network: bool) -> str:
        if is_of_network:
            served.failures.note(file, cause)
        if isinstance(served, PlanReader):
            with self._lock:
                is_first, served.plan.has_failed = not served.plan.has_failed, True
            if is_first:  # it stands alone here; Spark's own error has it among many lines of Java, or not at all
                _log.warning("the native lane could not read a file: %s", cause)
        return self._remember(cause)

    def _reader(self, token: str) -> PlanReader | None:
        """The reader of a plan; a listing that was let go is made anew. None where nothing is known of it."""
        with self._lock:
            entry = self._plans.get(token)
            if entry is not None:
                self._plans.move_to_end(token)
                return entry[0]
            reference = self._indexes.get(token.partition("-")[0], (lambda: None, None))[0]
        index = reference()
        if index is None:
            self._plan_elsewhere(token)
        else:
            index.again(token)
        with self._lock:
            entry = self._plans.get(token)
        return None if entry is None else entry[0]

    def _plan_elsewhere(self, token: str) -> None:
        """Add a plan that another process has, if there is such a one."""

    def _failure(self, error: str) -> bytes:
        return webhdfs.failure(self._remember(error))

    def _described(self, reader: PlanReader, number: int, operation: str, columns: ScanColumns | None) -> bytes:
        """What is told of a file: its status, as by LISTSTATUS to who reads the ``inputFiles`` of a DataFrame; where it lies."""
        if operation in ("GETFILEBLOCKLOCATIONS", "GET_BLOCK_LOCATIONS"):
            return webhdfs.json_answer(webhdfs.locations(reader.plan.files[number].size))
        if operation not in ("GETFILESTATUS", "LISTSTATUS"):
            return webhdfs.failure(_READ_ONLY)
        length = self.shown_length or reader.files.get(number, columns).layout.length
        status = webhdfs.status("", length, self._started)
        is_list = operation == "LISTSTATUS"
        return webhdfs.json_answer({"FileStatuses": {"FileStatus": [status]}} if is_list else {"FileStatus": status})

    def _open(
        self, connection: socket.socket, reader: PlanReader, number: int, request: Request, columns: ScanColumns | None
    ) -> bool:
        """Answer an OPEN."""
        offset = request.offset
        layout = reader.files.get(number, columns).layout
        end = self.shown_length or layout.length
        rest, padding = end - offset, 0
        if self.shown_length is not None and rest <= len(layout.tail) + _PADDING:
            # The footer is where the shown length ends; a reader may ask for more than it.
            padding = max(0, rest - len(layout.tail))
            offset = layout.length - rest + padding
        if offset >= layout.length:
            connection.sendall(webhdfs.answer(200, b""))
            return True
        pieces = self._pieces(reader, number, offset, columns)
        first = next(pieces)  # an error has to come before the head
        assert isinstance(first, memoryview)
        # Hadoop's client closes the connection of each OPEN. Where it could keep it, Java reads up to 512 KiB of what a
        # stream has left when it is closed: nobody wants those.
        start = webhdfs.head(200, rest, is_last=True) + bytes(padding)
        connection.sendall(b"".join((start, first)) if len(first) < 65536 else start)
        if len(first) >= 65536:
            connection.sendall(first)
        try:
            send_pieces(connection, pieces)
        except DeltaSharingError as error:
            # A client that wants more reads on from where the bytes ended, and is told the cause then.
            error.name_table(reader.plan.table)
            _log.info("an answer of %s broke off: %s", reader.plan.table, error)
            self._failed(reader, number, error)
        return False

    def _pieces(self, reader: PlanReader, number: int, offset: int, columns: ScanColumns | None) -> Pieces:
        """A file's bytes from ``offset`` on."""
        return reader.read(number, offset, columns)


def authority_of(host: str, port: int) -> str:
    """A host and port in an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
