"""Mooncake's own Python client at the same work as the mooncake backend.

Arguments: how many objects at once, bytes of each, the port of a node's REST service. Standard input holds a line for each round, `put N`, `get N`,
`rest-put N`, `rest-get N` or `remove N`; the answer is a line with the seconds that it took. N is of no use here.

The client lends no memory (`global_segment_size` 0), and its buffers are registered once, as its users do it for speed. REST takes text, so
values go in Base64; eight connections are at work.
"""
import base64
import concurrent.futures
import ctypes
import http.client
import json
import mmap
import sys
import threading
import time

from mooncake.store import MooncakeDistributedStore

COUNT, SIZE, PORT = (int(argument) for argument in sys.argv[1:4])
CONNECTIONS = 8


def check(what, wrong):
    if wrong:
        sys.exit(f"{what} failed: {wrong}")


class Native:
    def __init__(self):
        self.store = MooncakeDistributedStore()
        check("setup", self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 512 << 20, "tcp", "", "127.0.0.1:50051"))
        self.memory = mmap.mmap(-1, COUNT * SIZE)
        for at in range(COUNT):
            self.memory[at * SIZE:(at + 1) * SIZE] = (at.to_bytes(8, "little") * (SIZE // 8 + 1))[:SIZE]
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        check("register_buffer", self.store.register_buffer(address, COUNT * SIZE))
        self.keys = [f"peer-{at}" for at in range(COUNT)]
        self.addresses = [address + at * SIZE for at in range(COUNT)]
        self.sizes = [SIZE] * COUNT

    def put(self):
        check("put", [code for code in self.store.batch_put_from(self.keys, self.addresses, self.sizes) if code != 0])

    def get(self):
        check("get", [code for code in self.store.batch_get_into(self.keys, self.addresses, self.sizes) if code != SIZE])

    def remove(self):
        self.store.batch_remove(self.keys + [f"rest-{at}" for at in range(COUNT)], True)


class Rest:
    def __init__(self):
        self.here = threading.local()
        self.pool = concurrent.futures.ThreadPoolExecutor(CONNECTIONS)
        self.value = bytes(range(256)) * (SIZE // 256)

    def ask(self, method, path, body=None):
        if not hasattr(self.here, "connection"):
            self.here.connection = http.client.HTTPConnection("127.0.0.1", PORT)
        self.here.connection.request(method, path, body, {"content-type": "application/json"})
        answer = self.here.connection.getresponse()
        content = answer.read()
        check(path, answer.status != 200 and content)
        return content

    def put_one(self, at):
        value = base64.b64encode(self.value).decode()
        self.ask("PUT", "/api/put", json.dumps({"key": f"rest-{at}", "value": value}))

    def get_one(self, at):
        check("get", base64.b64decode(self.ask("GET", f"/api/get/rest-{at}")) != self.value)

    def put(self):
        list(self.pool.map(self.put_one, range(COUNT)))

    def get(self):
        list(self.pool.map(self.get_one, range(COUNT)))


def main():
    native, rest = Native(), Rest()
    rounds = {
        "put": native.put, "get": native.get, "remove": native.remove, "rest-put": rest.put, "rest-get": rest.get,
    }
    for line in sys.stdin:
        begun = time.perf_counter()
        rounds[line.split()[0]]()
        print(time.perf_counter() - begun, flush=True)


main()
