#!/usr/bin/env python3
"""What an installed Mooncake says on the wire, held against the table in src/calls.rs.

    pip install mooncake-transfer-engine-non-cuda        (and libibverbs1)
    unshare -n sh -c 'ip link set lo up; python3 guests/mooncake/capture.py'

Starts a master, puts a relay before it, has Mooncake's own client make each call, and prints each call's number and the types of its
request and answer. Exit status 1: the table says something else, and another table is needed for this version.
"""
import hashlib
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

MASTER, RELAY, METRICS = 50051, 50052, 9003
REQUEST_HEAD, ANSWER_HEAD = 20, 16


def read(stream, count):
    data = b""
    while len(data) < count:
        piece = stream.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def type_of(body):
    """The hash of a value's type, and the type, in hex."""
    if len(body) < 6:
        return "", ""
    end = body.index(0, 5)
    return f"{struct.unpack('<I', body[:4])[0]:08x}", body[5:end].hex()


def relay(client, calls):
    """Hand requests on one by one, and note them."""
    master = socket.create_connection(("127.0.0.1", MASTER))
    try:
        while True:
            head = read(client, REQUEST_HEAD)
            _, function, length, attachment = struct.unpack("<IIII", head[4:])
            body = read(client, length + attachment)
            master.sendall(head + body)
            answer_head = read(master, ANSWER_HEAD)
            length, attachment = struct.unpack("<II", answer_head[8:])
            answer = read(master, length + attachment)
            calls.append((f"{function:08x}", *type_of(body), *type_of(answer)))
            client.sendall(answer_head + answer)
    except (EOFError, OSError):
        client.close()
        master.close()


def listen(calls):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", RELAY))
    server.listen()

    def accept():
        while True:
            client, _ = server.accept()
            threading.Thread(target=relay, args=(client, calls), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def make_calls():
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", f"127.0.0.1:{RELAY}") != 0:
        sys.exit("Mooncake's client does not start")
    store.put_batch(["a", "b"], [b"x" * 10, b"y" * 20])
    store.get_batch(["a", "b"])
    store.batch_is_exist(["a", "absent"])
    store.batch_remove(["a", "absent"], True)
    store.batch_put_session_start(["c", "d"], [10, 20])
    store.batch_put_session_revoke(["c", "d"])


def list_by_regex(calls):
    """The call that Mooncake's own client has no function for. Its function's number is the beginning of a digest of its name."""
    number = int.from_bytes(hashlib.md5(b"mooncake::WrappedMasterService::GetReplicaListByRegex").digest()[:4], "big")
    # The type of a text and a tenant, as of the calls about one key.
    text = bytes.fromhex("d91ef97c04fd800c800cff00")
    body = text + b"\x02^a" + b"\x07default"
    client = socket.create_connection(("127.0.0.1", RELAY))
    client.sendall(struct.pack("<BBBBIIII", 0x15, 0, 0, 0, 1, number, len(body), 0) + body)
    head = read(client, ANSWER_HEAD)
    read(client, sum(struct.unpack("<II", head[8:])))
    client.close()
    if head[2] != 0:
        # The master does not know the call, or has another type for it.
        calls[:] = [call for call in calls if call[0] != f"{number:08x}"]


def table():
    """The calls of src/calls.rs, by name."""
    text = (pathlib.Path(__file__).parent / "src/calls.rs").read_text()
    number = r"0x([0-9a-f]{4})_([0-9a-f]{4})"
    kind = r"Type\s*\{\s*hash: (?:0|" + number + r"),\s*literal:\s*\"([0-9a-f]*)\",?\s*\}"
    pattern = rf"pub const (\w+): Call = Call \{{\s*function: {number},\s*request: {kind},\s*answer: {kind},"
    return {m[1]: (m[2] + m[3], (m[4] or "") + (m[5] or ""), m[6], (m[7] or "") + (m[8] or ""), m[9]) for m in re.finditer(pattern, text)}


def main():
    program = shutil.which("mooncake_master") or str(pathlib.Path(sys.executable).parent / "mooncake_master")
    os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    arguments = [f"--rpc_port={MASTER}", "--rpc_address=127.0.0.1", f"--metrics_port={METRICS}", "--metrics_host=127.0.0.1"]
    master = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    calls = []
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", MASTER)).close()
                break
            except OSError:
                time.sleep(0.05)
        listen(calls)
        # A process of its own: the client holds Python's lock while it waits for the relay.
        subprocess.run([sys.executable, __file__, "--client"], stderr=subprocess.DEVNULL, timeout=120, check=True)
        list_by_regex(calls)
    finally:
        master.kill()
    seen = {call[0]: call for call in calls}
    differs = False
    for name, expected in table().items():
        found = seen.get(expected[0])
        same = found == expected
        differs |= not same
        print(f"{'same' if same else 'DIFFERS'}  {name}  {' '.join(found or ('not seen',))}")
    return 1 if differs else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--client"]:
        make_calls()
        # The client's own threads do not end by themselves.
        os._exit(0)
    sys.exit(main())
