"""llama-cpp-python with a real model of random weights: completions are the same with no cache, with ours, and with ours in a fresh
process, which prefills only what is new; and so are those of a conversation over token-exact rows. `cargo xtask test` runs it, with
llama_cpp of the sdist and the libllama that it builds.

usage: llama_completions.py MODEL URI
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

from kv_store_wasm import rows
from kv_store_wasm.llama_cpp import StoreCache
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


if __name__ == "__main__":
    main()
