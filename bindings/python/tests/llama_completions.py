"""llama-cpp-python with a real model of random weights: completions are the same with no cache, with ours, and with ours in a fresh
process, which prefills only what is new; and so are those of a conversation over token-exact rows. `cargo xtask test` runs it, with
llama_cpp of the sdist and the libllama that it builds.

usage: llama_completions.py MODEL URI
"""

import json
import struct
import subprocess
import sys
import tempfile
from typing import Any

import kv_store_wasm as kv
from kv_store_wasm import rows
from kv_store_wasm._adapter import Counters
from kv_store_wasm.llama_cpp import HEAD, MAGIC, InStore, StoreCache
from llama_cpp import Llama

PROMPT = [3 + number * 7919 % 200 for number in range(200)]
MORE = [3 + number * 31 % 200 for number in range(40)]
TURNS = [PROMPT, PROMPT + MORE, PROMPT[:120] + MORE]


class Counted(Llama):  # type: ignore[misc]
    """A Llama that counts the tokens that it prefills."""

    evaluated = 0

    def eval(self, tokens: Any) -> None:
        Counted.evaluated += len(tokens)
        super().eval(tokens)


def turns(model: str, uri: str | None) -> list[Any]:
    """Of each prompt the tokens that follow, and how many were evaluated for it."""
    llama = Counted(model_path=model, n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False, seed=1)
    cache = None if uri is None else StoreCache(uri, llama)
    llama.set_cache(cache)
    found = []
    for prompt in TURNS:
        # As for a request of another user: nothing is left of the one before.
        llama.reset()
        Counted.evaluated = 0
        made = llama.create_completion(prompt, max_tokens=12, temperature=0.0, logprobs=None)
        found.append([made["choices"][0]["text"], Counted.evaluated])
    if cache is not None:
        assert PROMPT in cache and PROMPT[1:] not in cache and cache.cache_size > 0
        print(json.dumps(cache.counters.snapshot()), file=sys.stderr)
        cache.close()
    llama.close()
    return found


def conversation(model: str, directory: str | None) -> list[Any]:
    """Of two turns the tokens that follow, and how many were evaluated: the second goes on after the first one's reply."""
    llama = Counted(model_path=model, n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False, seed=1)
    opened = None if directory is None else rows.open(ram_bytes=1 << 28, directory=directory, disk_bytes=1 << 30)
    llama.set_cache(None if opened is None else StoreCache(opened, llama))
    found, prompt = [], PROMPT
    for _ in range(2):
        llama.reset()
        Counted.evaluated = 0
        made = llama.create_completion(prompt, max_tokens=12, temperature=0.0, logprobs=None)
        found.append([made["choices"][0]["text"], Counted.evaluated])
        prompt = llama.input_ids[: llama.n_tokens].tolist() + MORE
    if opened is not None:
        assert PROMPT not in llama.cache and prompt in llama.cache and llama.cache.cache_size > 0
        opened.close()
    llama.close()
    return found


def in_a_fresh_process(*arguments: str) -> Any:
    command = [sys.executable, "-P", __file__, *arguments, "fresh"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])


def over_rows(model: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        without, ours = conversation(model, None), conversation(model, directory)
        fresh = in_a_fresh_process(model, directory)
    for name, found in (("without a cache", without), ("with rows", ours), ("with rows in a fresh process", fresh)):
        print(f"{name}: {[evaluated for _, evaluated in found]} tokens evaluated")
    assert [text for text, _ in without] == [text for text, _ in ours] == [text for text, _ in fresh], (without, ours, fresh)
    # All but what is new since the reply.
    assert ours[1][1] < len(MORE) + 20 < without[1][1] and fresh[1][1] < len(MORE) + 20, (without, ours, fresh)


def scores_are_stored_where_there_are_some(model: str) -> None:
    for logits_all in (False, True):
        llama = Llama(model_path=model, n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False, seed=1, logits_all=logits_all)
        llama.eval(PROMPT)
        state = llama.save_state()
        with tempfile.TemporaryDirectory() as directory:
            cache = StoreCache(f"local-fs://{directory}", llama)
            cache[PROMPT] = state
            found, size = cache[PROMPT], cache.cache_size
            cache.close()
        assert size == state.input_ids.nbytes + len(state.llama_state) + logits_all * state.scores.nbytes, (logits_all, size)
        assert found.scores.shape == state.scores.shape and found.scores.dtype == state.scores.dtype
        assert (found.scores == state.scores).all() if logits_all else not found.scores.any()
        assert bytes(found.llama_state) == bytes(state.llama_state)
        llama.load_state(found)
        llama.close()


def test_golden_names_of_a_state() -> None:
    """Computed with hashlib: of a state of the tokens 1 to 20, with scores and without."""
    tokens = list(range(1, 21))
    entry = bytes.fromhex("488a2cdc6e046de38f83350b81290e0be6c3e6126cd19769e1c3dd3565c9944c")
    with_scores = (
        "4b09e08881a7a7d464ca2fe872cf07b07d0a76bca7a95c724d9c74e0f89e3e80",
        "f0a8e479542a283ff2d3fc539b56be9da0cb594525ffa6062449702fbd4b2ec5",
        "bed776955c29d97f7585ad8c054b40fd6e8da3c1b0d8f1f33677d342de91b52b",
        "c7d6a43eadd7f265d1a3676438dbfc2a55fc2d5504cdfddad3d0f8bbfad94481",
    )
    without = (
        "393bc9c3d9fc6a04c0205c364ebc08e4fa47079de7e46b233c414dc059597a90",
        "07d69b121cdbc1c8c1590d89233f8be53a5f391be489bb2daaf7acc87cd0410c",
        "4c65f4b4b7dcc1254f7f3edb69847e46c0a8fdc9aab48390819442e263c985e0",
    )
    for names, scores in ((with_scores, b"scores.."), (without, b"")):
        parts = [part for part in (bytes(range(80)), scores, b"the state") if part]
        head = HEAD.pack(MAGIC, 20, 80, len(scores), 9, 1, 2, 9, -1)
        plain = b"kvs1" + b"".join(struct.pack("<I", number) for number in (20,))
        plain += b"".join(struct.pack("<q", number) for number in (80, len(scores), 9, 1, 2, 9, -1))
        assert head == plain
        with tempfile.TemporaryDirectory() as directory:
            states = InStore(f"local-fs://{directory}", ("llama-cpp-python", "model=m"), 10, Counters())
            given = [memoryview(part) for part in (bytes(range(80)), scores, b"the state")]
            assert all(outcome == 0 for outcome in states.put(tokens, head, given))
            states.close()
            with kv.open(f"local-fs://{directory}") as store:
                keys = [entry, *map(bytes.fromhex, names)]
                values = [bytes.fromhex(names[0]), head, *parts]
                read = [bytearray(len(value)) for value in values]
                assert store.get_many_into(keys, read) == [len(value) for value in values]
                assert read == values


def main() -> None:
    model, uri = sys.argv[1:3]
    if len(sys.argv) > 3:
        print(json.dumps(turns(model, uri) if "://" in uri else conversation(model, uri)))
        return
    without, ours = turns(model, None), turns(model, uri)
    fresh = in_a_fresh_process(model, uri)
    for name, found in (("without a cache", without), ("with ours", ours), ("in a fresh process", fresh)):
        print(f"{name}: {[evaluated for _, evaluated in found]} tokens evaluated")
    texts = [[text for text, _ in found] for found in (without, ours, fresh)]
    assert texts[0] == texts[1] == texts[2], texts
    assert all(texts[0])
    # The second prompt goes on where the first one ended; the third shares its beginning.
    assert ours[1][1] < without[1][1] and ours[2][1] < without[2][1], (without, ours)
    # A fresh process has less to do for each.
    assert all(new[1] < old[1] for new, old in zip(fresh, without)), (without, fresh)
    over_rows(model)
    scores_are_stored_where_there_are_some(model)
    test_golden_names_of_a_state()


if __name__ == "__main__":
    main()
