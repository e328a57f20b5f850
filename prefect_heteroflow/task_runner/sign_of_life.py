"""The sign of life of a flow's process, while attempts of its tasks run on other pools."""

from __future__ import annotations

import threading
from contextvars import copy_context
from types import TracebackType
from uuid import uuid4

import httpx
from prefect.client.orchestration import get_client
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_heteroflow.orchestration.task_bodies import (
    BEAT_SECONDS,
    give_sign,
    remove_sign,
    sign_name,
)

_LONGEST_JOIN_SECONDS = 5.0


class SignOfLife:
    """Given from the first `with` block that is entered until the last one is left.

    An API that does not answer ends nothing here: workers cannot ask it either.
    """

    def __init__(self) -> None:
        self.name = sign_name(uuid4())
        self._lock = threading.Lock()
        self._inside = 0
        self._beat = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SignOfLife:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._over = threading.Event()
                self._give()  # it is there before anybody looks for it
                # The context holds which server it is.
                run = copy_context().run
                self._thread = threading.Thread(
                    target=run, args=(self._go_on, self._over), name="sign-of-life", daemon=True
                )
                self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._inside -= 1
            is_last = self._inside == 0
            if is_last:
                self._over.set()
            thread = self._thread
        if is_last and thread is not None:
            # Else a beat that is under way would come after the removal. An API that hangs may have
            # it so: workers remove what is left.
            thread.join(_LONGEST_JOIN_SECONDS)
            self._tell(remove=True)

    def _go_on(self, over: threading.Event) -> None:
        while not over.wait(BEAT_SECONDS):
            self._give()

    def _give(self) -> None:
        self._beat += 1
        self._tell(remove=False)

    def _tell(self, *, remove: bool) -> None:
        async def tell() -> None:
            async with get_client() as client:
                if remove:
                    await remove_sign(client, self.name)
                else:
                    await give_sign(client, self.name, self._beat)

        try:
            run_coro_as_sync(tell())
        except httpx.HTTPError:
            return
