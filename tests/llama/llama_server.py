"""A llama-server as a child process, for the checks and benchmarks beside this file.

It is a program that was built, or Debian's, which was unpacked into a folder and
runs from there by its own dynamic loader (`--root`).
"""

import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

START_SECONDS = 120
ANSWER_SECONDS = 600
DEBIAN = "usr/lib/x86_64-linux-gnu"


class CheckFailed(Exception):
    """What was expected, and what came."""


def require(what, holds):
    if not holds:
        raise CheckFailed(what)


def expect(what, got, wanted):
    if got != wanted:
        raise CheckFailed(f"{what}:\n{got}\nexpected\n{wanted}")


def add_arguments(parser):
    """Which llama-server, and what lies below it."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--server", help="the binary llama-server")
    which.add_argument("--root", help="the folder that Debian's packages of llama.cpp and its libraries were unpacked into")
    parser.add_argument("--lib", required=True, help="libkv_store_llama.so")


def loaded_from(root, program, *arguments):
    """The command line of a program that was linked for the libraries below a root, and the folder to start it in."""
    libraries = [f"{root}/{DEBIAN}", f"{root}/{DEBIAN}/llama"]
    # ggml looks for its backends in the current folder too.
    backends = pathlib.Path(root, DEBIAN, "ggml/backends0")
    line = [f"{root}/{DEBIAN}/ld-linux-x86-64.so.2", "--library-path", ":".join(libraries), program, *arguments]
    return line, backends


class Server:
    """A llama-server that answers. `preload` are libraries; `options` are its own."""

    def __init__(self, args, log, model, options=(), preload=(), env=None):
        self.args, self.log = args, pathlib.Path(log)
        self.model, self.options, self.preload, self.env = model, options, preload, env or {}

    def __enter__(self):
        # A port that is free now; another program can take it first, then the server says so and ends.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ["-m", self.model, "--host", "127.0.0.1", "--port", str(self.port), *self.options]
        line, folder = [self.args.server, *options], None
        if self.args.root:
            line, folder = loaded_from(self.args.root, f"{self.args.root}/usr/bin/llama-server", *options)
        env = dict(os.environ) | self.env
        if self.preload:
            env["LD_PRELOAD"] = ":".join(str(library) for library in self.preload)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=folder)
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
            time.sleep(0.02)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def said(self):
        return self.log.read_text(errors="replace")

    def ask(self, path, body=None, timeout=ANSWER_SECONDS, method=None):
        """The status and the JSON of an answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def streamed(self, path, body, timeout=ANSWER_SECONDS):
        """Seconds until the first token of an answer, and all of its text."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps({**body, "stream": True}).encode())
        request.add_header("Content-Type", "application/json")
        begun, first, text = time.monotonic(), None, ""
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                part = json.loads(line[len(b"data: "):])
                said = [choice["delta"].get("content") for choice in part.get("choices", [])] or [part.get("content")]
                # A token may be a part of a character; the first event of a chat says no more than who speaks.
                if first is None and (any(said) or "stop" in part):
                    first = time.monotonic() - begun
                text += "".join(one or "" for one in said)
        require("a first token came", first is not None)
        return first, text

    def complete(self, prompt, n_predict=8, timeout=ANSWER_SECONDS, **more):
        """The answer to a greedy completion."""
        status, answer = self.ask("/completion", {
            "prompt": prompt, "n_predict": n_predict, "temperature": 0.0, "seed": 1, "cache_prompt": True,
            "return_tokens": True, "ignore_eos": True, **more}, timeout)
        require(f"the status of a completion is 200, not {status}: {answer}", status == 200)
        return answer
