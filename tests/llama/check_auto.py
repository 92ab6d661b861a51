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
import pathlib
import random
import re
import shutil
import subprocess
import sys

import llama_server
from llama_server import CheckFailed, require
from record import Record


class Server(llama_server.Server):
    """A llama-server with the library between two recorders."""

    def __init__(self, args, name, folder, options):
        self.record = folder / f"{name}.record"
        env = {"KV_RECORD": str(self.record), "KV_STORE_LLAMA_URI": args.uri, "KV_STORE_LLAMA_AUTO": "1"}
        line = ["--no-webui", "-np", str(args.slots), "-c", str(args.context * args.slots), "-b", str(args.batch), "-ub", str(args.ubatch),
                "-t", str(args.threads), "-tb", str(args.threads), "--slots", "-fit", "off", *options]
        super().__init__(args, folder / f"{name}.log", args.model, line, [args.front, args.lib, args.back], env)


class Prompts:
    """Prompts that begin as others do, of a tree of texts, in tokens."""

    def __init__(self, seed, vocabulary, context, text=()):
        self.random = random.Random(seed)
        # Tokens of a text that prompts are pieces of, or else the range that random ones are of.
        self.text, self.vocabulary, self.context = text, vocabulary, context
        self.longest = longest = context - 200
        self.trunks = [self.words(self.random.randint(longest // 4, longest // 2)) for _ in range(6)]
        self.talks = []

    def words(self, count):
        if self.text:
            first = self.random.randrange(len(self.text) - count)
            return self.text[first:first + count]
        return [self.random.randrange(*self.vocabulary) for _ in range(count)]

    def next(self):
        """A prompt, and which condition it is of."""
        kind = self.random.choice(["new", "same", "branch", "cut", "turn", "short", "cancelled", "copies", "long"])
        trunk = self.random.choice(self.trunks)
        if kind == "new":
            return kind, self.words(self.random.randint(min(300, self.longest // 2), self.longest // 2))
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
        if kind == "long":
            return kind, trunk + self.words(self.context - 20 - len(trunk))
        return kind, trunk + self.words(20)

    def said(self, prompt, answer):
        if len(prompt) + len(answer) < self.longest - 400:
            self.talks = [*self.talks, prompt + answer][-12:]


def run_requests(server, prompts, count):
    """Mixed requests, one more at once than there are slots. Answers how many there were of each kind."""
    counts, slots = collections.Counter(), server.args.slots

    def one(job):
        kind, prompt = job
        if kind == "cancelled":
            try:
                server.complete(prompt, 400, timeout=0.15)
            except OSError:
                pass
            return kind, prompt, []
        more = {"n": 2} if kind == "copies" else {}
        # With --context-shift this goes over the end of the context; else the answer ends there.
        n_predict = 40 if kind == "long" else server.args.predict
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


def conditions(args):
    """What the servers run with, in turns."""
    draft = ["--spec-type", "draft-simple", "-md", args.draft, "--no-spec-draft-backend-sampling"] if args.draft else []
    return {"as it is": [], "--cache-ram 0": ["--cache-ram", "0"], "--context-shift": ["--context-shift"], "speculative": draft}


def tokens_of_text(args, folder):
    """The text in the model's tokens."""
    if not args.text:
        return ()
    with llama_server.Server(args, folder / "tokens.log", args.model, ["--no-webui", "-c", "256", "-fit", "off"]) as server:
        status, answer = server.ask("/tokenize", {"content": pathlib.Path(args.text).read_text()})
    require(f"the status of /tokenize is 200, not {status}", status == 200)
    return answer["tokens"]


def check_mixed(args, folder):
    prompts = Prompts(args.seed, args.vocabulary, args.context, tokens_of_text(args, folder))
    records, states, computed, kinds, total = [], {}, set(), collections.Counter(), collections.Counter()
    for number in range(args.servers):
        name, options = list(conditions(args).items())[number % len(conditions(args))]
        with Server(args, f"mixed-{number}", folder, [*args.option, *options]) as server:
            done = run_requests(server, prompts, max(1, args.requests // args.servers))
            if args.kill:
                server.kill()
        if args.damage:
            damage(args, number)
        said = server.said()
        require(f"the cache stays on:\n{said[-2000:]}", "cache: off" not in said and "panic" not in said)
        record = Record(server.record, states, computed)
        kinds += done
        kinds[name] += done.total()
        total += record.counts
        records.append(server.record)
    saved = total["front tokens"] - total["back tokens"]
    share = saved / max(1, total["reusable"])
    print(f"seed {args.seed}: {dict(kinds)}; {dict(total)}; not computed {saved} of {total['reusable']} tokens that could be reused: {share:.2f}",
          flush=True)
    # Damage may leave nothing to load.
    require("states were loaded", args.damage or args.servers == 1 or total["back states"] > total["front states"])
    require(f"{args.share} of what could be reused is not computed, not {share:.3f}", share >= args.share)
    return records


def check_swap(args, folder):
    """Models of one shape take turns under one file name. Each answers as without the library, and loads only what it has computed."""
    prompts = Prompts(args.seed, args.vocabulary, args.context)
    asked = [prompts.next()[1] for _ in range(args.requests // 10)]
    model = folder / "model.gguf"
    options = ["--no-webui", "-np", "1", "-c", str(args.context), "-t", "1", "--cache-ram", "0", "-fit", "off"]
    env = {"KV_STORE_LLAMA_URI": args.uri, "KV_STORE_LLAMA_AUTO": "1"}

    def answers(name, swapped, preload):
        shutil.copyfile(swapped, model)
        with llama_server.Server(args, folder / f"{name}.log", model, options, preload, env) as server:
            return [server.complete(prompt, 4)["tokens"] for prompt in asked], loads(server.said())

    for number, swapped in enumerate([args.model, args.swap]):
        plain, _ = answers(f"plain-{number}", swapped, [])
        got, loaded = answers(f"swapped-{number}", swapped, [args.lib])
        wrong = sum(one != other for one, other in zip(got, plain))
        require(f"{wrong} of {len(asked)} answers are others than without the library", wrong == 0)
        again, loaded_again = answers(f"again-{number}", swapped, [args.lib])
        require("a model finds its own states", loaded_again > loaded and again == plain)
    print(f"ok: two models under one name: {len(asked)} prompts each, 0 wrong answers", flush=True)


def check_same(args, folder):
    """A prompt that is loaded is continued as one that was computed, and as by the server's own prefix cache: probabilities are the same bit for
    bit, because the last token of a prompt is computed alone each time."""
    prompts = Prompts(args.seed, args.vocabulary, args.context, tokens_of_text(args, folder))
    asked = [prompts.words(prompts.random.randint(100, args.context - 100)) for _ in range(args.requests)]
    options = ["--no-webui", "-np", "1", "-c", str(args.context), "-t", str(args.threads), "-tb", str(args.threads), "--cache-ram", "0", "-fit", "off"]
    env = {"KV_STORE_LLAMA_URI": args.uri, "KV_STORE_LLAMA_AUTO": "1"}

    def answer(server, prompt):
        answer = server.complete(prompt, args.predict, n_probs=8)
        return answer["tokens"], answer["completion_probabilities"]

    with llama_server.Server(args, folder / "computes.log", args.model, options, [args.lib], env) as server:
        computed, own = zip(*[(answer(server, prompt), answer(server, prompt)) for prompt in asked])
        require("prompts are computed", loads(server.said()) == 0)
    with llama_server.Server(args, folder / "loads.log", args.model, options, [args.lib], env) as server:
        loaded = [answer(server, prompt) for prompt in asked]
        require("prompts are loaded, all but the last token", loads(server.said()) == sum(len(prompt) - 1 for prompt in asked))
    for name, other in [("computed", computed), ("of the server's own prefix cache", own)]:
        wrong = sum(one != two for one, two in zip(loaded, other))
        require(f"{wrong} of {len(asked)} loaded prompts have other probabilities than {name}", wrong == 0)
    print(f"ok: seed {args.seed}: {len(asked)} prompts, the same probabilities computed, by the server's own prefix cache, and loaded", flush=True)


def replay(args, records):
    line, folder = [args.replay, *records], None
    if args.root:
        line, folder = llama_server.loaded_from(args.root, *line)
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder)
    require(f"the replay: {done.stderr[-500:]}", done.returncode == 0)
    print("ok: plain libllama has the same, bit for bit:", done.stdout.strip(), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_server.add_arguments(parser)
    for name, what in [("front", "recorder.c, built as front"), ("back", "recorder.c, built as back"), ("replay", "replay.c, built"),
                       ("uri", "a store, empty"), ("model", "a GGUF file"), ("work", "a folder for logs and records")]:
        parser.add_argument(f"--{name}", required=True, help=what)
    parser.add_argument("--draft", help="a GGUF file that drafts for the model")
    parser.add_argument("--swap", help="another GGUF file of the model's shape: only check that the two never meet under one name")
    parser.add_argument("--text", help="a file that prompts are pieces of, in place of random tokens")
    parser.add_argument("--same", action="store_true", help="only check that loaded prompts are continued as computed ones")
    parser.add_argument("--share", type=float, default=0.0, help="of what could be reused, the least that must not be computed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--servers", type=int, default=4, help="how many servers, one after another")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024, help="positions of a slot")
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
        if args.swap:
            check_swap(args, folder)
        elif args.same:
            check_same(args, folder)
        else:
            replay(args, check_mixed(args, folder))
    except CheckFailed as error:
        print(f"not ok: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
