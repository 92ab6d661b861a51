"""What vLLM's connector decides, without vLLM: hits of several groups, where blocks lie, and a scheduler whose pool and worker are played."""

import dataclasses
import itertools
import os
import random
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

import kv_store_wasm as kv
from conftest import Redis
from kv_store_wasm._adapter import namespace
from kv_store_wasm._vllm_plan import Group, Job, Prefix, Tables, block_name, longest, runs
from kv_store_wasm._vllm_scheduler import Scheduler, Settings

SETTINGS = Settings(timeout=5.0, lookup_timeout=1.0, compute_rate=None, save_bytes=1 << 20)


def test_a_hit_is_as_long_as_all_groups_have_it() -> None:
    """Against the definition: every block that is needed to go on is local or present."""
    drawn = random.Random(1)
    for _ in range(3000):
        groups = [
            Group(drawn.choice((4, 8)), drawn.choice((None, 3, 7, 8, 20))) for _ in range(drawn.randint(1, 3))
        ]
        step = max(group.block_tokens for group in groups)
        limit, local = drawn.randrange(100), step * drawn.randrange(4)
        present = [[drawn.random() < 0.85 for _ in range(limit // group.block_tokens)] for group in groups]

        def works(tokens: int) -> bool:
            return all(
                there[index]
                for group, there in zip(groups, present)
                for index in range(tokens // group.block_tokens)
                if index >= local // group.block_tokens
                and (group.window is None or (index + 1) * group.block_tokens > tokens - group.window)
            )

        wanted = max((tokens for tokens in range(0, limit + 1, step) if tokens > local and works(tokens)), default=local)
        assert longest(groups, present, local, limit, step) == wanted


def test_pieces_cover_a_tensor() -> None:
    for shape in itertools.product((1, 2, 3), repeat=3):
        for order in itertools.permutations(range(3)):
            for gap in (0, 5):
                strides, size = [0] * 3, 1
                for place, axis in enumerate(order):
                    strides[axis] = size
                    size = size * shape[axis] + (gap if place == 1 else 0)
                places = {
                    sum(index * stride for index, stride in zip(at, strides)) * 2 + byte
                    for at in itertools.product(*map(range, shape))
                    for byte in (0, 1)
                }
                pieces = runs(shape, strides, 2)
                assert [place for start, length in pieces for place in range(start, start + length)] == sorted(places)
    assert runs((4, 8, 16), (128, 16, 1), 4) == [(0, 2048)]


def test_golden_key_of_a_block() -> None:
    """Computed with hashlib from docs/engines/vllm.md: parts behind their lengths, the last of them vLLM's hash and the group."""
    prefix = namespace("vllm", format="1", model="m", layout="L", tensor=2, pipeline=1, rank=0, salt="s", revision=None)
    [made] = kv.keys([block_name(bytes(range(32)), 3)], *prefix, "")
    assert made.hex() == "90e3755afbd030816b054d91833c6e79bdb5b93d1afdc69b98ebc12324b2c972"


def test_tables_of_blocks_are_followed_where_vllm_tells_what_is_new() -> None:
    def output(new: dict[str, list[int]] = {}, more: dict[str, list[int] | None] = {}, resumed: set[str] = set(), ended: set[str] = set()) -> Any:
        fresh = [types.SimpleNamespace(req_id=name, block_ids=(blocks,)) for name, blocks in new.items()]
        blocks = [None if added is None else (added,) for added in more.values()]
        cached = types.SimpleNamespace(req_ids=list(more), new_block_ids=blocks, resumed_req_ids=resumed)
        return types.SimpleNamespace(scheduled_new_reqs=fresh, scheduled_cached_reqs=cached, finished_req_ids=ended)

    tables, first = Tables(), [1, 2]
    tables.follow(output(new={"a": first, "b": [3]}))
    tables.follow(output(more={"a": [4], "b": None}))
    assert (tables.of("a"), tables.of("b")) == ([[1, 2, 4]], [[3]]) and first == [1, 2]
    # Preempted, and begun anew with other blocks; the other one has ended, and its name comes again.
    tables.follow(output(more={"a": [7, 8]}, resumed={"a"}, ended={"b"}))
    tables.follow(output(new={"b": [9]}, more={"a": [5]}))
    assert (tables.of("a"), tables.of("b")) == ([[7, 8, 5]], [[9]])
    tables.follow(output(ended={"a"}))
    with pytest.raises(KeyError):
        tables.of("a")


@dataclasses.dataclass
class PoolBlock:
    block_id: int
    ref_cnt: int = 0
    is_null: bool = False


class Pool:
    def __init__(self, blocks: int) -> None:
        self.blocks = [PoolBlock(number) for number in range(blocks)]
        self.blocks[0].is_null = True

    def touch(self, blocks: list[PoolBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: list[PoolBlock]) -> None:
        for block in blocks:
            block.ref_cnt -= 1

    def held(self) -> int:
        return sum(block.ref_cnt for block in self.blocks)


@dataclasses.dataclass
class Request:
    request_id: str
    block_hashes: list[bytes]
    num_tokens: int
    num_computed_tokens: int = 0
    skip_reading_prefix_cache: bool = False

    @property
    def all_token_ids(self) -> list[int]:
        return list(range(self.num_tokens))


def request(name: str, tokens: int) -> Request:
    return Request(name, [f"hash {number}".encode() for number in range(tokens // 16)], tokens)


class Engine:
    """A scheduler of ours in an engine that is played, of several ranks; the store is a real one."""

    def __init__(self, uri: str, groups: list[Group], ranks: int = 1, settings: Settings = SETTINGS, blocks: int = 1000) -> None:
        self.store = kv.open(uri, sealed=True, timeout=5.0)
        self.pool = Pool(blocks)
        self.ours = Scheduler(self.store.queue(64), settings, groups, [64] * len(groups), 16, 16, ranks, events=True)
        self.ours.bind(self.pool)
        self.prefixes: list[Prefix] = [("test", f"rank={rank}") for rank in range(ranks)]
        self.ours.ranks_are(self.prefixes)

    def matched(self, asked: Request, local: int = 0) -> int:
        deadline = time.monotonic() + 60
        while (found := self.ours.matched(asked, local)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return found

    def put(self, job: Job, ranks: Iterator[int]) -> None:
        for rank in ranks:
            names = kv.keys([block.name for block in job.blocks], *self.prefixes[rank], self.ours.generation)
            self.store.put_many(names, [b"x" * 64] * len(names))


@pytest.fixture
def engine(uri: str) -> Iterator[Engine]:
    made = Engine(uri, [Group(16)])
    yield made
    made.ours.close()


def table(asked: Request, groups: int = 1) -> list[list[int]]:
    return [[1 + number for number in range(asked.num_tokens // 16 + 1)] for _ in range(groups)]


def test_blocks_are_saved_once_and_found(engine: Engine) -> None:
    one = request("one", 100)
    assert engine.matched(one) == 0
    # Chunked prefill: each step saves what it fills.
    saves: list[Job] = []
    for tokens in (40, 40, 20):
        loads, new = engine.ours.step({"one": tokens}, lambda _: table(one))
        saves += new
        one.num_computed_tokens += tokens
        assert not loads
    assert [len(job.blocks) for job in saves] == [2, 3, 1] and engine.pool.held() == 6 and engine.ours.pending()
    # Another request with the same prompt meanwhile saves nothing twice.
    two = request("two", 100)
    assert engine.matched(two) == 0
    assert engine.ours.step({"two": 100}, lambda _: table(two)) == ([], [])
    engine.ours.finished(one, table(one))
    for job in saves:
        engine.put(job, iter([0]))
        engine.ours.ended({job.number: (1, True)}, set())
    assert engine.pool.held() == 0 and not engine.ours.pending()
    stored = engine.ours.take_stored()
    assert [of.digest for of in stored] == one.block_hashes and stored[1].parent == stored[0].digest
    assert stored[1].tokens == list(range(16, 32))
    three = request("three", 100)
    # All but the last token, in whole blocks; what is local is not loaded.
    assert engine.matched(three) == 96 and engine.matched(three, 32) == 64
    blocks = [[PoolBlock(number) for number in range(10, 17)]]
    engine.ours.allocated(three, blocks, 64)
    [load], new = engine.ours.step({}, lambda _: table(three))
    assert [block.number for block in load.blocks] == [12, 13, 14, 15] and not new
    # What is there is not saved again.
    three.num_computed_tokens = 96
    assert engine.ours.step({"three": 4}, lambda _: table(three)) == ([], [])


def test_a_block_that_one_rank_lacks_is_not_found(uri: str) -> None:
    engine = Engine(uri, [Group(16)], ranks=2)
    one = request("one", 64)
    assert engine.matched(one) == 0
    _, [job] = engine.ours.step({"one": 64}, lambda _: table(one))
    engine.put(dataclasses.replace(job, blocks=job.blocks[:2]), iter([0]))
    engine.put(dataclasses.replace(job, blocks=job.blocks[:1]), iter([1]))
    engine.ours.ended({job.number: (1, True)}, set())
    assert engine.pool.held() == 4
    engine.ours.ended({job.number: (1, False)}, set())
    assert engine.pool.held() == 0 and not engine.ours.take_stored()
    assert engine.matched(request("two", 64)) == 16
    engine.ours.close()


def test_groups_are_loaded_together(uri: str) -> None:
    engine = Engine(uri, [Group(16), Group(16, 20)])
    one = request("one", 96)
    assert engine.matched(one) == 0
    _, [job] = engine.ours.step({"one": 96}, lambda _: table(one, 2))
    assert len(job.blocks) == 12
    # Of the window's layers, only blocks 1 to 3 are stored.
    kept = [block for block in job.blocks if block.group == 0 or block.number in (2, 3, 4)]
    engine.put(dataclasses.replace(job, blocks=kept), iter([0]))
    two = request("two", 97)
    assert engine.matched(two) == 64
    null, table_of = PoolBlock(0, is_null=True), [PoolBlock(number) for number in range(20, 26)]
    engine.ours.allocated(two, [table_of, [null, null, *table_of[2:]]], 64)
    [load], _ = engine.ours.step({}, lambda _: table(two, 2))
    assert sorted((block.group, block.number) for block in load.blocks) == [(0, 20), (0, 21), (0, 22), (0, 23), (1, 22), (1, 23)]
    engine.ours.close()


def test_a_load_that_failed_is_not_offered_again_and_what_is_computed_is_stored(engine: Engine) -> None:
    one = request("one", 64)
    assert engine.matched(one) == 0
    _, [job] = engine.ours.step({"one": 64}, lambda _: table(one))
    engine.put(job, iter([0]))
    engine.ours.ended({job.number: (1, True)}, set())
    two = request("two", 80)
    assert engine.matched(two) == 64
    engine.ours.allocated(two, [[PoolBlock(number) for number in range(5, 10)]], 64)
    assert len(engine.ours.step({}, lambda _: table(two))[0]) == 1
    # An end of the request now saves nothing: its pages hold nothing yet.
    two.num_computed_tokens = 64
    engine.ours.ended({}, {"two"})
    assert engine.matched(two) == 0
    two.num_computed_tokens = 0
    _, [again] = engine.ours.step({"two": 80}, lambda _: table(two))
    assert len(again.blocks) == 5


def test_a_request_that_ends_while_it_waits_for_its_load_saves_nothing(engine: Engine) -> None:
    one = request("one", 64)
    assert engine.matched(one) == 0
    _, [job] = engine.ours.step({"one": 64}, lambda _: table(one))
    engine.put(dataclasses.replace(job, blocks=job.blocks[:2]), iter([0]))
    engine.ours.ended({job.number: (1, False)}, set())
    two = request("two", 64)
    assert engine.matched(two) == 32
    engine.ours.allocated(two, [[PoolBlock(number) for number in range(5, 10)]], 32)
    two.num_computed_tokens = 64
    engine.ours.finished(two, table(two))
    assert engine.ours.step({}, lambda _: table(two))[1] == []


def test_saves_are_bounded_and_go_on_later(uri: str) -> None:
    engine = Engine(uri, [Group(16)], settings=dataclasses.replace(SETTINGS, save_bytes=128))
    one = request("one", 64)
    assert engine.matched(one) == 0
    _, [job] = engine.ours.step({"one": 64}, lambda _: table(one))
    assert len(job.blocks) == 2
    one.num_computed_tokens = 64
    assert engine.ours.step({"one": 1}, lambda _: table(one)) == ([], [])
    engine.ours.ended({job.number: (1, True)}, set())
    _, [job] = engine.ours.step({"one": 1}, lambda _: table(one))
    assert [block.number for block in job.blocks] == [3, 4]
    two = request("two", 640)
    two.block_hashes = [os.urandom(32) for _ in two.block_hashes]
    assert engine.matched(two) == 0
    engine.ours.step({"two": 640}, lambda _: table(two))
    two.num_computed_tokens = 640
    engine.ours.finished(two, table(two))
    assert engine.ours.counters.snapshot()["shed"] == 1
    engine.ours.close()


def test_a_reset_names_everything_otherwise(engine: Engine) -> None:
    one = request("one", 64)
    assert engine.matched(one) == 0
    _, [job] = engine.ours.step({"one": 64}, lambda _: table(one))
    engine.put(job, iter([0]))
    engine.ours.ended({job.number: (1, True)}, set())
    assert engine.matched(request("two", 64)) == 48
    engine.ours.reset()
    assert engine.matched(request("three", 64)) == 0


def test_a_server_that_is_gone_is_misses(redis: Redis) -> None:
    engine = Engine(redis.uri, [Group(16)])
    redis.kill()
    assert engine.matched(request("one", 64)) == 0
    assert engine.ours.counters.snapshot()["failed_lookups"] == 1
    engine.ours.close()


def test_prompts_that_must_be_computed_are(engine: Engine) -> None:
    one: Any = request("one", 64)
    one.skip_reading_prefix_cache = True
    assert engine.ours.matched(one, 0) == 0
