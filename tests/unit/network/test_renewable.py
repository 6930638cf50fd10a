"""Renewal under faults, for whatever is renewed: a token, a credential, the URLs of a load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from math import inf

import pytest

from delta_sharing_spark.errors import (
    CredentialError,
    DeltaSharingError,
    NetworkError,
    ResponseError,
    TableChangedError,
    UnauthenticatedError,
)
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.renewable import Renewable, Term
from support import HANGS

#: A value made at 0 is due from 90 on, and ends at 100.
DUE, END = 90.0, 100.0


class Issuer:
    """Issues 1, 2, 3 and so on, each good for ``life`` seconds; fails while ``failure`` is set."""

    def __init__(self, life: float = END, due: float = DUE) -> None:
        self.now = 0.0
        self.life, self.due = life, due
        self.failure: BaseException | None = None
        #: The seconds that the present value still worked at each call.
        self.asked: list[float | None] = []
        self.issued = 0
        self.during: Callable[[], object] = lambda: None
        self.renewable: Renewable[Term[int]] = Renewable("the thing", lambda: self.now)

    def ask(self, seconds: float | None) -> Term[int]:
        self.asked.append(seconds)
        self.during()
        if self.failure is not None:
            raise copy(self.failure)
        self.issued += 1
        return Term(self.issued, self.now + self.due, self.now + self.life)

    def get(self, refused: int | None = None, patience: object = None) -> int:
        def usable(term: Term[int] | None) -> Term[int] | None:
            return None if term is None or term.value == refused else term

        return self.renewable.get(usable, self.ask, lambda term: term, patience).value


@pytest.mark.parametrize(
    ("now", "value", "asked"),
    [
        (0.0, 1, [None]),
        (89.9, 1, [None]),
        (90.0, 2, [None, 10.0]),
        (99.5, 2, [None, 0.5]),
        (100.0, 2, [None, None]),
        (1e9, 2, [None, None]),
        (-1e9, 1, [None]),  # the clock was set back
    ],
)
def test_before_at_and_after_the_end(now: float, value: int, asked: list[float | None]) -> None:
    issuer = Issuer()
    assert issuer.get() == 1
    issuer.now = now
    assert [issuer.get(), issuer.get()] == [value, value]
    assert issuer.asked == asked


@pytest.mark.parametrize("now", [0.0, 95.0, 200.0])
def test_what_was_refused_is_never_returned_again(now: float) -> None:
    issuer = Issuer()
    issuer.get()
    issuer.now = now
    assert [issuer.get(refused=1) for _ in range(3)] == [2, 2, 2]
    assert issuer.asked == [None, None], "once, with the patience of nothing that works"


@pytest.mark.parametrize(
    "failure", [NetworkError("no answer"), UnauthenticatedError("no"), CredentialError("odd"), ResponseError("half")]
)
@pytest.mark.parametrize(("seconds", "pause"), [(10.0, 5.0), (1.0, 1.0), (0.5, 0.5), (500.0, 30.0), (inf, 30.0)])
def test_what_works_is_used_through_an_outage(
    failure: DeltaSharingError, seconds: float, pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The next try comes after half of what is left, at most half a minute; and with the end nothing is left."""
    issuer = Issuer(life=DUE + seconds)
    issuer.get()
    issuer.now, issuer.failure = DUE, failure
    assert [issuer.get() for _ in range(3)] == [1, 1, 1]
    assert issuer.asked == [None, seconds]
    assert "the thing could not be renewed yet" in caplog.text
    issuer.now += pause * 0.99
    assert issuer.get() == 1
    assert len(issuer.asked) == 2
    issuer.now = DUE + pause
    if pause < seconds:
        assert issuer.get() == 1
        assert len(issuer.asked) == 3, "once again, while it still works"
    with pytest.raises(type(failure)):
        issuer.get(refused=1)
    if seconds < inf:
        issuer.now = DUE + seconds
        with pytest.raises(type(failure)):
            issuer.get()
        assert issuer.asked[-1] is None
    issuer.failure = None
    assert issuer.get(refused=1) == 2, "no failure is kept"


def test_what_ends_while_another_is_asked_for_in_vain_is_not_used_on() -> None:
    issuer = Issuer()
    issuer.get()
    issuer.now, issuer.failure = 99.0, NetworkError("no answer")

    def late() -> None:
        issuer.now += 1.0
        issuer.failure = issuer.failure if len(issuer.asked) == 2 else None

    issuer.during = late
    assert issuer.get() == 2
    assert issuer.asked == [None, 1.0, None]


@pytest.mark.parametrize("failure", [TableChangedError("another"), KeyboardInterrupt(), ReadCancelled("gone")])
@pytest.mark.parametrize("now", [DUE, END])
def test_what_is_no_outage_is_raised_at_once_and_ends_nothing(failure: BaseException, now: float) -> None:
    """Nor does the interruption of who asks: the next one asks itself."""
    issuer = Issuer()
    issuer.get()
    issuer.now, issuer.failure = now, failure
    with pytest.raises(type(failure)):
        issuer.get()
    issuer.failure = None
    assert issuer.get() == 2


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    issuer = Issuer(life=1000.0, due=0.0)
    issuer.get()
    issuer.now, issuer.failure = 900.0, NetworkError("no answer")
    assert issuer.get() == 1
    issuer.now, issuer.failure = 10.0, None
    assert issuer.get() == 2


def test_a_value_without_an_end_is_used_until_it_is_refused() -> None:
    issuer = Issuer(life=inf, due=inf)
    assert issuer.get() == 1
    issuer.now = 1e12
    assert issuer.get() == 1
    assert issuer.get(refused=1) == 2
    assert issuer.asked == [None, None]


def test_a_new_value_is_taken_even_if_it_is_the_refused_one_or_has_ended() -> None:
    """Whoever it is shown to decides; and who asks again is not answered by nothing."""
    issuer = Issuer(life=-1.0)
    assert [issuer.get(), issuer.get(refused=3), issuer.get(refused=3)] == [1, 2, 3]


def test_what_came_from_elsewhere_is_used() -> None:
    issuer = Issuer()
    issuer.renewable.keep(Term(7, DUE, END))
    assert issuer.get() == 7
    assert issuer.renewable.value == Term(7, DUE, END)
    assert not issuer.asked


@pytest.mark.parametrize(("now", "refused"), [(0.0, None), (END, 1), (0.0, 1)])
def test_many_threads_ask_once(now: float, refused: int | None) -> None:
    issuer = Issuer()
    if refused:
        issuer.get()
    issuer.now = now
    asked = len(issuer.asked)
    together = threading.Barrier(8)

    def get(_: int) -> int:
        together.wait(HANGS)
        return issuer.get(refused)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(get, range(8)))) == 1
    assert len(issuer.asked) == asked + 1


def test_nobody_waits_for_the_renewal_of_what_still_works() -> None:
    issuer = Issuer()
    issuer.get()
    issuer.now = DUE
    with ThreadPoolExecutor(1) as pool:

        def meanwhile() -> None:
            assert pool.submit(issuer.get).result(HANGS) == 1

        issuer.during = meanwhile
        assert issuer.get() == 2
    assert issuer.asked == [None, 10.0]


@pytest.mark.parametrize("patience", ["equal", "longer"])
def test_those_that_wait_share_the_failure(patience: str) -> None:
    """Unless one of them would go on for longer; and each may add to the text of its own."""
    issuer, has_looked = Issuer(), threading.Event()
    issuer.failure = NetworkError("no answer")

    def usable(_: object) -> None:
        has_looked.set()  # it has noted how many calls have ended, and goes to wait

    with ThreadPoolExecutor(1) as pool:
        waiting = []

        def during() -> None:
            if not waiting:
                waiting.append(
                    pool.submit(issuer.renewable.get, usable, issuer.ask, lambda term: term, patience)  # type: ignore[arg-type]
                )
                assert has_looked.wait(HANGS)

        issuer.during = during
        with pytest.raises(NetworkError) as first:
            issuer.get(patience="equal")
        first.value.args = ("in other words",)
        assert str(waiting[0].exception(HANGS)) == "no answer"
    assert len(issuer.asked) == (1 if patience == "equal" else 2)


def test_no_value_is_shown() -> None:
    assert "s3cret" not in repr(Term("s3cret"))
