"""A cache for llama-cpp-python's `Llama.set_cache`, over a store that processes and machines share, or over the token-exact rows of one
process. `docs/engines/llama-cpp-python.md` has an example of each.

A store has a state in parts under a key of its tokens, with an index entry for each block of them. A prompt is looked up by the hashes of
its blocks, the longest first, so it finds the state that shares the longest prefix in one question and one read. A row is found by the
whole blocks of its tokens, so by a prompt that goes on from there.
"""

import array
import hashlib
import importlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
from llama_cpp.llama_cache import BaseLlamaCache

from . import Status, key
from ._adapter import TIMEOUT, Counters, namespace, open_store
from ._versions import check
from .rows import Rows

if TYPE_CHECKING:
    # Python itself has it from 3.12 on.
    from typing_extensions import Buffer

__all__ = ["StoreCache", "fingerprint"]

# This module has the engine's name, which type checkers take for this module.
engine: Any = importlib.import_module("llama_cpp")

BLOCK = 16
"""Tokens between two index entries: a prefix is found up to a multiple of it."""
PART = 8 << 20
"""Bytes of a state in one value."""
TRIES = 4
"""States that are tried where the first one is gone."""

HEAD = struct.Struct("<4sIQQQQQQq")
MAGIC = b"kvs1"


class StoreCache(BaseLlamaCache):
    """`llama.set_cache(StoreCache("local-fs:///var/cache/kv", llama))`.

    where: the URI of a store, or open rows, which stay the caller's to close. llama: whose states are kept: its model file, context size
    and cache types are part of each key. salt: a further part, such as a tenant. timeout: seconds that a batch of a store may take. A
    state that cannot be had is a KeyError, which llama-cpp-python takes for a miss.
    """

    def __init__(self, where: str | Rows, llama: Any, salt: str = "", timeout: float = TIMEOUT) -> None:
        super().__init__()
        check("llama_cpp.StoreCache", "llama-cpp-python")
        self.counters = Counters()
        prefix = namespace("llama-cpp-python", salt=salt, **fingerprint(llama))
        self._kept = InRows(where, prefix) if isinstance(where, Rows) else InStore(where, prefix, timeout, self.counters)
        # Without it llama-cpp-python writes no logits there, and samples from its context.
        self._has_scores = bool(getattr(llama, "_logits_all", True))
        self._bytes = 0

    @property
    def cache_size(self) -> int:
        """Bytes that this object has stored."""
        return self._bytes

    def __contains__(self, tokens: Sequence[int]) -> bool:
        return self._kept.has(tokens)

    def __getitem__(self, tokens: Sequence[int]) -> Any:
        state = self._kept.longest(tokens)
        self.counters.add("misses" if state is None else "hits", 1)
        if state is None:
            raise KeyError("no state shares a prefix with these tokens")
        return state

    def __setitem__(self, tokens: Sequence[int], value: Any) -> None:
        used = list(tokens)[: value.n_tokens]
        scores: Any = numpy.asarray(value.scores, dtype=numpy.single)
        stored_scores = flat(numpy.ascontiguousarray(scores)) if self._has_scores else memoryview(b"")
        parts = [flat(numpy.ascontiguousarray(value.input_ids, dtype=numpy.intc)), stored_scores, flat(value.llama_state)]
        lengths = [part.nbytes for part in parts]
        head = HEAD.pack(MAGIC, value.n_tokens, *lengths, *scores.shape, value.llama_state_size, value.seed)
        outcomes = self._kept.put(used, head, parts)
        self.counters.put(outcomes)
        if outcomes and all(outcome >= 0 for outcome in outcomes):
            self._bytes += sum(lengths)

    def close(self) -> None:
        self._kept.close()


class InStore:
    """States in a store."""

    def __init__(self, uri: str, prefix: Sequence[str], timeout: float, counters: Counters) -> None:
        self._prefix, self._counters = prefix, counters
        # Each part of the prefix decides what a state is, the salt too.
        self._store = open_store(uri, timeout, engine="llama-cpp-python", format=MAGIC.decode(), model=" ".join(prefix))

    def has(self, tokens: Sequence[int]) -> bool:
        return any(outcome >= 0 for outcome in self._store.exists_many(list(self._blocks(tokens))))

    def longest(self, tokens: Sequence[int]) -> Any:
        entries = list(self._blocks(tokens))
        present = self._store.exists_many(entries)
        longest = [entry for entry, outcome in zip(entries, present) if outcome >= 0]
        found = (self._state(entry) for entry in longest[: -TRIES - 1 : -1])
        return next((state for state in found if state is not None), None)

    def put(self, tokens: Sequence[int], head: bytes, parts: Sequence[memoryview]) -> list[int]:
        entries = list(self._blocks(tokens))
        # Two names: parts of one kind are never taken for those of the other.
        kind = "state" if parts[1].nbytes else "state without scores"
        name = key(*self._prefix, kind, packed(tokens))
        values = [value for part in parts for value in cut(part)]
        names = [self._part(name, number) for number in range(len(values))]
        # In this order: an entry leads to a whole state.
        outcomes = self._store.put_many(names, values)
        if all(outcome >= 0 for outcome in outcomes):
            outcomes += self._store.put_many([name], [head])
        if all(outcome >= 0 for outcome in outcomes):
            outcomes += self._store.put_many(entries, [name] * len(entries), replace=True)
        return outcomes

    def close(self) -> None:
        self._store.close()

    def _state(self, entry: bytes) -> Any:
        name, data = bytearray(32), bytearray(HEAD.size)
        if self._store.get_many_into([entry], [name]) != [len(name)]:
            return None
        if self._store.get_many_into([bytes(name)], [data]) != [HEAD.size]:
            return None
        head = Head.of(data)
        if head is None:
            return None
        memory: list[Any] = [
            numpy.empty(head.ids // 4, numpy.intc),
            numpy.empty(head.scores // 4, numpy.single),
            bytearray(head.state),
        ]
        values = [value for part in memory for value in cut(flat(part))]
        names = [self._part(bytes(name), number) for number in range(len(values))]
        outcomes = self._store.get_many_into(names, values)
        if not all(outcome == value.nbytes for outcome, value in zip(outcomes, values)):
            self._counters.add("failures", sum(outcome < 0 and outcome != Status.MISSING for outcome in outcomes))
            return None
        return head.made(*memory)

    def _part(self, name: bytes, number: int) -> bytes:
        return key(*self._prefix, "part", name, struct.pack("<Q", number))

    def _blocks(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """A key for each whole block, over all tokens up to its end."""
        chain = key(*self._prefix, "index")
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            chain = key(chain, packed(tokens[start : start + BLOCK]))
            yield chain


class InRows:
    """States in rows, each by the whole steps of its tokens; all of its tokens are in it."""

    def __init__(self, rows: Rows, prefix: Sequence[str]) -> None:
        self._rows, self._model = rows, key(*prefix)

    def has(self, tokens: Sequence[int]) -> bool:
        return self._rows.longest(self._model, list(tokens)) is not None

    def longest(self, tokens: Sequence[int]) -> Any:
        row = self._rows.longest(self._model, list(tokens))
        if row is None:
            return None
        data = row.state
        head = Head.of(data)
        if head is None or data.nbytes != HEAD.size + head.ids + head.scores + head.state:
            return None
        ids, scores = HEAD.size, HEAD.size + head.ids
        return head.made(
            numpy.frombuffer(data, numpy.intc, head.ids // 4, ids),
            numpy.frombuffer(data, numpy.single, head.scores // 4, scores),
            data[scores + head.scores :],
        )

    def put(self, tokens: Sequence[int], head: bytes, parts: Sequence[memoryview]) -> list[int]:
        whole = len(tokens) - len(tokens) % self._rows.step
        return [self._rows.put(self._model, list(tokens[:whole]), [head, *parts])] if whole else []

    def close(self) -> None:
        """The rows are the caller's."""


class Head(NamedTuple):
    """What comes before a state's bytes; lengths in bytes. No scores are stored where all of them are zeros."""

    n_tokens: int
    ids: int
    scores: int
    state: int
    rows: int
    columns: int
    state_size: int
    seed: int

    @classmethod
    def of(cls, data: "Buffer") -> "Head | None":
        """None: not what was stored."""
        if memoryview(data).nbytes < HEAD.size:
            return None
        magic, *fields = HEAD.unpack_from(data)
        head = cls(*fields)
        fits = head.scores in (0, head.rows * head.columns * 4) and head.ids % 4 == 0 and head.state_size <= head.state
        return head if magic == MAGIC and fits else None

    def made(self, ids: Any, scores: Any, state: Any) -> Any:
        shape = (self.rows, self.columns)
        return engine.LlamaState(
            input_ids=ids,
            scores=scores.reshape(shape) if self.scores else numpy.broadcast_to(numpy.single(0), shape),
            n_tokens=self.n_tokens,
            llama_state=state,
            llama_state_size=self.state_size,
            seed=self.seed,
        )


def flat(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def cut(data: memoryview) -> list[memoryview]:
    return [data[start : start + PART] for start in range(0, data.nbytes, PART)]


def packed(tokens: Sequence[int]) -> bytes:
    return array.array("i", tokens).tobytes()


def fingerprint(llama: Any) -> dict[str, Any]:
    """What two objects must have in common to understand each other's states. The model's file is sampled: its length, its ends and
    64 places between."""
    digest = hashlib.sha256()
    with open(llama.model_path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        for place in (0, *(length * part // 64 for part in range(1, 64)), max(0, length - (1 << 20))):
            file.seek(place)
            digest.update(file.read(1 << 20 if place in (0, max(0, length - (1 << 20))) else 4096))
    parameters = {
        name: getattr(llama.context_params, name, None)
        for name in ("type_k", "type_v", "flash_attn_type", "n_seq_max", "kv_unified", "swa_full", "offload_kqv")
    }
    return {
        "model": f"{length}-{digest.hexdigest()}",
        "version": engine.__version__,
        "context": llama.n_ctx(),
        "logits": getattr(llama, "_logits_all", None),
        "lora": f"{getattr(llama, 'lora_path', None)}*{getattr(llama, 'lora_scale', None)}",
        **parameters,
    }
