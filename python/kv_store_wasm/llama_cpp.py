"""A cache for llama-cpp-python's `Llama.set_cache`, over a store that processes and machines share. `docs/engines/llama-cpp-python.md`
has an example.

A state is stored in parts under a key of its tokens, with an index entry for each block of them. A prompt is looked up by the hashes of
its blocks, the longest first, so it finds the state that shares the longest prefix in one question and one read.
"""

import array
import hashlib
import importlib
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from llama_cpp.llama_cache import BaseLlamaCache

from . import Status, key
from ._adapter import TIMEOUT, Counters, namespace, open_store

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

    llama: whose states are kept: its model file, context size and cache types are part of each key. salt: a further part, such as a
    tenant. timeout: seconds that a batch may take. A state that cannot be had is a KeyError, which llama-cpp-python takes for a miss.
    """

    def __init__(self, uri: str, llama: Any, salt: str = "", timeout: float = TIMEOUT) -> None:
        super().__init__()
        self.counters = Counters()
        self._prefix = namespace("llama-cpp-python", salt=salt, **fingerprint(llama))
        self._store = open_store(uri, timeout)
        self._bytes = 0

    @property
    def cache_size(self) -> int:
        """Bytes that this object has stored."""
        return self._bytes

    def __contains__(self, tokens: Sequence[int]) -> bool:
        return any(outcome >= 0 for outcome in self._store.exists_many(list(self._blocks(tokens))))

    def __getitem__(self, tokens: Sequence[int]) -> Any:
        entries = list(self._blocks(tokens))
        present = self._store.exists_many(entries)
        longest = [entry for entry, outcome in zip(entries, present) if outcome >= 0]
        for entry in longest[: -TRIES - 1 : -1]:
            state = self._state(entry)
            if state is not None:
                self.counters.add("hits", 1)
                return state
        self.counters.add("misses", 1)
        raise KeyError("no state shares a prefix with these tokens")

    def __setitem__(self, tokens: Sequence[int], value: Any) -> None:
        used = list(tokens)[: value.n_tokens]
        entries = list(self._blocks(used))
        name = key(*self._prefix, "state", packed(used))
        scores: Any = numpy.ascontiguousarray(value.scores, dtype=numpy.single)
        ids: Any = numpy.ascontiguousarray(value.input_ids, dtype=numpy.intc)
        rows, columns = scores.shape
        parts: list[memoryview] = []
        lengths: list[int] = []
        for data in (ids, scores, value.llama_state):
            view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
            lengths.append(view.nbytes)
            parts.extend(view[start : start + PART] for start in range(0, view.nbytes, PART))
        head = HEAD.pack(MAGIC, value.n_tokens, *lengths, rows, columns, value.llama_state_size, value.seed)
        # In this order: an entry leads to a whole state.
        stored = (
            self._put([self._part(name, number) for number in range(len(parts))], parts)
            and self._put([name], [head])
            and self._put(entries, [name] * len(entries), replace=True)
        )
        if stored:
            self._bytes += sum(lengths)

    def close(self) -> None:
        self._store.close()

    def _put(self, names: list[bytes], values: Sequence[bytes | memoryview], replace: bool = False) -> bool:
        outcomes = self._store.put_many(names, values, replace=replace)
        self.counters.put(outcomes)
        return all(outcome >= 0 for outcome in outcomes)

    def _state(self, entry: bytes) -> Any:
        name, head = bytearray(32), bytearray(HEAD.size)
        if self._store.get_many_into([entry], [name]) != [len(name)]:
            return None
        if self._store.get_many_into([bytes(name)], [head]) != [HEAD.size]:
            return None
        magic, n_tokens, ids, scores, state, rows, columns, state_size, seed = HEAD.unpack(head)
        if magic != MAGIC or scores != rows * columns * 4 or ids % 4 or state_size > state:
            return None
        memory: list[Any] = [numpy.empty(ids // 4, numpy.intc), numpy.empty((rows, columns), numpy.single), bytearray(state)]
        parts: list[memoryview] = []
        for data in memory:
            view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
            parts.extend(view[start : start + PART] for start in range(0, view.nbytes, PART))
        names = [self._part(bytes(name), number) for number in range(len(parts))]
        outcomes = self._store.get_many_into(names, parts)
        whole = all(outcome == part.nbytes for outcome, part in zip(outcomes, parts))
        if not whole:
            self.counters.add("failures", sum(outcome < 0 and outcome != Status.MISSING for outcome in outcomes))
            return None
        found_ids, found_scores, found_state = memory
        return engine.LlamaState(
            input_ids=found_ids,
            scores=found_scores,
            n_tokens=n_tokens,
            llama_state=found_state,
            llama_state_size=state_size,
            seed=seed,
        )

    def _part(self, name: bytes, number: int) -> bytes:
        return key(*self._prefix, "part", name, struct.pack("<Q", number))

    def _blocks(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """A key for each whole block, over all tokens up to its end."""
        chain = key(*self._prefix, "index")
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            chain = key(chain, packed(tokens[start : start + BLOCK]))
            yield chain


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
