"""What the tests share: stores that are empty, a redis-server of the test's own."""

import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

import kv_store_wasm as kv


@pytest.fixture
def uri(tmp_path: pathlib.Path) -> str:
    folder = tmp_path / "store"
    folder.mkdir()
    return f"local-fs://{folder}"


@pytest.fixture
def store(uri: str) -> Iterator[kv.Store]:
    with kv.open(uri) as store:
        yield store


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class Redis:
    """A redis-server that keeps nothing on disk."""

    def __init__(self) -> None:
        self.port = free_port()
        self.uri = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as stream:
                    stream.sendall(b"PING\r\n")
                    if stream.recv(7) == b"+PONG\r\n":
                        return
            except OSError:
                pass
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def redis() -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.fail("redis-server is not installed")
    server = Redis()
    yield server
    server.kill()
