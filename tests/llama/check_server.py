#!/usr/bin/env python3
"""Check libkv_store_llama.so below an unmodified llama-server, over HTTP.

The steps of llama-server's own test of slots are done with files, and with the
library; the answers must be the same. Then one server saves, and another one
goes on with the same tokens as the first, which never stopped.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

import llama_server
from llama_server import CheckFailed, expect

PATIENCE_SECONDS = 10
# A text that both prompts begin with, then what differs; tokens of a model of bytes.
BEGINNING = [3 + byte for byte in b"What is the capital of "]
FRANCE, GERMANY = ([3 + byte for byte in word] for word in (b"France?", b"Germany?"))


class Server(llama_server.Server):
    """A llama-server with two slots, and a folder for its slots' files."""

    def __init__(self, args, folder, library=None, context=2048, model=None, options=()):
        self.folder, self.library = pathlib.Path(folder), library
        options = ["-np", "2", "-c", str(context), "-t", "1", "--cache-ram", "0", "--slot-save-path", f"{self.folder}/", *options]
        super().__init__(args, self.folder.with_suffix(".log"), model or args.model, options, [library] if library else [],
                         {"KV_STORE_LLAMA_URI": args.uri} if library else {})

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        return super().__enter__()

    def computed(self, slot, prompt, n_predict):
        """The tokens that follow, and how many of the prompt's were computed."""
        answer = self.complete(prompt, n_predict, id_slot=slot)
        return answer["tokens"], answer["timings"]["prompt_n"]

    def slot(self, slot, action, filename):
        """What a save or a restore answers, but for the times."""
        status, answer = self.ask(f"/slots/{slot}?action={action}", {"filename": filename})
        answer.pop("timings", None)
        return status, answer


def expect_no_files(*servers):
    """The library removes a slot's file when the server is done with it, a moment after the answer."""
    end = time.monotonic() + PATIENCE_SECONDS
    while any(os.listdir(server.folder) for server in servers) and time.monotonic() < end:
        time.sleep(0.05)
    expect("files of servers with the library", [os.listdir(server.folder) for server in servers], [[] for _ in servers])


def slot_steps(server):
    """Save slot 1, load it in slot 0, and see that each computes only what is new."""
    return [
        server.computed(1, BEGINNING + FRANCE, 16),
        server.slot(1, "save", "slot1.bin"),
        server.computed(1, BEGINNING + GERMANY, 16),
        server.slot(0, "restore", "slot1.bin"),
        server.computed(0, BEGINNING + GERMANY, 16),
        # Slot 1 is as it was.
        server.computed(1, BEGINNING + GERMANY, 16),
        server.slot(0, "restore", "absent.bin"),
        # A failed restore leaves a slot that works.
        server.computed(0, BEGINNING + FRANCE, 16),
        server.ask("/slots/0?action=erase", method="POST")[0],
        server.computed(0, BEGINNING + FRANCE, 16),
    ]


def check_slot_steps(args, folder):
    with Server(args, f"{folder}/files") as server:
        wanted = slot_steps(server)
        expect("a file of the plain server", os.listdir(server.folder), ["slot1.bin"])
    with Server(args, f"{folder}/store", args.lib) as server:
        got = slot_steps(server)
        expect_no_files(server)
        said = server.said()
    expect("steps", len(got), len(wanted))
    for number, (one, other) in enumerate(zip(got, wanted)):
        expect(f"the answer to step {number + 1}", one, other)
    # The restored slot, like the one that was saved, computes what differs and no more.
    expect("tokens that were computed", [got[2][1], got[4][1], got[5][1]], [len(GERMANY), len(GERMANY), 1])
    expect("what the library says of itself", said.count("are kept in"), 1)
    print("ok: the steps of llama-server's own test of slots are answered as with files")


def check_two_servers(args, folder):
    prompt = (BEGINNING + FRANCE) * 13
    with Server(args, f"{folder}/first", args.lib) as first, Server(args, f"{folder}/second", args.lib) as second:
        begun, _ = first.computed(1, prompt, 16)
        status, saved = first.slot(1, "save", "talk.bin")
        expect("the status of a save", status, 200)
        # The first has answered before all is stored.
        end = time.monotonic() + PATIENCE_SECONDS
        status, restored = second.slot(0, "restore", "talk.bin")
        while status == 400 and time.monotonic() < end:
            time.sleep(0.05)
            status, restored = second.slot(0, "restore", "talk.bin")
        expect("the status of a restore on another server", status, 200)
        expect("tokens that were restored", restored["n_restored"], saved["n_saved"])
        expect("bytes that were read", restored["n_read"], saved["n_written"])
        wanted, _ = first.computed(1, prompt + begun, 32)
        got, computed = second.computed(0, prompt + begun, 32)
        expect("the tokens of the second server", got, wanted)
        expect("tokens of the prompt that it computed", computed, 1)
        expect_no_files(first, second)
    print(f"ok: a second server restored {restored['n_restored']} tokens, computed {computed}, "
          f"and went on with the same 32 tokens")


def checkpoint_steps(server):
    """Two prompts are saved under one name. Then the second is restored, goes on, and branches below its end."""
    first, second, other = ([3 + (7 * at * at + salt) % 256 for at in range(900)] for salt in (1, 50, 99))
    answers = []
    for prompt in (first, second):
        answers.append(server.computed(1, prompt, 8))
        answers.append(server.slot(1, "save", "name.bin")[0])
    answers.append(server.slot(0, "restore", "name.bin")[0])
    answers.append(server.computed(0, second + other[:50], 8))
    answers.append(server.slot(0, "restore", "name.bin")[0])
    answers.append(server.computed(0, second[:800] + other[:50], 8))
    return answers


def check_checkpoints(args, folder, model):
    """What the server appends to a slot's file comes back with its state, and with no other."""
    options = ["-b", "256", "-ub", "256"]
    with Server(args, f"{folder}/plain", context=4096, model=model, options=options) as server:
        wanted = checkpoint_steps(server)
    with Server(args, f"{folder}/kept", args.lib, context=4096, model=model, options=options) as server:
        got = checkpoint_steps(server)
        expect_no_files(server)
    expect("answers, and tokens that were computed", got, wanted)
    print(f"ok: {pathlib.Path(model).name}: two saves under one name, a restore and a branch are answered as with files; "
          f"the branch computed {got[-1][1]} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_server.add_arguments(parser)
    parser.add_argument("--uri", required=True, help="an empty store that processes share")
    parser.add_argument("--model", required=True, help="a GGUF file that make_model.py made")
    parser.add_argument("--checkpoints", action="append", default=[], help="a GGUF file whose states cannot be shortened")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_slot_steps(args, folder)
            check_two_servers(args, folder)
            for number, model in enumerate(args.checkpoints):
                check_checkpoints(args, f"{folder}/{number}", model)
        except CheckFailed as error:
            print(f"not ok: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
