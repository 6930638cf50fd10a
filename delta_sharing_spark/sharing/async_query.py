"""Polls asynchronous queries until their answer arrives (protocol, "Asynchronous Query")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from delta_sharing_spark.errors import NotFoundError, RequestRefusedError, ResponseError, UnavailableError
from delta_sharing_spark.network.settings import NetworkSettings
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.response import Answer

_FIRST_POLL, _LONGEST_POLL = 0.5, 10.0
#: ``failed`` is the protocol's; the others could only ever be polled until the time is up.
_FAILED = ("failed", "error", "expired", "canceled", "cancelled")
_MESSAGES = ("error", "errorMessage", "message", "error_message")


def await_query(
    settings: NetworkSettings, table: TableName, status: Mapping[str, Any], poll: Callable[[str], Answer]
) -> tuple[str, Answer]:
    """Poll a submitted query until it has succeeded; returns its id, for further pages, and its first page.

    Args:
        settings: The clock, and how long to wait.
        table: How errors name the table.
        status: The server's answer to the submitted query.
        poll: Asks the server once for the answer, by the query's id.

    Raises:
        RequestRefusedError: The query failed; with the server's message.
        NotFoundError: The server no longer knows the query.
        UnavailableError: The query is still pending after ``retry_seconds``, at least ten minutes.
    """
    deadline = settings.clock() + max(settings.retry_seconds, 600.0)
    pause = _FIRST_POLL
    while True:
        query_id = _pending(status, table)
        if settings.clock() > deadline:
            raise UnavailableError(
                f"the asynchronous query of {table} is still pending; set asyncQuery=false, or ask the provider about the server"
            )
        settings.sleep(pause)
        pause = min(pause * 2, _LONGEST_POLL)
        try:
            answer = poll(query_id)
        except NotFoundError as error:
            raise NotFoundError(
                f"the asynchronous query of {table} has expired on the server; load the table again",
                status=error.status,
            ) from None
        if answer.page.query_status is None:
            return query_id, answer
        status = {"queryId": query_id, **answer.page.query_status}


def _pending(status: Mapping[str, Any], table: TableName) -> str:
    """The id of a query that is still pending; so is one without a status, which the reference server does not send."""
    state = str(status.get("status") or "pending").lower()
    if state in _FAILED:
        message = next((str(status[m]) for m in _MESSAGES if status.get(m)), "the server gives no reason")
        raise RequestRefusedError(
            f"the asynchronous query of {table} failed: {message}; ask the provider, or set asyncQuery=false"
        )
    query_id = status.get("queryId")
    if not isinstance(query_id, str) or not query_id:
        raise ResponseError(
            f"the server answered the query of {table} with a status without queryId; set asyncQuery=false"
        )
    return query_id
