#!/usr/bin/env python3
"""Check libkv_store_llama.so below a program that keeps slots in llama.cpp's own files.

Each run of llama-slots is done twice: with files, and with the library in place
of llama.cpp's functions. What it prints must be the same to the last byte:
return values, numbers of tokens, and the tokens that it goes on with.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

NO_LIBRARY = "has no shared libllama"
CHUNK_TOKENS = 64


class CheckFailed(Exception):
    """What was expected, and what came."""


def expect(what, got, wanted):
    if got != wanted:
        raise CheckFailed(f"{what}:\n{got}\nexpected\n{wanted}")


def expect_in(what, part, text):
    if part not in text:
        raise CheckFailed(f"{what}: {part!r} is not in\n{text}")


class Slots:
    """llama-slots with the files of one folder."""

    def __init__(self, args, folder, preload=True):
        self.args = args
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.preload = preload

    def file(self, name):
        return str(self.folder / name)

    def run(self, *steps, options=(), model=None, program=None, **environment):
        """Standard output and standard error of a fresh process. In a step, @NAME is a file."""
        env = dict(os.environ)
        if self.preload:
            env["KV_STORE_LLAMA_URI"] = self.args.uri
            if program is None:
                env["LD_PRELOAD"] = self.args.lib
        env.update(environment)
        steps = [step.replace("@", f"{self.folder}/") for step in steps]
        line = [program or self.args.program, *options, model or self.args.model, *steps]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=env)
        if done.returncode != 0:
            raise CheckFailed(f"{line} ended with {done.returncode}: {done.stderr}")
        return done.stdout, done.stderr


def saved(log, name):
    """Chunks of a state, and how many were new, as the library says."""
    found = re.search(rf"saved {re.escape(name)}: .* in (\d+) chunks, (\d+) of them new", log)
    if not found:
        raise CheckFailed(f"the library does not say that it saved {name}:\n{log}")
    return int(found[1]), int(found[2])


def check_tokens(files, store):
    """A sequence that is restored goes on with the tokens of one that never stopped."""
    straight, _ = files.run("prompt:0:600", "generate:0:8", "generate:0:32")
    first = ["prompt:0:600", "generate:0:8", "save:0:@talk.bin", "generate:0:32"]
    second = ["restore:1:@talk.bin", "generate:1:32", "prompt:0:80", "generate:0:4"]
    wanted = [files.run(*steps)[0] for steps in (first, second)]
    got = [store.run(*steps) for steps in (first, second)]
    expect("a program that saves", got[0][0], wanted[0])
    expect("a program that restores", got[1][0], wanted[1])
    tail = straight.splitlines()[1].split(":")[1]
    expect("the tokens after a restore", got[1][0].splitlines()[1].split(":")[1], tail)
    expect("files that were made", os.listdir(store.folder), [])
    expect_in("the first line", f"libllama.so", got[0][1].splitlines()[0])
    expect_in("the first line", "are kept in", got[0][1].splitlines()[0])
    chunks, new = saved(got[0][1], "talk.bin")
    expect("new chunks of the first state", new, chunks)
    print(f"ok: 608 tokens in {chunks} chunks; another process goes on with the same 32 tokens")


def check_failures(files, store):
    """Return values and sequences after failures are those of llama.cpp's own functions."""
    steps = ["prompt:0:100", "restore:0:@absent", "generate:0:4", "room:0:5:@talk.bin", "generate:0:4"]
    wanted, got = files.run(*steps)[0], store.run(*steps)
    expect("restores that fail", got[0], wanted)
    expect_in("the reason", "no state of this model under this name", got[1])
    expect_in("the reason", "room for 5", got[1])
    print("ok: what is absent, or has no room, is answered as llama.cpp answers it, and the sequence goes on")


def check_sharing(store):
    """A longer conversation, and another one with the same beginning, share chunks."""
    _, log = store.run("prompt:0:900", "save:0:@longer.bin")
    chunks, new = saved(log, "longer.bin")
    # All layers of the small model fit in one chunk of a run. 600 tokens of the first state, the last of them computed
    # in a smaller batch.
    expect("chunks of 900 tokens", chunks, -(-899 // CHUNK_TOKENS))
    expect("chunks that a longer conversation shares", chunks - new >= 512 // CHUNK_TOKENS, True)
    _, log = store.run("other:0:600:900", "save:0:@other.bin")
    others, new_of_other = saved(log, "other.bin")
    expect("chunks that another conversation shares", others - new_of_other >= 512 // CHUNK_TOKENS, True)
    expect("it has chunks of its own", new_of_other >= (900 - 600) // CHUNK_TOKENS, True)
    _, log = store.run("prompt:0:900", "save:0:@longer.bin")
    expect("new chunks of a state that is there", saved(log, "longer.bin")[1], 0)
    print(f"ok: a conversation grown from 608 to 900 tokens shares {chunks - new} of {chunks} chunks, "
          f"another one with the same 600 tokens at its beginning {others - new_of_other}")


def check_paths(files, store):
    steps = ["prompt:0:100", "save:0:@left.bin", "restore:1:@left.bin"]
    got, _ = store.run(*steps, KV_STORE_LLAMA_PATHS="/nowhere")
    expect("a path that is left out", got, files.run(*steps)[0])
    expect("its file", os.listdir(store.folder), ["left.bin"])
    os.remove(store.file("left.bin"))
    store.run(*steps, KV_STORE_LLAMA_PATHS=f"/nowhere:{store.folder}")
    expect("files that were made", os.listdir(store.folder), [])
    got, log = store.run(*steps, KV_STORE_LLAMA_URI="")
    expect("without a store", (got, log), (files.run(*steps)[0], ""))
    os.remove(store.file("left.bin"))
    print("ok: what KV_STORE_LLAMA_PATHS leaves out stays a file; without KV_STORE_LLAMA_URI nothing changes")


def check_models(args, store, folder):
    """Two models of one shape never meet, and a model that is not known is refused."""
    # The numbers of its file's name: the shape, and the seed.
    *shape, seed = re.search(r"llama-([\d-]+)\.gguf$", args.model)[1].split("-")
    other = os.path.join(folder, "other.gguf")
    make = pathlib.Path(__file__).with_name("make_model.py")
    subprocess.run([sys.executable, make, other, *shape, "--seed", str(int(seed) + 1)], check=True)
    absent = "no state of this model under this name"
    got, log = store.run("restore:0:@talk.bin", model=other)
    expect_in("a restore by another model", "asked 0, 0 tokens; 0 bytes", got)
    expect_in("its reason", absent, log)
    got, log = store.run("restore:0:@talk.bin", options=["--no-mmap"])
    expect_in("a restore without a mapping", "asked 0, 0 tokens; 0 bytes", got)
    expect_in("its reason", "name the model with KV_STORE_LLAMA_MODEL", log)
    steps = ["prompt:0:200", "save:0:@named.bin", "generate:0:8"]
    wanted, log = store.run(*steps, options=["--no-mmap"], KV_STORE_LLAMA_MODEL="tiny-7")
    saved(log, "named.bin")
    got, _ = store.run("restore:0:@named.bin", "generate:0:8", options=["--no-mmap"], KV_STORE_LLAMA_MODEL="tiny-7")
    expect("the tokens of a named model", got.splitlines()[-1], wanted.splitlines()[-1])
    _, log = store.run("restore:0:@named.bin", KV_STORE_LLAMA_MODEL="tiny-8")
    expect_in("a restore under another name", absent, log)
    got, log = store.run("restore:0:@talk.bin", options=["--adapter"])
    expect_in("a restore with a control vector", "asked 0, 0 tokens; 0 bytes", got)
    expect_in("its reason", "name model and adapters with KV_STORE_LLAMA_MODEL", log)
    _, log = store.run("prompt:0:100", "save:0:@adapted.bin", options=["--adapter"], KV_STORE_LLAMA_MODEL="tiny-7+zeros")
    saved(log, "adapted.bin")
    os.remove(other)
    print("ok: another model of the same shape, and one that is not known, get nothing; a named one does")


def check_layouts(files, store):
    """V that is transposed is cut by its content."""
    first = ["prompt:0:500", "save:0:@transposed.bin", "generate:0:8"]
    second = ["restore:1:@transposed.bin", "generate:1:8"]
    for steps in (first, second):
        wanted = files.run(*steps, options=["--no-flash"])[0]
        got, log = store.run(*steps, options=["--no-flash"])
        expect("without flash attention", got, wanted)
    expect_in("a state of the other kind", "not loaded", store.run("restore:1:@transposed.bin")[1])
    print("ok: a state with V transposed comes back")


def check_linked(files, store, linked):
    steps = ["prompt:0:300", "save:0:@linked.bin", "restore:1:@linked.bin", "generate:1:8"]
    got, log = store.run(*steps, program=linked)
    expect("a program that is linked to the library", got, files.run(*steps)[0])
    saved(log, "linked.bin")
    print("ok: linked before libllama it does the same")


def check_api(args, files, store):
    steps = ["prompt:0:300", "api-save:0:by-api", "api-restore:1:by-api", "generate:1:8"]
    as_file = [step.replace("api-", "").replace("by-api", "@by-api") for step in steps]
    got, _ = store.run(*steps, options=["--api", args.lib, args.uri, "-"], LD_PRELOAD="", KV_STORE_LLAMA_URI="")
    expect("the functions of kv_store_llama.h", got, files.run(*as_file)[0])
    got, _ = store.run("restore:0:@by-api", "generate:0:8")
    expect("the same state through the preloaded library", got.splitlines()[-1].split(":")[1],
           files.run(*as_file)[0].splitlines()[-1].split(":")[1])
    got, _ = store.run("api-restore:0:absent", options=["--api", args.lib, args.uri, "-"], LD_PRELOAD="")
    expect_in("last_error", "error: no state of this model under this name", got)
    print("ok: kv_store_llama.h saves and loads the same states")


def check_without_libllama(store):
    env = dict(os.environ, LD_PRELOAD=store.args.lib, KV_STORE_LLAMA_URI=store.args.uri)
    done = subprocess.run(["/bin/true"], capture_output=True, text=True, env=env, timeout=60)
    expect("lines of a program without libllama", len(done.stderr.splitlines()), 1)
    expect_in("its line", NO_LIBRARY, done.stderr)
    print("ok: a program without a shared libllama is told so, in one line")


def check_damage(args, files, store):
    """A damaged state is refused, the sequence is empty as after a file that was cut short, and a save of who has seen that mends it."""
    save = ["prompt:0:300", "save:0:@damaged.bin"]
    files.run(*save)
    store.run(*save)
    whole = pathlib.Path(files.file("damaged.bin")).read_bytes()
    pathlib.Path(files.file("damaged.bin")).write_bytes(whole[:-100])
    restore = ["prompt:0:50", "restore:0:@damaged.bin"]
    wanted, _ = files.run(*restore)
    chunks = [path for path in pathlib.Path(args.dir, "chunks").rglob("*") if path.is_file()]
    for path in chunks:
        bytes_ = bytearray(path.read_bytes())
        bytes_[len(bytes_) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(bytes_)
    got, log = store.run(*restore)
    expect_in("a damaged state", "a chunk is missing, or damaged", log)
    expect("a restore of a damaged state", got.splitlines()[0].split("; ")[1], wanted.splitlines()[0].split("; ")[1])
    # Who has found a chunk damaged stores it again; others believe that it is there until they have found it damaged too.
    store.run("restore:0:@damaged.bin", *save)
    got, _ = store.run("restore:0:@damaged.bin", "generate:0:8")
    pathlib.Path(files.file("damaged.bin")).write_bytes(whole)
    expect("after it was saved again", got, files.run("restore:0:@damaged.bin", "generate:0:8")[0])
    print("ok: a damaged state is refused as a file that was cut short is, and saving it again mends it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="the binary llama-slots")
    parser.add_argument("--linked", required=True, help="the same, linked to the library")
    parser.add_argument("--lib", required=True, help="libkv_store_llama.so")
    parser.add_argument("--uri", required=True, help="an empty store")
    parser.add_argument("--model", required=True, help="a GGUF file that make_model.py made")
    parser.add_argument("--dir", help="where the store keeps its files: damage them, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = Slots(args, os.path.join(folder, "files"), preload=False)
        store = Slots(args, os.path.join(folder, "store"))
        try:
            check_tokens(files, store)
            check_failures(files, store)
            if args.dir:
                check_sharing(store)
                check_paths(files, store)
                check_models(args, store, folder)
                check_layouts(files, store)
                check_linked(files, store, args.linked)
                check_api(args, files, store)
                check_without_libllama(store)
                check_damage(args, files, store)
        except CheckFailed as error:
            print(f"not ok: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
