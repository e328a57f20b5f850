"""The log of a task while it grows: every line once, whichever attempt and machine wrote it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.sorting import LogSort

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import Log

_PAGE_LINES = 200  # the most that the API gives at once
# Lines come in batches from several machines, whose clocks differ: one can arrive after others
# that bear a later time. So many of the last ones are read again each time.
_OVERLAP_LINES = 200


class RunLog:
    """The lines of a task's runs, as far as the API has them."""

    def __init__(self) -> None:
        self._seen: set[UUID] = set()

    async def new_lines(
        self, client: PrefectClient, run_ids: Iterable[UUID], *, from_start: bool = False
    ) -> list[Log]:
        """The lines that no call before gave, by time. One request, or more for many lines.

        Args:
            client: A client of the API.
            run_ids: The front run and its attempt runs.
            from_start: Look at the whole log, for lines that came very late; one request for
                each 200 lines.
        """
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=list(run_ids)))
        offset = 0 if from_start else max(0, len(self._seen) - _OVERLAP_LINES)
        new: list[Log] = []
        while True:
            page = await client.read_logs(
                wanted, limit=_PAGE_LINES, offset=offset, sort=LogSort.TIMESTAMP_ASC
            )
            new += [line for line in page if line.id not in self._seen]
            self._seen.update(line.id for line in page)
            if len(page) < _PAGE_LINES:
                return new
            offset += len(page)


def line_text(line: Log) -> str:
    """One line for a person: local time, level, message.

    Colours and the like in the message are as the job wrote them.
    """
    moment = line.timestamp.astimezone().strftime("%H:%M:%S")
    return f"{moment} | {logging.getLevelName(line.level):<7} | {line.message}"
