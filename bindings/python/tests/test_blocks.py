"""The block cache: what each call answers, which memory it takes, and how long it holds what it lends."""

import array
import ctypes
import multiprocessing
import threading
from collections.abc import Iterator

import pytest

import kv_store_wasm as kv
from kv_store_wasm import blocks

TOKENS, BYTES = 4, 1000
PROMPT = list(range(100, 130))
"""Seven blocks, and two tokens that are none."""
CONFIG = "[l1]\ncapacity_gb = 0.001\n[l2]\ningestion_type = 'ALL'\nper_token_timeout_ms = 1000\n"


def pages(count: int = 7) -> list[bytes]:
    return [bytes([number + 1]) * BYTES for number in range(count)]


def open_cache(uri: str | None, config: str = CONFIG, model: str = "model") -> blocks.Cache:
    return blocks.open(uri, config, model=model, block_tokens=TOKENS, block_bytes=BYTES)


@pytest.fixture
def cache(uri: str) -> Iterator[blocks.Cache]:
    with open_cache(uri) as cache:
        yield cache


def test_blocks_are_put_found_fetched_and_deleted(cache: blocks.Cache) -> None:
    assert (cache.block_tokens, cache.block_bytes) == (TOKENS, BYTES)
    assert cache.exists(PROMPT) == 0
    assert cache.put(PROMPT, pages()) == 28
    assert cache.exists(PROMPT) == 28
    memory = [bytearray(BYTES) for _ in range(7)]
    assert cache.get(PROMPT, memory) == 28
    assert memory == pages()
    # Another prompt shares the first two blocks.
    assert cache.exists(PROMPT[:8] + [7] * 8) == 8
    # What follows a prefix.
    assert cache.get(PROMPT[8:16], memory[:2], prefix=PROMPT[:8]) == 8
    assert memory[:2] == pages()[2:4]
    assert cache.delete(PROMPT[8:], prefix=PROMPT[:8]) == 20
    assert cache.exists(PROMPT) == 8
    assert cache.flush()
    assert 'level="cache",op="get"' in cache.metrics()


def test_another_cache_has_what_the_store_has(uri: str) -> None:
    with open_cache(uri) as first:
        first.put(PROMPT, pages())
    with open_cache(None, CONFIG + f"backend = '{uri}'\n") as other:
        assert other.prefetch(PROMPT) == 28
        memory = [bytearray(BYTES) for _ in range(7)]
        assert other.get(PROMPT, memory) == 28
        assert memory == pages()
    with open_cache(uri, model="another") as other:
        assert other.exists(PROMPT) == 0
    # Without a store there is the memory of this cache.
    with open_cache(None) as alone:
        assert alone.exists(PROMPT) == 0
        assert alone.put(PROMPT, pages()) == alone.exists(PROMPT) == 28


def test_blocks_of_another_descriptor_are_not_found_and_stay(uri: str) -> None:
    one, two = (f"{CONFIG}[descriptor]\nmodel = 'sha256:{number}'\n" for number in (1, 2))
    with open_cache(uri, one) as cache:
        assert cache.put(PROMPT, pages()) == 28 and cache.flush()
    with open_cache(uri, two) as cache:
        assert cache.get(PROMPT, [bytearray(BYTES) for _ in range(7)]) == 0
        cache.put(PROMPT, [b"x" * BYTES for _ in range(7)])
    with open_cache(uri, one) as cache:
        memory = [bytearray(BYTES) for _ in range(7)]
        assert cache.get(PROMPT, memory) == 28 and memory == pages()
    with pytest.raises(kv.Error, match="modle"):
        open_cache(uri, f"{CONFIG}[descriptor]\nmodle = 'sha256:1'\n")


def test_tokens_are_buffers_and_sequences_of_ints(cache: blocks.Cache) -> None:
    cache.put(PROMPT, pages())
    for tokens in (array.array("i", PROMPT), array.array("q", PROMPT), tuple(PROMPT), memoryview(array.array("i", PROMPT))):
        assert cache.exists(tokens) == 28
    # Every second of them.
    doubled = [token for token in PROMPT for _ in range(2)]
    assert cache.exists(memoryview(array.array("i", doubled))[::2]) == 28
    for wrong in (b"bytes are no tokens", array.array("d", [1.0]), "text", [1.5], None):
        with pytest.raises(TypeError):
            cache.exists(wrong)  # type: ignore[arg-type]
    for large in ([1 << 31], array.array("q", [1 << 31])):
        with pytest.raises(OverflowError):
            cache.exists(large)


def test_memory_is_a_buffer_or_an_address(cache: blocks.Cache) -> None:
    raw = ctypes.create_string_buffer(b"\x05" * BYTES, BYTES)
    place = (ctypes.addressof(raw), BYTES)
    assert cache.put(PROMPT, [place, array.array("b", bytes(BYTES))]) == 8
    into = ctypes.create_string_buffer(BYTES)
    assert cache.get(PROMPT, [(ctypes.addressof(into), BYTES)]) == 4
    assert into.raw == b"\x05" * BYTES
    # Fewer blocks than the query has are those of its beginning; none is none.
    assert cache.get(PROMPT, []) == 0 and cache.put(PROMPT, []) == 0


def test_calls_that_make_no_sense_raise_and_store_nothing(cache: blocks.Cache) -> None:
    memory = bytearray(BYTES)
    with pytest.raises(ValueError, match="block 1 has 999 bytes"):
        cache.put(PROMPT, [memory, bytes(BYTES - 1)])
    with pytest.raises(ValueError, match="block 0 has 1000 bytes"):
        cache.put(PROMPT, [(0, BYTES)])
    with pytest.raises(BufferError, match="contiguous"):
        cache.put(PROMPT, [memoryview(bytes(2 * BYTES))[::2]])
    with pytest.raises(BufferError, match="read-only"):
        cache.get(PROMPT, [bytes(BYTES)])
    with pytest.raises(ValueError, match="share memory"):
        cache.get(PROMPT, [memory, memory])
    wide = bytearray(BYTES + 1)
    with pytest.raises(ValueError, match="share memory"):
        cache.get(PROMPT, [memoryview(wide)[:BYTES], memoryview(wide)[1:]])
    with pytest.raises(ValueError, match="whole number of blocks"):
        cache.exists(PROMPT, prefix=[1])
    with pytest.raises(TypeError, match=r"\(address, length\)"):
        cache.put(PROMPT, [(1, 2, 3)])  # type: ignore[list-item]
    assert cache.exists(PROMPT) == 0


def test_what_does_not_open_says_why(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for config, said in (("[l2]\nop_bach = 3", "op_bach"), ("chunk_size = 0", "chunk_size")):
        with pytest.raises(kv.Error, match=said):
            open_cache(uri, config)
    with pytest.raises(kv.Error, match="layout"):
        blocks.open(uri, model="m", block_tokens=4, block_bytes=8, layout="XYZ")
    with pytest.raises(kv.Error, match="float3"):
        blocks.open(uri, model="m", block_tokens=4, block_bytes=8, dtype="float3")
    with pytest.raises(kv.Error, match="no-such"):
        open_cache("no-such://store")
    monkeypatch.setenv("KV_BLOCKS_L2_CACHE_OP_BATCH", "many")
    with pytest.raises(kv.Error, match="KV_BLOCKS_L2_CACHE_OP_BATCH"):
        open_cache(uri)


def test_what_is_acquired_stays_as_long_as_somebody_sees_it() -> None:
    cache = open_cache(None)
    cache.put(PROMPT, pages())
    with cache.acquire(PROMPT) as acquired:
        assert (len(acquired), acquired.tokens) == (7, 28)
        assert [bytes(view) for view in acquired] == pages()
        view, last = acquired[2], acquired[-1]
        assert view.readonly and view.nbytes == BYTES and bytes(last) == pages()[6]
        for index in (7, -8):
            with pytest.raises(IndexError):
                acquired[index]
        with pytest.raises(TypeError):
            view[0] = 1
    assert len(acquired) == 0 and list(acquired) == []
    # Blocks that came and went meanwhile took no memory that is seen.
    for start in range(1000, 40_000, 28):
        cache.put(list(range(start, start + 28)), pages())
    cache.close()
    assert bytes(view) == pages()[2]
    nothing = open_cache(None)
    assert len(nothing.acquire(PROMPT)) == nothing.acquire(PROMPT).tokens == 0


def test_a_closed_cache_raises(cache: blocks.Cache) -> None:
    assert not cache.closed
    cache.close()
    cache.close()
    assert cache.closed
    for call in (cache.exists, cache.delete, cache.prefetch, cache.acquire):
        with pytest.raises(ValueError, match="closed"):
            call(PROMPT)
    with pytest.raises(ValueError, match="closed"):
        cache.put(PROMPT, pages())
    with pytest.raises(ValueError, match="closed"):
        cache.flush()


def test_threads_share_a_cache(cache: blocks.Cache) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        tokens = list(range(number * 1000, number * 1000 + 28))
        memory = [bytearray(BYTES) for _ in range(7)]
        for _ in range(50):
            if cache.put(tokens, pages()) != 28 or cache.get(tokens, memory) != 28 or memory != pages():
                wrong.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def use_in_a_child(cache: blocks.Cache, answers: "multiprocessing.SimpleQueue[str]") -> None:
    try:
        cache.exists(PROMPT)
        answers.put("answered")
    except kv.Error as error:
        answers.put(str(error))
    cache.close()


def test_a_child_that_was_forked_off_is_refused(cache: blocks.Cache) -> None:
    cache.put(PROMPT, pages())
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=use_in_a_child, args=(cache, answers))
    child.start()
    assert "before a fork" in answers.get()
    child.join(60)
    assert child.exitcode == 0
    assert cache.exists(PROMPT) == 28
