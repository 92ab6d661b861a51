"""The extension module. Shapes, units, errors and threads of each call are documented here.

Memory. A value is an object with the buffer protocol (contiguous), a tuple `(address, length)` in bytes, or a list or tuple of
such pieces, which lie one after another in the store. A buffer stays lent to the library until the call returns, or, for a queue, until
its completion is drained; memory that is named by its address must stay valid as long, which nobody checks. Nobody may write to a
value that is being put, or use memory that is being filled.

Threads. Any method may be called from any number of threads at once. Batches run with the GIL released.

fork. In a child process every call on an object of the parent answers a negative status or raises `Error`; open the store again.
"""

from collections.abc import Iterable, Iterator
from os import PathLike
from types import TracebackType
from typing import Literal, Self, final

from typing_extensions import Buffer

from ._types import Piece, Tokens, Value

__all__ = [
    "LEN_UNKNOWN",
    "AcquiredBlocks",
    "BlockCache",
    "Error",
    "Queue",
    "Row",
    "Rows",
    "Save",
    "Store",
    "StoreInfo",
    "__version__",
    "doctor",
    "key",
    "keys",
    "last_error",
    "log_begin",
    "log_end",
    "log_next",
    "log_rest",
    "metrics",
    "open",
    "open_blocks",
    "open_rows",
]

__version__: str
LEN_UNKNOWN: int
"""What `exists_many` answers where a chunk is there and the backend does not know its length."""

class Error(RuntimeError):
    """A store cannot be opened; the message says why, in one line."""

def open(
    uri: str, *, sealed: bool = False, timeout: float | None = None, descriptor: dict[str, str | int | None] | None = None
) -> Store:
    """Open the store that a URI names, such as `local-fs:///var/cache/kv` or `redis://cache:6379/0`.

    sealed: the default of the store's calls: values lie in an envelope with a checksum over key, length and bytes, also where keys
    of 8 bytes are hashes of the content. (Others do in any case.) What version 0.2 or before stored without it is MISSING under it.
    timeout: the default of the store's calls, in seconds, more than 0. None: the operator's deadline.
    descriptor: what the values are, so that values of another meaning are misses and are not put over: texts of 1 to 512 bytes, or
    numbers, under the names model, architecture, layout, dtype, scales, block_tokens, layers, heads, rank, ranks, rope, adapters, engine and
    format. What is None or left out is unset; "none" says that there is none. `include/kv_store_describe.h` has each.
    Raises `Error` with the reason, also where the config says something else of a field, or requires one that nobody says; `ValueError`
    for a name that there is not.
    """

def open_blocks(
    uri: str | None = None,
    config: str = "",
    *,
    model: str,
    block_tokens: int,
    block_bytes: int,
    layout: str = "LCND",
    dtype: str = "f16",
    layers: tuple[int, int] | None = None,
    heads: tuple[int, int] | None = None,
    rank: tuple[int, int] | None = None,
) -> BlockCache:
    """Open a block cache; `kv_store_wasm.blocks.open`.

    uri: the store that is its far level; None: that of the config (`l2.backend`), or none.
    config: TOML, under the variables `KV_BLOCKS_*` and `AIBRIX_KV_CACHE_OL_*` of the process.
    The rest is what a block is, and is part of every key: blocks of two specs never meet. model: the model, and whatever else of it
    decides what the values are. block_tokens: the engine's, used where the config does not say it. block_bytes: of all its tokens,
    layers and heads. layout: the order of the dimensions, by the letters L, C, N, H, D. dtype: f32, f16, bf16, fp8_e4m3,
    fp8_e5m2, i8 or i4. layers, heads: those that this rank holds, `(first, end)`; None: all. rank: `(rank, ranks)`;
    None: there is one.
    Raises `Error` with the reason.
    """

def open_rows(
    *,
    ram_bytes: int = 0,
    directory: str | PathLike[str] | None = None,
    disk_bytes: int = 0,
    step: int = 16,
    descriptor: dict[str, str | int | None] | None = None,
) -> Rows:
    """Open a token-exact cache: so many bytes of memory, so many of a directory, or both. Raises `Error` where that cannot be.

    directory: absolute, of this process alone for as long as the cache is open; made if it is not there. step: 4 or more tokens;
    `Rows.longest` looks for rows of the whole prompt, and of multiples of this many of its tokens. descriptor: what the states are,
    beside what `model` says, as of `open`: a row of another descriptor is not found, and left alone.
    """

def key(*parts: str | Buffer) -> bytes:
    """A key of 32 bytes for a list of parts: the SHA-256 of each part behind its length (8 bytes, little-endian).

    A str counts as its UTF-8. No two lists of parts have the same bytes hashed: `key("ab", "c") != key("a", "bc")`.
    """

def keys(names: Iterable[str | Buffer], *parts: str | Buffer) -> list[bytes]:
    """`[key(*parts, name) for name in names]`, faster."""

def last_error() -> str:
    """Why the last failed call of this thread failed, for a person. Calls of a queue run on other threads."""

def log_begin(debug: bool) -> bool:
    """Have lines of the library's log wait for `log_next`, at most 1024; debug: those of that level too. False: they do already. `_log.py` is its
    caller."""

def log_next(debug: bool) -> tuple[int, int, str] | None:
    """The next line: its level, as `logging` numbers them; 0 for stores, 1 for rows; its text. Waits for it; None: after `log_end`."""

def log_end() -> None:
    """Have lines go to standard error again, and `log_next` return when it has answered those that wait."""

def log_rest() -> None:
    """Write the lines that still wait to standard error."""

def metrics() -> str:
    """The counters of this process in the text format of Prometheus."""

def doctor(uri: str, depth: Literal["offline", "connect", "probe"] = "connect") -> str:
    """What an open of a URI would load, grant and reach, and what is wrong with it, as one JSON object.

    offline: connects to nothing. connect: connects to the granted servers. probe: also runs the component. Does not raise for
    what is wrong with the URI.
    """

@final
class StoreInfo:
    """What a store is."""

    @property
    def durable(self) -> bool:
        """What was committed survives a restart of the storage system."""
    @property
    def shared(self) -> bool:
        """Other processes that open the same URI see the same store."""
    @property
    def deletes(self) -> bool:
        """`delete_many` is supported."""
    @property
    def write_through(self) -> bool:
        """Puts reach the backend at once, also one by one."""
    @property
    def max_value_bytes(self) -> int:
        """The longest value, whatever its key is."""
    @property
    def batch_items(self) -> int:
        """Items of a batch that the backend serves in one go."""
    @property
    def batch_bytes(self) -> int:
        """Bytes of such a batch."""

@final
class Store:
    """An open store; made by `open`. A context manager that closes it."""

    @property
    def uri(self) -> str:
        """As it was opened, without `wasm://`."""
    @property
    def descriptor(self) -> str | None:
        """The digest of what its values are, in hex, as `kv-store ls --descriptors` shows it; None where nobody says it."""
    @property
    def closed(self) -> bool: ...
    @property
    def info(self) -> StoreInfo: ...
    def put_many(
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
        """Store values under keys of 1 to 64 bytes. When it returns, every client of the store can read them.

        durable: answer each only when it survives a power loss; UNSUPPORTED where the backend is not durable.
        replace: store also what exists. Without it a key that is there changes nothing.
        save: the save that they belong to.
        Answers for each key OK, EXISTED, or a negative `Status`.
        """
    def get_many_into(
        self,
        keys: Iterable[bytes],
        values: Iterable[Value],
        *,
        sealed: bool | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """Fetch values into memory. Answers for each key the value's length in bytes, or a negative `Status`.

        Memory behind a value may be overwritten. Where the answer is negative, what is in the memory is undefined. TOO_LONG: the memory is shorter than the value.
        """
    def exists_many(
        self, keys: Iterable[bytes], *, sealed: bool | None = None, timeout: float | None = None
    ) -> list[int]:
        """Which keys are there. Answers for each the value's length in bytes, `LEN_UNKNOWN`, or a negative `Status`."""
    def delete_many(self, keys: Iterable[bytes], *, timeout: float | None = None) -> list[int]:
        """Remove values. Answers for each key OK, also if there was none, or a negative `Status`."""
    def save(self, name: str | None = None, manifest: Buffer | None = None) -> Save:
        """Begin a save, which a `with` block commits under this name; without a name the commit only makes durable.

        Raises `Error` where the store was opened before a fork.
        """
    def get_manifest(self, name: str) -> bytes | None:
        """A manifest. None: there is none, or it could not be had; `last_error()` says why."""
    def delete_manifest(self, name: str) -> int:
        """Remove a manifest. OK, also if there was none, or a negative `Status`."""
    def queue(self, depth: int = 64) -> Queue:
        """A queue for at most `depth` requests (1 to 65,536) that are not drained. Raises `Error`."""
    def metrics(self) -> str:
        """The counters of this process, of all stores: see `kv_store_wasm.metrics`."""
    def register_memory(self, _address: int, _length: int) -> None:
        """Accepted, and does nothing: no transport of the library needs it."""
    def unregister_memory(self, _address: int) -> None: ...
    def close(self) -> None:
        """Close the handle; calls that run end first, queues and saves keep what they need open. A later call raises ValueError."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class Save:
    """Chunks that become durable together, and a manifest over them. A context manager that commits unless its block raised.

    It does not raise: see `status` after the block.
    """

    manifest: bytes
    """What the block's end publishes under the name. Assigning takes any buffer."""
    @property
    def status(self) -> int | None:
        """OK, LOST, or why the last commit failed. None: none was tried."""
    @property
    def lost(self) -> list[bytes]:
        """Keys that the last commit found lost: put them again, and commit again."""
    def commit(self, name: str | None = None, manifest: Buffer | None = None) -> int:
        """Wait for what was submitted for the save before, make its chunks durable where the backend can, and publish.

        Without a name it only makes durable. Returns `status`. The save is empty afterwards, and can be used anew.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class Queue:
    """Requests that are carried out while the caller goes on; made by `Store.queue`. A context manager that closes it.

    submit_* never wait for I/O. They answer a ticket of 1 or more, or a negative `Status`: EXHAUSTED where the queue is full. Each
    request ends in one completion.
    """

    def submit_put(
        self,
        keys: Iterable[bytes],
        values: Iterable[Value],
        *,
        durable: bool = False,
        replace: bool = False,
        sealed: bool | None = None,
        save: Save | None = None,
        timeout: float | None = None,
    ) -> int: ...
    def submit_get(
        self,
        keys: Iterable[bytes],
        values: Iterable[Value],
        *,
        sealed: bool | None = None,
        timeout: float | None = None,
    ) -> int: ...
    def submit_exists(
        self, keys: Iterable[bytes], *, sealed: bool | None = None, timeout: float | None = None
    ) -> int: ...
    def submit_delete(self, keys: Iterable[bytes], *, timeout: float | None = None) -> int: ...
    def fileno(self) -> int:
        """An eventfd, non-blocking, which is readable while completions wait. Who sees it readable calls `drain`."""
    def drain(self, most: int = 64) -> list[tuple[int, list[int]]]:
        """Take at most `most` completions, without waiting: a ticket, and the outcomes that the call of `Store` would answer."""
    def cancel(self, ticket: int) -> int:
        """Cancel a request: it completes early, its items as CANCELLED where they were not reached. 1, or 0 if there is none."""
    def close(self) -> None:
        """Cancel what is left, and wait until no request's memory is in use. A later call raises ValueError."""
    def __len__(self) -> int:
        """Requests that are not drained."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class BlockCache:
    """A block cache; made by `open_blocks`. A context manager that closes it.

    tokens: a query, which follows `prefix`, a whole number of blocks. What is no whole block at its end is left out. Calls answer
    how many leading tokens of the query were handled. They raise ValueError, TypeError, BufferError or OverflowError where the call
    itself makes no sense, ValueError where the cache is closed, and `Error` after a fork.
    """

    @property
    def block_tokens(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def put(self, tokens: Tokens, blocks: Iterable[Piece], *, prefix: Tokens | None = None) -> int:
        """Copy blocks in, each of `block_bytes`. Fewer tokens than blocks: no memory was free for the rest."""
    def get(self, tokens: Tokens, into: Iterable[Piece], *, prefix: Tokens | None = None) -> int:
        """Copy the leading blocks out, into memory of `block_bytes` each. What lies behind the run is undefined."""
    def acquire(self, tokens: Tokens, *, prefix: Tokens | None = None) -> AcquiredBlocks:
        """The leading blocks, as views of the cache's own memory."""
    def exists(self, tokens: Tokens, *, prefix: Tokens | None = None) -> int:
        """How many leading tokens are in either level."""
    def delete(self, tokens: Tokens, *, prefix: Tokens | None = None) -> int:
        """Remove blocks from both levels. How many leading tokens are gone from both; that there were none is success."""
    def prefetch(self, tokens: Tokens, *, prefix: Tokens | None = None) -> int:
        """Have blocks brought near, without waiting. How many leading tokens are near or on their way."""
    def flush(self) -> bool:
        """Wait for the writes that are under way. False: they were not done in the time for their tokens."""
    def metrics(self) -> str:
        """Its counters in the text format of Prometheus."""
    def close(self) -> None:
        """Finish the writes that are under way, in the time for their tokens, and give the memory back."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class AcquiredBlocks:
    """The leading blocks of a query; made by `BlockCache.acquire`. A sequence of read-only memoryviews, and a context manager.

    The memory stays the cache's for as long as this or one of its views lives, also after the cache is closed. A block that is held
    takes room of the near level: `give_back`, and drop the views.
    """

    @property
    def tokens(self) -> int:
        """How many leading tokens of the query there are."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def give_back(self) -> None:
        """Hold the blocks no longer. The views that were made stay valid. Later there is none: `len` is 0."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class Rows:
    """A token-exact cache; made by `open_rows`. A context manager that closes it.

    model: 32 bytes, of everything that shapes a state but its tokens; see `key`. Calls raise ValueError, TypeError, BufferError or
    OverflowError where the call itself makes no sense, and ValueError where the cache is closed. Any thread may call. After a fork a
    child's calls are misses and refusals.
    """

    @property
    def step(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def put(self, model: bytes, tokens: Tokens, state: Buffer | list[Buffer] | tuple[Buffer, ...]) -> int:
        """Keep a state, or its pieces one after another, under its tokens. The memory has it when this returns; the directory gets
        a copy, which is written while the caller goes on (`flush` waits).

        OK; EXISTED; EXHAUSTED, where it is larger than what there is, or too much waits to be written; or another negative `Status`.
        Where there is memory and a directory, one that took it is enough.
        """
    def longest(self, model: bytes, tokens: Tokens) -> Row | None:
        """The row of exactly these tokens, else that of the longest beginning at a multiple of `step`. Its bytes were checked."""
    def flush(self, timeout: float) -> bool:
        """Wait until what was put is written. False: it is not, after so many seconds."""
    def stats(self) -> str:
        """What happened and what is held, as JSON."""
    def close(self) -> None:
        """Wait for what is being written, at most half a minute, and end. Rows that were found stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class Row:
    """A state that was found; made by `Rows.longest`. It holds its memory: the cache's own, or its file mapped.

    While it or one of its views lives, the row is not evicted, and the directory stays locked.
    """

    @property
    def tokens(self) -> int:
        """How many of the prompt's tokens it was put under."""
    @property
    def state(self) -> memoryview:
        """Its bytes, read-only."""
    def __len__(self) -> int:
        """How many bytes."""
