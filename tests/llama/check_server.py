#!/usr/bin/env python3
"""Check libkv_store_llama.so below an unmodified llama-server, over HTTP.

The steps of llama-server's own test of slots are done with files, and with the
library; the answers must be the same. Then one server saves, and another one
goes on with the same tokens as the first, which never stopped.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

START_SECONDS = 120
ANSWER_SECONDS = 300
# A text that both prompts begin with, then what differs; tokens of a model of bytes.
BEGINNING = [3 + byte for byte in b"What is the capital of "]
FRANCE, GERMANY = ([3 + byte for byte in word] for word in (b"France?", b"Germany?"))


class CheckFailed(Exception):
    """What was expected, and what came."""


def expect(what, got, wanted):
    if got != wanted:
        raise CheckFailed(f"{what}:\n{got}\nexpected\n{wanted}")


class Server:
    """A llama-server with two slots, and a folder for its slots' files."""

    def __init__(self, args, folder, library=None, context=2048):
        self.args = args
        self.folder = pathlib.Path(folder)
        self.library = library
        self.context = context

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        env = dict(os.environ)
        if self.library:
            env["LD_PRELOAD"] = self.library
            env["KV_STORE_LLAMA_URI"] = self.args.uri
        # A port that is free now; another program can take it first, then the server says so and ends.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = self.folder.with_suffix(".log")
        line = [self.args.server, "-m", self.args.model, "--host", "127.0.0.1", "--port", str(self.port),
                "-np", "2", "-c", str(self.context), "-t", "1", "--cache-ram", "0", "--slot-save-path", f"{self.folder}/"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise CheckFailed(f"the server does not start:\n{self.said()}")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=ANSWER_SECONDS)

    def said(self):
        return self.log.read_text(errors="replace")

    def ask(self, method, path, body=None):
        """The status and the JSON of an answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        data = None if body is None else json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data, timeout=ANSWER_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(self, slot, prompt, n_predict):
        """The tokens that follow, and how many of the prompt's were computed."""
        status, answer = self.ask("POST", "/completion", {
            "prompt": prompt, "id_slot": slot, "n_predict": n_predict, "temperature": 0.0,
            "cache_prompt": True, "return_tokens": True, "ignore_eos": True})
        expect("the status of a completion", status, 200)
        return answer["tokens"], answer["timings"]["prompt_n"]

    def slot(self, slot, action, filename):
        """What a save or a restore answers, but for the times."""
        status, answer = self.ask("POST", f"/slots/{slot}?action={action}", {"filename": filename})
        answer.pop("timings", None)
        return status, answer


def slot_steps(server):
    """Save slot 1, load it in slot 0, and see that each computes only what is new."""
    return [
        server.complete(1, BEGINNING + FRANCE, 16),
        server.slot(1, "save", "slot1.bin"),
        server.complete(1, BEGINNING + GERMANY, 16),
        server.slot(0, "restore", "slot1.bin"),
        server.complete(0, BEGINNING + GERMANY, 16),
        # Slot 1 is as it was.
        server.complete(1, BEGINNING + GERMANY, 16),
        server.slot(0, "restore", "absent.bin"),
        # A failed restore leaves a slot that works.
        server.complete(0, BEGINNING + FRANCE, 16),
        server.ask("POST", "/slots/0?action=erase")[0],
        server.complete(0, BEGINNING + FRANCE, 16),
    ]


def check_slot_steps(args, folder):
    with Server(args, f"{folder}/files") as server:
        wanted = slot_steps(server)
        expect("a file of the plain server", os.listdir(server.folder), ["slot1.bin"])
    with Server(args, f"{folder}/store", args.lib) as server:
        got = slot_steps(server)
        expect("files of the server with the library", os.listdir(server.folder), [])
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
        begun, _ = first.complete(1, prompt, 16)
        status, saved = first.slot(1, "save", "talk.bin")
        expect("the status of a save", status, 200)
        status, restored = second.slot(0, "restore", "talk.bin")
        expect("the status of a restore on another server", status, 200)
        expect("tokens that were restored", restored["n_restored"], saved["n_saved"])
        expect("bytes that were read", restored["n_read"], saved["n_written"])
        wanted, _ = first.complete(1, prompt + begun, 32)
        got, computed = second.complete(0, prompt + begun, 32)
        expect("the tokens of the second server", got, wanted)
        expect("tokens of the prompt that it computed", computed, 1)
        expect("files", os.listdir(first.folder) + os.listdir(second.folder), [])
    print(f"ok: a second server restored {restored['n_restored']} tokens, computed {computed}, "
          f"and went on with the same 32 tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="the binary llama-server")
    parser.add_argument("--lib", required=True, help="libkv_store_llama.so")
    parser.add_argument("--uri", required=True, help="an empty store that processes share")
    parser.add_argument("--model", required=True, help="a GGUF file that make_model.py made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_slot_steps(args, folder)
            check_two_servers(args, folder)
        except CheckFailed as error:
            print(f"not ok: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
