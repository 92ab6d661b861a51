"""The command `kv-store` that the wheel installs, and what `python -m kv_store_wasm` prints."""

import pathlib
import subprocess
import sys

from kv_store_wasm import _tool


def test_the_command_saves_and_restores(tmp_path: pathlib.Path) -> None:
    command = pathlib.Path(sys.executable).with_name("kv-store")
    (tmp_path / "file").write_bytes(b"the state" * 1000)
    store = f"local-fs://{tmp_path}/kv"
    for words in (["save", store, "file", "--name", "first"], ["restore", store, "copy", "--name", "first"]):
        subprocess.run([command, *words], cwd=tmp_path, check=True)
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()
    told = subprocess.run([command, "doctor", "--probe", store], capture_output=True, text=True, check=True).stdout
    assert "ready: no problems found" in told
    assert str(_tool.PROGRAM.parent / "components") in told


def test_only_what_moves_values_has_bytes_a_second(tmp_path: pathlib.Path) -> None:
    bench = [sys.executable, "-m", "kv_store_wasm", "bench", f"local-fs://{tmp_path}/kv"]
    # Elsewhere than in the sources, which would be taken for the package.
    told = subprocess.run(bench, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    lines = told.splitlines()[1:]
    assert {line.split()[0]: "MB/s" in line for line in lines} == {
        "copy": True,
        "put": True,
        "exists": False,
        "get": True,
        "delete": False,
    }
