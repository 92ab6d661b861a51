#!/usr/bin/env python3
"""Check a store of the ABI kv_store_v1 with a real llama.cpp, end to end.

A prompt is saved and restored in another process: the logits must be the same,
bit for bit. A longer prompt must write only what is new. With --dir, files are
damaged: each damage must be refused. Prints one line for each check; exit codes:
0 all passed, 1 one did not, 2 wrong usage.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

OK, FAILED = 0, 1


class CheckFailed(Exception):
    """A check did not pass; the text says what was expected and what came."""


class Client:
    """llama-kv with the arguments that stay the same."""

    def __init__(self, args, logits):
        self.binary = args.client
        self.store = ["--lib", args.lib, "--uri", args.uri]
        self.prompt = ["--model", args.model, "--threads", str(args.threads)]
        self.logits = logits

    def run(self, command, *options):
        """Exit code, standard output, standard error of one fresh process."""
        line = [self.binary, command, *self.store, *options]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr.strip()

    def prompt_command(self, command, name, tokens, *options, expect=OK):
        """Save or restore. The result, or the error text where one is expected."""
        code, out, err = self.run(
            command, "--name", name, "--tokens", str(tokens), *self.prompt,
            "--logits", f"{self.logits}-{tokens}", *options)
        if code != expect:
            raise CheckFailed(f"{command} {name} ended with {code}, not {expect}: {err or out}")
        return json.loads(out) if expect == OK else err

    def chunks(self, name):
        """The manifest's chunks as (hex, length), in order."""
        code, out, err = self.run("chunks", "--name", name)
        if code != OK:
            raise CheckFailed(f"chunks {name} ended with {code}: {err}")
        pairs = (line.split() for line in out.splitlines())
        return [(key, int(length)) for key, length in pairs]


def expect(what, got, wanted):
    if got != wanted:
        raise CheckFailed(f"{what}: {got}, expected {wanted}")


def find_file(directory, name):
    found = [path for path in pathlib.Path(directory).rglob(name) if path.is_file()]
    expect(f"files named {name} in the store", len(found), 1)
    return found[0]


def replace_bytes(path, data):
    """Change a file as damage does: in place, whatever its permissions. A chunk
    that the library has removed, because it found it damaged, comes back."""
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(data)


def check_round_trip(client, name, tokens):
    saved = client.prompt_command("save", name, tokens)
    restored = client.prompt_command("restore", name, tokens, "--compare-prefill")
    expect("layout", saved["layout"], "rows")
    expect("logits_identical", restored["logits_identical"], True)
    expect("prefill_logits_identical", restored["prefill_logits_identical"], True)
    expect("state_bytes", restored["state_bytes"], saved["state_bytes"])
    expect("chunks listed", len(client.chunks(name)), saved["chunks"])
    back = restored["restore_ms"] + restored["set_state_ms"]
    print(f"ok: {tokens} tokens, state {saved['state_bytes']} bytes in {saved['chunks']} chunks, "
          f"save {saved['save_ms']:.1f} ms, restore {back:.1f} ms, "
          f"prefill {restored['prefill_ms']:.1f} ms, "
          f"{restored['prefill_ms'] / back:.0f} times as long; logits identical")
    return saved


def check_first(saved):
    """In an empty store all is new."""
    expect("chunks_new of the first prompt (is the store empty?)",
           saved["chunks_new"], saved["chunks"])


def check_dedup(shorter, longer):
    """Each layer's K and V has one chunk for each full run of tokens; only the
    shorter prompt's full ones are in the longer one too."""
    step = shorter["chunk_tokens"]
    runs = math.ceil(shorter["state_tokens"] / step)
    known = shorter["chunks"] // runs * (shorter["state_tokens"] // step)
    expect("chunks_known of the longer prompt", longer["chunks_known"], known)
    expect("chunks_new of the longer prompt", longer["chunks_new"], longer["chunks"] - known)
    print(f"ok: of {longer['chunks']} chunks {longer['chunks_new']} were new, "
          f"{longer['bytes_new']} of {longer['state_bytes']} bytes")


def check_save_again(client, name, tokens):
    again = client.prompt_command("save", name, tokens)
    expect("chunks_new of the same prompt", again["chunks_new"], 0)
    print(f"ok: saved again, 0 new chunks, {again['save_ms']:.1f} ms")


def check_damaged_chunk(client, directory, name, tokens):
    chunks = client.chunks(name)
    key, _ = chunks[len(chunks) // 2]
    path = find_file(directory, key)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 0x40
    for what, data in (("flipped", bytes(flipped)), ("cut short", whole[:-1]),
                       ("too long", whole + b"\0"), ("empty", b"")):
        replace_bytes(path, data)
        error = client.prompt_command("restore", name, tokens, expect=FAILED)
        if key not in error:
            raise CheckFailed(f"the error does not name chunk {key}: {error}")
        print(f"ok: a chunk that is {what} is refused: {error.splitlines()[-1]}")
    path.unlink(missing_ok=True)
    error = client.prompt_command("restore", name, tokens, expect=FAILED)
    print(f"ok: a chunk that is missing is refused: {error.splitlines()[-1]}")
    healed = client.prompt_command("save", name, tokens)
    expect("chunks_new after one was lost", healed["chunks_new"], 1)
    client.prompt_command("restore", name, tokens)
    print("ok: saved again, the lost chunk is back")


def check_damaged_manifest(client, directory, name, tokens):
    # The library's own store writes layout 2, the native one has no layouts.
    path = find_file(directory, name + "*")
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[100] ^= 1
    for what, data in (("cut in half", whole[: len(whole) // 2]), ("cut by a byte", whole[:-1]),
                       ("empty", b""), ("changed", bytes(changed))):
        replace_bytes(path, data)
        error = client.prompt_command("restore", name, tokens, expect=FAILED)
        print(f"ok: a manifest that is {what} is refused: {error.splitlines()[-1]}")
    replace_bytes(path, whole)
    client.prompt_command("restore", name, tokens)
    print("ok: with its manifest back it is restored")


def check_wrong_prompt(client, name, tokens):
    error = client.prompt_command("restore", name, tokens // 2, expect=FAILED)
    print(f"ok: another prompt is refused: {error.splitlines()[-1]}")


def run_checks(args, directory):
    client = Client(args, os.path.join(directory, "logits"))
    saved = []
    for tokens in args.tokens:
        saved.append(check_round_trip(client, f"check-{tokens}", tokens))
        check_first(saved[0])
    name, tokens = f"check-{args.tokens[-1]}", args.tokens[-1]
    if args.dedup:
        for shorter, longer in zip(saved, saved[1:]):
            check_dedup(shorter, longer)
        check_save_again(client, name, tokens)
    # The logits of half the prompt: any of the right length will do.
    first, half = (f"{client.logits}-{n}" for n in (tokens, tokens // 2))
    if not os.path.exists(half):
        os.link(first, half)
    check_wrong_prompt(client, name, tokens)
    if args.dir:
        check_damaged_chunk(client, args.dir, name, tokens)
        check_damaged_manifest(client, args.dir, name, tokens)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", required=True, help="the binary llama-kv")
    parser.add_argument("--lib", required=True, help="the library to check")
    parser.add_argument("--uri", required=True, help="an empty store")
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--tokens", required=True, type=int, nargs="+",
                        help="lengths of prompts, ascending")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dir", help="where the store keeps its files: damage them, too")
    parser.add_argument("--no-dedup", dest="dedup", action="store_false",
                        help="for a store that may answer 0 for a chunk that it has")
    args = parser.parse_args()
    if sorted(args.tokens) != args.tokens or args.tokens[0] < 4:
        parser.error("--tokens takes ascending numbers from 4")
    return args


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as directory:
        try:
            run_checks(args, directory)
        except CheckFailed as error:
            print(f"not ok: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
