#!/usr/bin/env python3
"""Time slots of llama-server: with libkv_store_llama.so, in turns with its own files.

The times are those that the servers answer (save_ms, restore_ms). Prints a row of
JSON for each, as the other benchmarks do. The store is local-fs, in a folder of
its own; each save begins with nothing stored, that of a conversation which has
grown by a tenth with the shorter one. The library answers a save when the state is
copied, and stores it then: the next step waits for that, and `stored` is how long
it took from the beginning of the save.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import llama_server
from check_server import Server
from llama_server import CheckFailed, expect

# Each line has another number, so that no two parts of the state are alike by accident.
LINE = "{}: The quick brown fox jumps over the lazy dog.\n"
GOALS = {"save": 0.8, "stored": None, "restore": 0.7, "save-grown": 1.4}
PATIENCE_SECONDS = 60


class Timed(Server):
    """A server, and where its slots lie: its own folder, or the store."""

    def __init__(self, args, folder, library, stored):
        super().__init__(args, folder, library, context=4 * args.tokens)
        self.stored = pathlib.Path(stored)
        self.saves = 0

    def forget(self):
        for path in self.stored.rglob("*"):
            if path.is_file():
                path.unlink()

    def bytes(self):
        return sum(path.stat().st_size for path in self.stored.rglob("*") if path.is_file())

    def time(self, slot, action, filename):
        # What others have written and not synced would be written meanwhile, at the cost of this step.
        os.sync()
        status, answer = self.ask(f"/slots/{slot}?action={action}", {"filename": filename})
        expect(f"the status of {action}", (status, answer.get("error")), (200, None))
        return answer["timings"][f"{action}_ms"]

    def save(self, slot, filename):
        """Milliseconds until it is answered, and until it is stored."""
        answered = self.time(slot, "save", filename)
        if not self.library:
            return answered, answered
        self.saves += 1
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            stored = re.findall(r"saved .*, ([0-9.]+) ms", self.said())
            # The library keeps the slot's file until the server has appended to it, or has had a second for that.
            if len(stored) == self.saves and not os.listdir(self.folder):
                return answered, float(stored[-1])
            expect(f"a state that is not stored after {PATIENCE_SECONDS} s", time.monotonic() < end, True)
            time.sleep(0.02)


def prompt(tokens):
    """The first tokens of a text; a token of the model is a byte."""
    text = "".join(LINE.format(number) for number in range(tokens))
    return [3 + byte for byte in text.encode()[:tokens]]


def one_round(server):
    """Milliseconds of each step, the bytes that the last save added, and all that are there then."""
    server.forget()
    times = dict(zip(("save", "stored"), server.save(1, "long.bin")))
    times["restore"] = server.time(1, "restore", "long.bin")
    server.forget()
    server.save(0, "talk.bin")
    before = server.bytes()
    times["save-grown"], _ = server.save(1, "talk.bin")
    return times, server.bytes() - before, server.bytes()


def run(args, folder):
    store = os.path.join(folder, "store")
    os.makedirs(store)
    args.uri = f"wasm://local-fs://{store}"
    plain = os.path.join(folder, "plain")
    servers = [Timed(args, os.path.join(folder, "ours"), args.lib, store), Timed(args, plain, None, plain)]
    with servers[0], servers[1]:
        for server in servers:
            server.computed(0, prompt(int(args.tokens / 1.1)), 1)
            server.computed(1, prompt(args.tokens), 1)
        rounds = []
        for number in range(args.rounds + 1):
            order = servers if number % 2 else servers[::-1]
            done = {server.library is not None: one_round(server) for server in order}
            # The first round is not counted.
            if number > 0:
                rounds.append(done)
        # What was restored is what was computed: both go on with the same tokens.
        tails = [server.computed(1, prompt(args.tokens), 8)[0] for server in servers]
        expect("the tokens after a restore", tails[0], tails[1])
    for step, goal in GOALS.items():
        ours, peer = (statistics.median(done[side][0][step] for done in rounds) for side in (True, False))
        row(f"engines/llama-server/{step}", ours, peer, "ms", goal)
    written = statistics.median(done[True][1] for done in rounds)
    whole = statistics.median(done[False][2] for done in rounds)
    row("engines/llama-server/grown-bytes", written / 1e6, whole / 1e6, "MB", None)


def row(name, ours, peer, unit, goal):
    print(json.dumps({"name": name, "ours": round(ours, 3), "peer": round(peer, 3), "ratio": round(peer / ours, 4),
                      "unit": unit, "better": "lower", "goal": goal}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_server.add_arguments(parser)
    parser.add_argument("--model", required=True, help="a GGUF file that make_model.py made")
    parser.add_argument("--tokens", type=int, default=2560, help="of the longer conversation")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--work", required=True, help="a folder on the file system to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        try:
            run(args, folder)
        except CheckFailed as error:
            print(f"not ok: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
