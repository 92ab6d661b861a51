#!/usr/bin/env python3
"""Check the automatic prefix cache below an unmodified llama-server.

Requests of many kinds go to servers that share a store. recorder.c writes down
what each server asked for, and what the library made of it. Three things must
hold of these records: each output that the server asked for is the one that the
library asked for, of the same sequence and position; every token below it was
computed or loaded, with no other token in its place; and plain libllama, which
runs the same batches again, has the same logits and states, bit for bit.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

START_SECONDS = 120
ANSWER_SECONDS = 600


class CheckFailed(Exception):
    """What was expected, and what came."""


def require(what, holds):
    if not holds:
        raise CheckFailed(what)


class Server:
    """A llama-server with the library between two recorders, or without any."""

    def __init__(self, args, name, folder, env=None, auto=True, record=True, options=()):
        self.args, self.folder, self.auto = args, pathlib.Path(folder), auto
        self.log, self.record = self.folder / f"{name}.log", self.folder / f"{name}.record"
        self.env, self.options, self.recorded = env or {}, options, record

    def __enter__(self):
        args, env = self.args, {}
        preload = [args.lib] if self.auto else []
        if self.recorded:
            preload = [args.front, *preload, args.back]
            env["KV_RECORD"] = self.inner(self.record)
        if self.auto:
            env |= {"KV_STORE_LLAMA_URI": args.uri, "KV_STORE_LLAMA_AUTO": "1"}
        env |= {"LD_PRELOAD": ":".join(preload), **self.env}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        line = [args.server, "-m", args.model, "--host", "127.0.0.1", "--port", str(self.port), "--no-webui",
                "-np", str(args.slots), "-c", str(args.context * args.slots), "-b", str(args.batch), "-ub", str(args.ubatch),
                "-t", str(args.threads), "-tb", str(args.threads), "--slots", *self.options]
        if args.chroot:
            line = ["chroot", args.chroot, *line]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ) | env)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.ask("/health")[0] == 200:
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise CheckFailed(f"the server does not start:\n{self.said()[-3000:]}")
            time.sleep(0.05)

    def inner(self, path):
        """A path as the server sees it."""
        root = self.args.chroot
        return "/" + str(path.relative_to(root)) if root else str(path)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def said(self):
        return self.log.read_text(errors="replace")

    def ask(self, path, body=None, timeout=ANSWER_SECONDS):
        """The status and the JSON of an answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(self, prompt, n_predict=8, timeout=ANSWER_SECONDS, **more):
        status, answer = self.ask("/completion", {
            "prompt": prompt, "n_predict": n_predict, "temperature": 0.0, "seed": 1, "cache_prompt": True,
            "return_tokens": True, "ignore_eos": True, **more}, timeout)
        require(f"the status of a completion is 200, not {status}: {answer}", status == 200)
        return answer


class Record:
    """What a server asked for (front), and what was run for it (back)."""

    def __init__(self, path, states):
        # Tokens by the hash of a state: of the processes before, too.
        self.states = states
        self.sides = {side: collections.defaultdict(list) for side in ("front", "back")}
        self.last = {"front": [], "back": []}
        self.counts = collections.Counter()
        self.pending = None
        for line in path.read_text().splitlines():
            side, what, *rest = line.split()
            getattr(self, what)(side, rest, line)

    def process(self, side, rest, line):
        status, count, *rows = map(int, rest)
        require(f"a batch was not followed: {line[:100]}", count >= 0)
        rows = [rows[at:at + 4] for at in range(0, 4 * count, 4)]
        self.counts[f"{side} tokens"] += count if status == 0 else 0
        if status:
            self.counts["refused batches"] += 1
            return
        self.last[side] = [(seq, pos) for _, seq, pos, _ in rows]
        sequences = self.sides[side]
        for token, seq, pos, _ in rows:
            require(f"{side}: position {pos} of sequence {seq} follows {len(sequences[seq])}", pos == len(sequences[seq]))
            sequences[seq].append(token)

    def logits(self, side, rest, line):
        index, found = int(rest[0]), rest[1]
        rows = self.last[side]
        require(f"{side} has no output {index}", -len(rows) <= index < len(rows))
        if side == "back":
            self.pending = (*rows[index], found)
            return
        # The inner function is asked first, and written first.
        require(f"nothing was asked for behind: {line}", self.pending is not None)
        seq, pos, inner = self.pending
        self.pending = None
        require(f"asked for {rows[index]}, got {seq, pos}", rows[index] == (seq, pos) and found == inner)
        front, back = self.sides["front"][seq][:pos + 1], self.sides["back"][seq][:pos + 1]
        require(f"sequence {seq} has other tokens below position {pos}", front == back)
        self.counts["outputs"] += 1

    def clear(self, side, _rest, _line):
        self.sides[side].clear()

    def rm(self, side, rest, line):
        seq, first, end, done = map(int, rest)
        if not done:
            return
        numbers = [seq] if seq >= 0 else list(self.sides[side])
        for number in numbers:
            tokens = self.sides[side][number]
            first_, end_ = max(first, 0), len(tokens) if end < 0 else end
            require(f"a hole: {line}", end_ >= len(tokens) or first_ >= len(tokens))
            del tokens[first_:]

    def cp(self, side, rest, line):
        source, target, first, end = map(int, rest)
        require(f"a part was copied: {line}", first <= 0 and end < 0)
        self.sides[side][target] = list(self.sides[side][source])

    def get(self, side, rest, _line):
        seq, flags, _bytes, found = rest
        self.states[flags, found] = list(self.sides[side][int(seq)])

    def set(self, side, rest, line):
        seq, flags, size, found, read = rest
        require(f"a state was refused: {line}", read == size)
        require(f"a state that nobody has written: {line}", (flags, found) in self.states)
        self.counts[f"{side} states"] += 1
        tokens = self.states[flags, found]
        if flags == "0":
            self.sides[side][int(seq)] = list(tokens)
        else:
            # A part: the other part is there. What is behind it is removed next.
            own = self.sides[side][int(seq)]
            require(f"a part of other tokens: {line}", own[:len(tokens)] == tokens)


class Prompts:
    """Prompts that begin as others do, of a tree of texts, in tokens."""

    def __init__(self, seed, vocabulary, longest):
        self.random = random.Random(seed)
        self.vocabulary, self.longest = vocabulary, longest
        self.trunks = [self.words(self.random.randint(longest // 4, longest // 2)) for _ in range(6)]
        self.talks = []

    def words(self, count):
        return [self.random.randrange(*self.vocabulary) for _ in range(count)]

    def next(self):
        """A prompt, and which condition it is of."""
        kind = self.random.choice(["new", "same", "branch", "cut", "turn", "short", "cancelled", "copies"])
        trunk = self.random.choice(self.trunks)
        if kind == "new":
            return kind, self.words(self.random.randint(300, self.longest // 2))
        if kind == "same":
            return kind, list(trunk)
        if kind == "branch":
            return kind, trunk + self.words(self.random.randint(1, 200))
        if kind == "cut":
            return kind, trunk[:self.random.randint(1, len(trunk))] + self.words(self.random.randint(0, 40))
        if kind == "turn" and self.talks:
            return kind, self.random.choice(self.talks) + self.words(self.random.randint(1, 80))
        if kind == "short":
            return kind, self.words(self.random.randint(1, 40))
        if kind == "cancelled":
            return kind, trunk + self.words(self.random.randint(1, 300))
        return kind, trunk + self.words(20)

    def said(self, prompt, answer):
        if len(prompt) + len(answer) < self.longest - 400:
            self.talks = [*self.talks, prompt + answer][-12:]


def run_requests(server, prompts, count, slots):
    """Mixed requests, as many at once as there are slots. Answers how many there were of each condition."""
    counts = collections.Counter()

    def one(job):
        kind, prompt = job
        if kind == "cancelled":
            try:
                server.complete(prompt, 400, timeout=0.15)
            except (OSError, TimeoutError):
                pass
            return kind, prompt, []
        more = {"n": 2} if kind == "copies" else {}
        n_predict = server.args.predict
        answer = server.complete(prompt, n_predict, **more)
        return kind, prompt, answer["tokens"] if isinstance(answer, dict) else []

    with concurrent.futures.ThreadPoolExecutor(slots + 1) as pool:
        running = set()
        for _ in range(count):
            if len(running) > slots:
                done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for job in done:
                    kind, prompt, answer = job.result()
                    counts[kind] += 1
                    prompts.said(prompt, answer)
            running.add(pool.submit(one, prompts.next()))
        for job in running:
            counts[job.result()[0]] += 1
    return counts


def damage(args, number):
    """Change a byte in a third of the store's files, and remove some."""
    chosen = random.Random(args.seed * 1000 + number)
    for path in sorted(pathlib.Path(args.damage).rglob("*")):
        if not path.is_file():
            continue
        what = chosen.random()
        if what < 0.25:
            content = bytearray(path.read_bytes())
            if content:
                content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
                path.write_bytes(content)
        elif what < 0.33:
            path.unlink()


def loads(log):
    """Tokens that were loaded in place of computed."""
    return sum(int(number) for number in re.findall(r"automatic cache: loaded \d+ tokens of sequence \d+, (\d+) of them not computed", log))


def check_mixed(args, folder):
    prompts = Prompts(args.seed, args.vocabulary, args.context - 500)
    records, states, counts, total = [], {}, collections.Counter(), collections.Counter()
    per_server = max(1, args.requests // args.servers)
    for number in range(args.servers):
        options = args.option if number % 2 == 0 else [*args.option, "--cache-ram", "0"]
        with Server(args, f"mixed-{number}", folder, options=options) as server:
            counts += run_requests(server, prompts, per_server, args.slots)
            if args.kill and number + 1 < args.servers:
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
        if args.damage:
            damage(args, number)
        said = server.said()
        require(f"the cache stays on:\n{said[-2000:]}", "cache: off" not in said and "panic" not in said)
        record = Record(server.record, states)
        total += record.counts
        total["loaded"] += loads(said)
        records.append(server.record)
    print(f"seed {args.seed}: {dict(counts)}; {dict(total)}")
    require("states were loaded", args.servers == 1 or total["back states"] > 0)
    return records


def replay(args, records, unified):
    line = [args.replay, args.model, str(args.context * args.slots), str(args.batch), str(args.ubatch), str(args.slots), str(int(unified)),
            str(args.threads), *[Server.inner(argparse.Namespace(args=args), path) for path in records]]
    if args.chroot:
        line = ["chroot", args.chroot, *line]
    done = subprocess.run(line, capture_output=True, text=True, timeout=3000)
    require(f"the replay: {done.stderr[-500:]}", done.returncode == 0)
    print("ok: plain libllama has the same, bit for bit:", done.stdout.strip())


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, what in [("server", "the binary llama-server"), ("lib", "libkv_store_llama.so"), ("front", "recorder.c, built as front"),
                       ("back", "recorder.c, built as back"), ("replay", "replay.c, built"), ("uri", "a store, empty"), ("model", "a GGUF file")]:
        parser.add_argument(f"--{name}", required=True, help=what)
    parser.add_argument("--chroot", help="a root that the server runs in; all paths are those in it")
    parser.add_argument("--work", required=True, help="a folder for logs and records, in the root")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--servers", type=int, default=4, help="how many servers, one after another")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048, help="positions of a slot")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--ubatch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--predict", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, nargs=2, default=[3, 259])
    parser.add_argument("--kill", action="store_true", help="end servers with SIGKILL")
    parser.add_argument("--damage", help="the folder that the store lies in: a third of its files are changed or removed after each server")
    parser.add_argument("--option", action="append", default=[], help="a further option of the server")
    return parser.parse_args()


def main():
    args = parse_arguments()
    folder = pathlib.Path(args.work)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        records = check_mixed(args, folder)
        replay(args, records, unified="--kv-unified" in args.option)
    except CheckFailed as error:
        print(f"not ok: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
