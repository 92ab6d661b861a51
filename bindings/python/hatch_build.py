"""Tags the wheel, which holds a library that cargo has built: `cargo xtask wheel` lays both out and runs this."""

import os
import pathlib
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "kv_store_wasm/_lib.abi3.so"


class Hook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not (pathlib.Path(self.root) / LIBRARY).is_file():
            raise RuntimeError(f"there is no {LIBRARY} here: `cargo xtask wheel` builds the wheel")
        build_data["pure_python"] = False
        # What was linked says which C library it needs; whoever lays it out has looked.
        glibc = os.environ["KV_STORE_WHEEL_GLIBC"].replace(".", "_")
        build_data["tag"] = f"cp311-abi3-manylinux_{glibc}_{os.uname().machine}"
