#!/usr/bin/env python3
"""Time the automatic prefix cache below llama-server, in turns with the same server without the library. Prints a row of JSON for each.

`first-token`: a prompt of some thousand tokens that another server has computed, asked of a server that has just started. `no-hits`: tokens a
second of prompts that nobody has computed before, while all of them are stored.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

import llama_server
from llama_server import CheckFailed, expect, require

GOALS = {"first-token": 20.0, "no-hits": 0.97}
# Requests of one turn; each follows the one before at once, so that storing and computing meet.
IN_A_TURN = 4
# Ordinary tokens of SmolLM2 and of models of bytes alike.
VOCABULARY = (20, 250)


class Server(llama_server.Server):
    def __init__(self, args, folder, library):
        env = {"KV_STORE_LLAMA_URI": f"wasm://local-fs://{folder}/store", "KV_STORE_LLAMA_AUTO": "1"} if library else {}
        options = ["-np", "1", "-c", "8192", "--cache-ram", "0", "-t", "2", "-tb", "2"]
        super().__init__(args, folder / "server.log", args.model, options, [args.lib] if library else [], env)

    def first_token(self, prompt, n_predict=1):
        return self.streamed("/completion", {"prompt": prompt, "n_predict": n_predict, "temperature": 0.0, "seed": 1, "ignore_eos": True})


def prompt(seed, tokens):
    chosen = random.Random(seed)
    return [chosen.randrange(*VOCABULARY) for _ in range(tokens)]


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def wait_until_stored(folder):
    """Until nothing is added for half a second."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = bytes_in(folder)
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.05)


def first_token(args, folder):
    long = prompt(args.seed, args.tokens)
    with Server(args, folder, True) as server:
        server.first_token(long)
    rounds, texts = [], set()
    for number in range(args.rounds):
        done = {}
        for library in ((True, False), (False, True))[number % 2]:
            with Server(args, folder, library) as server:
                # A server's first request pays for pages and threads: not what is measured.
                server.first_token(prompt(-1 - number, 48))
                done[library], text = server.first_token(long, 16)
                if not library:
                    # Its own prefix cache computes the last token alone, as whoever loads the rest does; llama.cpp rounds by sizes of batches.
                    _, text = server.first_token(long, 16)
                texts.add(text)
            if library:
                require("the state was loaded", f"{args.tokens - 1} tokens of sequence" in server.said())
        rounds.append(done)
    ours, peer = (1e3 * statistics.median(done[side] for done in rounds) for side in (True, False))
    expect("different greedy texts, loaded and from the server's own prefix cache", len(texts), 1)
    row("first-token", ours, peer, peer / ours, "ms", "lower")


def no_hits(args, folder):
    servers = {library: Server(args, folder, library) for library in (True, False)}
    store, seed, rates = folder / "store", args.seed * 1000, []
    with servers[True], servers[False]:
        for number in range(args.rounds + 1):
            done = {}
            for library in ((True, False), (False, True))[number % 2]:
                prompts = [prompt(seed + turn, args.tokens // 4) for turn in range(IN_A_TURN)]
                seed += IN_A_TURN
                begun = time.monotonic()
                for one in prompts:
                    servers[library].complete(one, 32)
                done[library] = IN_A_TURN * (args.tokens // 4 + 32) / (time.monotonic() - begun)
                wait_until_stored(store)
            # The first round is not counted.
            rates += [done] if number else []
            written = bytes_in(store)
            for path in store.rglob("*"):
                if path.is_file():
                    path.unlink()
        require(f"all was stored, {written} bytes", written > 0)
    require("nothing was loaded", "automatic cache: loaded" not in servers[True].said())
    ours, peer = (statistics.median(done[side] for done in rates) for side in (True, False))
    row("no-hits", ours, peer, statistics.median(done[True] / done[False] for done in rates), "tok/s", "higher")


def row(name, ours, peer, ratio, unit, better):
    print(json.dumps({"name": f"engines/llama-server/{name}", "ours": round(ours, 3), "peer": round(peer, 3), "ratio": round(ratio, 4),
                      "unit": unit, "better": better, "goal": GOALS[name]}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_server.add_arguments(parser)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=4000, help="of the prompt that is loaded")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", required=True, help="a folder on the file system to measure")
    args = parser.parse_args()
    for measured in (first_token, no_hits):
        with tempfile.TemporaryDirectory(dir=args.work) as folder:
            pathlib.Path(folder, "store").mkdir()
            try:
                measured(args, pathlib.Path(folder))
            except CheckFailed as error:
                print(f"not ok: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
