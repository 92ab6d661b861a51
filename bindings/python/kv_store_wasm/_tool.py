"""The command `kv-store`, which lies in the package as a program: see docs/reference of the project."""

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).with_name("kv-store")


def main() -> None:
    """Become the program. It finds the components and kv-store-compile beside itself."""
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])
