"""Batches as awaitables, over a queue and its eventfd: no thread waits for one.

A store has one `AsyncQueue` for each event loop that uses it; its methods are called on that loop's thread only.
"""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from . import Save, Status, Store, Value

__all__ = ["AsyncQueue"]


class AsyncQueue:
    """`async with AsyncQueue(store) as queue: await queue.get_many_into(keys, values)`.

    The calls take and answer what those of `Store` do. At most `depth` of them run; further ones wait for their turn. A call
    whose task is cancelled stops early, and its memory stays lent until the library has let go of it.
    """

    def __init__(self, store: Store, depth: int = 64) -> None:
        self._queue = store.queue(depth)
        self._loop = asyncio.get_running_loop()
        self._fd = self._queue.fileno()
        self._results: dict[int, tuple[asyncio.Future[list[int]], int]] = {}
        self._room = asyncio.Semaphore(depth)
        self._closed = False
        self._loop.add_reader(self._fd, self._drain)

    async def put_many(
        self,
        keys: Iterable[bytes],
        values: Iterable[Value],
        *,
        durable: bool = False,
        replace: bool = False,
        sealed: bool | None = None,
        save: Save | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        keys = list(keys)

        def submit() -> int:
            return self._queue.submit_put(
                keys, values, durable=durable, replace=replace, sealed=sealed, save=save, timeout=timeout
            )

        return await self._run(submit, len(keys))

    async def get_many_into(
        self,
        keys: Iterable[bytes],
        values: Iterable[Value],
        *,
        sealed: bool | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        keys = list(keys)
        return await self._run(
            lambda: self._queue.submit_get(keys, values, sealed=sealed, timeout=timeout), len(keys)
        )

    async def exists_many(
        self, keys: Iterable[bytes], *, sealed: bool | None = None, timeout: float | None = None
    ) -> list[int]:
        keys = list(keys)
        return await self._run(
            lambda: self._queue.submit_exists(keys, sealed=sealed, timeout=timeout), len(keys)
        )

    async def delete_many(self, keys: Iterable[bytes], *, timeout: float | None = None) -> list[int]:
        keys = list(keys)
        return await self._run(lambda: self._queue.submit_delete(keys, timeout=timeout), len(keys))

    def close(self) -> None:
        """Cancel what is left, and wait until no call's memory is in use; calls that are awaited answer CANCELLED."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._queue.close()
        for result, items in self._results.values():
            if not result.done():
                result.set_result([int(Status.CANCELLED)] * items)
        self._results.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    async def _run(self, submit: Callable[[], int], items: int) -> list[int]:
        # A slot is given back when the request is drained, and not when its task ends: so the queue is never full here.
        await self._room.acquire()
        try:
            ticket = submit()
        except BaseException:
            self._room.release()
            raise
        if ticket < 0:
            self._room.release()
            return [ticket] * items
        result: asyncio.Future[list[int]] = self._loop.create_future()
        self._results[ticket] = (result, items)
        try:
            return await result
        except asyncio.CancelledError:
            if not self._closed:
                self._queue.cancel(ticket)
            raise

    def _drain(self) -> None:
        for ticket, outcomes in self._queue.drain():
            self._room.release()
            result, _ = self._results.pop(ticket)
            if not result.done():
                result.set_result(outcomes)
