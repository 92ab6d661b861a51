#!/usr/bin/env python3
"""A question about a long text, asked of two llama-servers with one store.

The first computes the text, and is asked again: llama-server's own prefix cache has the text then, all but its last token. It ends, and the second,
which has an empty memory, finds the text in the store. Prints one JSON object: the answers, the times until their first words, what was stored and
what was loaded.
"""

import argparse
import json
import pathlib
import re
import sys
import tempfile

import llama_server
from llama_server import CheckFailed, require

QUESTION = "What is this text about? Answer in one sentence."


def ask(args, name, folder):
    env = {"KV_STORE_LLAMA_URI": f"wasm://local-fs://{args.store}", "KV_STORE_LLAMA_AUTO": "1"}
    options = ["--no-webui", "-np", "1", "-c", "8192", "--cache-ram", "0", "-fit", "off"] if args.root else ["-np", "1", "-c", "8192", "--cache-ram", "0"]
    text = pathlib.Path(args.text).read_text()[:args.characters]
    with llama_server.Server(args, folder / f"{name}.log", args.model, options, [args.lib], env) as server:
        body = {"messages": [{"role": "user", "content": f"{text}\n\n{QUESTION}"}], "max_tokens": args.predict, "temperature": 0, "seed": 1}
        first, answer = server.streamed("/v1/chat/completions", body)
        again = server.streamed("/v1/chat/completions", body)
        status, counted = server.ask("/tokenize", {"content": text})
        require(f"the status of /tokenize is 200, not {status}", status == 200)
    said = server.said()
    loaded = re.findall(r"automatic cache: loaded \d+ tokens of sequence \d+, (\d+) of them not computed", said)
    return {"first_words_ms": 1e3 * first, "answer": answer.strip(), "again_ms": 1e3 * again[0], "again": again[1].strip(), "text_tokens": len(counted["tokens"]),
            "not_computed": sum(map(int, loaded)),
            "said": [line for line in said.splitlines() if line.startswith("kv-store-llama: ")]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    llama_server.add_arguments(parser)
    parser.add_argument("--model", required=True, help="a GGUF file with a chat template")
    parser.add_argument("--store", required=True, help="an empty folder")
    parser.add_argument("--text", required=True, help="a file")
    parser.add_argument("--characters", type=int, default=15000, help="of the text that are used")
    parser.add_argument("--predict", type=int, default=48)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            # An end waits until what was computed is stored.
            first = ask(args, "first", pathlib.Path(folder))
            files = [path for path in pathlib.Path(args.store).rglob("*") if path.is_file()]
            stored = {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
            second = ask(args, "second", pathlib.Path(folder))
            require(f"the second server loads what the first has stored: {second['said']}", second["not_computed"] > first["not_computed"])
        except CheckFailed as error:
            print(f"not ok: {error}", file=sys.stderr)
            return 1
    print(json.dumps({"question": QUESTION, "first": first, "stored": stored, "second": second}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
