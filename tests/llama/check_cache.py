#!/usr/bin/env python3
"""Check the token-exact cache of kv_cache.h with a real llama.cpp, end to end.

A prompt that extends a cached one must prefill only what is new, and its logits
must be those after a full prefill's restored state, bit for bit. Rows are
damaged: each must be refused, and the next best taken. Prints one line for each
check; exit codes: 0 all passed, 1 one did not, 2 wrong usage.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from check import FAILED, OK, CheckFailed, expect, replace_bytes

# Boundaries where the client's batches end (ENGINE_BATCH): so that a token is
# decoded in the same company whatever was cached.
ALIGN = 512
# Their state is cut off at a boundary, 32 tokens at least before their end.
SHORT, LONG = 600, 1000
TRIM = 32

CONFIG = """
[disk]
path = "{path}"
budget = "1 GiB"
[policy]
boundary_align_tokens = {align}
boundary_trim_tokens = {trim}
"""


class Cache:
    """llama-kv with a cache directory of its own."""

    def __init__(self, args, directory, name):
        self.path = pathlib.Path(directory, name)
        config = pathlib.Path(directory, name + ".toml")
        config.write_text(CONFIG.format(path=self.path, align=ALIGN, trim=TRIM))
        self.line = [args.client, "cached", "--lib", args.lib, "--config", str(config), "--model", args.model,
                     "--threads", str(args.threads)]

    def run(self, tokens, logits, *options):
        """One fresh process: its result, and what it said."""
        line = [*self.line, "--tokens", str(tokens), "--logits", str(logits), *options]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600)
        if done.returncode != OK:
            raise CheckFailed(f"{tokens} tokens ended with {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout), done.stderr.strip()

    def rows(self):
        return sorted(self.path.glob("*.kvc"), key=lambda path: path.stat().st_size)


def expect_prefill(result, hit, matched, prefilled, saved):
    got = tuple(result[key] for key in ("hit", "matched_tokens", "prefilled_tokens", "rows_saved"))
    expect("hit, matched, prefilled and saved", got, (hit, matched, prefilled, saved))


def check_full(cache, logits):
    """A full prefill, and its state restored in a fresh process."""
    result, _ = cache.run(LONG, logits)
    expect_prefill(result, "none", 0, LONG - 1, 2)
    result, _ = cache.run(LONG, logits, "--compare-prefill")
    expect_prefill(result, "exact", LONG - 1, 0, 0)
    expect("logits_identical", result["logits_identical"], True)
    expect("prefill_logits_identical", result["prefill_logits_identical"], True)
    back = result["restore_ms"] + result["set_state_ms"]
    print(f"ok: {LONG} tokens, found whole in {back:.1f} ms, a prefill takes {result['full_prefill_ms']:.1f} ms; "
          "logits identical")


def check_extended(cache, logits, short_logits):
    """A shorter prompt, then the longer one that goes on from it."""
    cache.run(SHORT, short_logits)
    result, _ = cache.run(LONG, logits)
    expect_prefill(result, "longest_prefix", ALIGN, LONG - 1 - ALIGN, 1)
    expect("logits_identical", result["logits_identical"], True)
    print(f"ok: after {SHORT} tokens, {LONG} tokens prefill {result['prefilled_tokens']} and not {LONG - 1}; "
          "logits identical to those of a full prefill's restored state")


def check_damage(cache, logits):
    """Each row in turn is damaged, from the longest on: the next best is taken."""
    longest = cache.rows()[-1]
    whole = longest.read_bytes()
    for place in (40, 150, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        replace_bytes(longest, bytes(changed))
        result, said = cache.run(LONG, logits)
        expect_prefill(result, "longest_prefix", ALIGN, LONG - 1 - ALIGN, 1)
        expect("logits_identical", result["logits_identical"], True)
        if longest.stem not in said:
            raise CheckFailed(f"nothing is said of row {longest.stem}: {said}")
        print(f"ok: a bit flipped at {place}: refused, the row before it taken: {said.splitlines()[-1]}")
        expect("the row is there again", longest.stat().st_size, len(whole))
    for row in cache.rows():
        replace_bytes(row, row.read_bytes()[:-1])
    result, _ = cache.run(LONG, logits)
    expect_prefill(result, "none", 0, LONG - 1, 2)
    expect("logits_identical", result["logits_identical"], True)
    print("ok: all rows cut short: refused, prefilled anew")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--client", required=True, help="the binary llama-kv")
    parser.add_argument("--lib", required=True, help="libkv_cache.so")
    parser.add_argument("--model", required=True, help=f"a GGUF file, for {LONG} tokens or more")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as directory:
        logits, short_logits = (pathlib.Path(directory, name) for name in ("logits", "short-logits"))
        try:
            check_full(Cache(args, directory, "full"), logits)
            cache = Cache(args, directory, "extended")
            check_extended(cache, logits, short_logits)
            check_damage(cache, logits)
        except CheckFailed as error:
            print(f"not ok: {error}")
            return FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main())
