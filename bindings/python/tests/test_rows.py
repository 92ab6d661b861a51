"""The token-exact cache of the wheel."""

import array
import json
import multiprocessing
import os
import pathlib
from typing import Any

import pytest

import kv_store_wasm as kv
from kv_store_wasm import Status, rows

MODEL = kv.key("a model")
PROMPT = list(range(100))


@pytest.fixture(params=["ram", "disk", "both"])
def settings(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> dict[str, Any]:
    ram: dict[str, Any] = {"ram_bytes": 1 << 20}
    disk = {"directory": tmp_path / "rows", "disk_bytes": 1 << 20}
    return ram if request.param == "ram" else disk if request.param == "disk" else ram | disk


def test_the_longest_beginning_is_found(settings: dict[str, Any]) -> None:
    with rows.open(**settings) as cache:
        assert cache.longest(MODEL, PROMPT) is None
        for tokens in (16, 48, 50):
            state = (b"state of ", memoryview(str(tokens).encode()), bytearray())
            assert cache.put(MODEL, PROMPT[:tokens], state) == Status.OK
        assert cache.flush(60)
        assert cache.put(MODEL, array.array("i", PROMPT[:48]), b"another") == Status.EXISTED
        # Of exactly these tokens, though they are at no step; else of the longest step.
        for prompt, found in ((PROMPT[:50], 50), (PROMPT, 48), (PROMPT[:47], 16)):
            row = cache.longest(MODEL, prompt)
            assert row is not None and row.tokens == found
            assert row.state == f"state of {found}".encode() and len(row) == len(row.state)
            assert row.state.readonly
        assert cache.longest(MODEL, [7, *PROMPT]) is None and cache.longest(MODEL, PROMPT[:15]) is None
        assert cache.longest(kv.key("another model"), PROMPT) is None
        assert json.loads(cache.stats())["hits_exact"] == 1


def test_rows_of_a_directory_outlive_the_cache(tmp_path: pathlib.Path) -> None:
    state = os.urandom(100_000)
    settings: dict[str, Any] = {"directory": tmp_path, "disk_bytes": 1 << 20}
    with rows.open(**settings) as cache:
        assert cache.put(MODEL, PROMPT[:32], state) == Status.OK
        with pytest.raises(kv.Error, match="process"):
            rows.open(**settings)
    with rows.open(**settings) as cache:
        row = cache.longest(MODEL, PROMPT)
        assert row is not None and row.state == state
    # It holds its memory, and the directory.
    assert bytes(row.state) == state


def test_rows_of_another_descriptor_are_not_found_and_stay(tmp_path: pathlib.Path) -> None:
    settings: dict[str, Any] = {"directory": tmp_path, "disk_bytes": 1 << 20}
    one: dict[str, str | int | None] = {"model": "sha256:1", "layers": 32, "rope": None}
    two: dict[str, str | int | None] = {"model": "sha256:2", "layers": 32}
    with rows.open(**settings, descriptor=one) as cache:
        assert cache.put(MODEL, PROMPT[:32], b"of one") == Status.OK
    with rows.open(**settings, descriptor=two) as cache:
        assert cache.longest(MODEL, PROMPT) is None
        assert json.loads(cache.stats())["other_descriptors"] == 1
    for said in (one, None):
        with rows.open(**settings, descriptor=said) as cache:
            row = cache.longest(MODEL, PROMPT)
            assert row is not None and bytes(row.state) == b"of one"
            # It holds the directory.
            del row
    with pytest.raises(ValueError, match="modle"):
        rows.open(**settings, descriptor={"modle": "sha256:1"})


def test_a_damaged_row_is_a_miss(tmp_path: pathlib.Path) -> None:
    settings: dict[str, Any] = {"directory": tmp_path, "disk_bytes": 1 << 20}
    with rows.open(**settings) as cache:
        for tokens in (16, 32):
            assert cache.put(MODEL, PROMPT[:tokens], bytes([tokens]) * 5000) == Status.OK
    [longer] = [path for path in tmp_path.rglob("*.kvc") if bytes([32]) * 5000 in path.read_bytes()]
    data = bytearray(longer.read_bytes())
    data[data.index(bytes([32]) * 5000) + 2500] ^= 1
    longer.write_bytes(data)
    with rows.open(**settings) as cache:
        row = cache.longest(MODEL, PROMPT)
        assert row is not None and row.tokens == 16 and row.state == bytes([16]) * 5000


def test_what_does_not_fit_is_refused_and_what_makes_no_sense_raises(tmp_path: pathlib.Path) -> None:
    with rows.open(ram_bytes=10_000) as cache:
        assert cache.put(MODEL, PROMPT, bytes(20_000)) == Status.EXHAUSTED
        assert cache.put(MODEL, PROMPT, b"") == Status.INVALID
        with pytest.raises(ValueError, match="32 bytes"):
            cache.put(b"short", PROMPT, b"state")
        with pytest.raises(TypeError):
            cache.put(MODEL, ["word"], b"state")  # type: ignore[list-item]
        with pytest.raises(BufferError, match="contiguous"):
            cache.put(MODEL, PROMPT, memoryview(bytes(8))[::2])
    assert cache.closed
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.longest(MODEL, PROMPT)
    several: list[dict[str, Any]] = [{}, {"ram_bytes": 1, "step": 1}, {"directory": tmp_path}, {"directory": "rows", "disk_bytes": 1}]
    for wrong in several:
        with pytest.raises(ValueError):
            rows.open(**wrong)


def use_in_a_child(cache: rows.Rows, answers: Any) -> None:
    answers.put((cache.longest(MODEL, PROMPT) is None, cache.put(MODEL, PROMPT[:3], b"x") < 0))
    cache.close()


def test_a_child_that_was_forked_off_is_refused(settings: dict[str, Any]) -> None:
    with rows.open(**settings) as cache:
        assert cache.put(MODEL, PROMPT[:32], b"state") == Status.OK
        assert cache.flush(60)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=use_in_a_child, args=(cache, answers))
        child.start()
        assert answers.get() == (True, True)
        child.join(60)
        assert child.exitcode == 0
        assert cache.longest(MODEL, PROMPT) is not None
