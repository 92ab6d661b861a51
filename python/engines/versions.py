"""The adapters in several releases of their engines: `python versions.py FOLDER [--of PACKAGE] [--last N]` prints a row of a table for each release.

A release is unpacked alone, without what it imports, before the packages of this environment: what an adapter meets of its engine is in it, or it
cannot be loaded, which is a row too. `test_engines.py` has the tests.
"""

import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent

TESTS = {"lmcache": "lmcache and not starts", "sglang": "sglang and not stand_in", "aibrix-kvcache": "aibrix and not stand_in"}
"""Of each package, which tests of `test_engines.py` are of its adapter. The stand-ins are those of one release."""

LAST = {"lmcache": 4, "sglang": 4, "aibrix-kvcache": 2}


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
    where = folder / f"{package}-{version}"
    if not where.exists():
        pip("install", "--quiet", "--no-cache-dir", "--no-deps", "--target", str(where), f"{package}=={version}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(where), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_engines.py", "-k", TESTS[package]]
    ran = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    (folder / f"{package}-{version}.log").write_text(ran.stdout + ran.stderr)
    failed = [line.split("::")[1].split(" ")[0] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "passes" if ran.returncode == 0 else "fails: " + ", ".join(failed or ["it cannot be loaded"])


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--of", choices=TESTS)
    arguments.add_argument("--last", type=int)
    asked = arguments.parse_args()
    for package in [asked.of] if asked.of else TESTS:
        for version in releases(package, asked.last or LAST[package]):
            print(f"| {package} | {version} | {tried(package, version, asked.folder)} |", flush=True)


if __name__ == "__main__":
    main()
