"""SGLang's storage modules, and that of its metrics, without the packages around them, which bring in what runs models."""

import importlib.util
import os
import sys
import types
from unittest import mock

ABSENT = tuple(f"sglang.srt.{name}" for name in ("disaggregation", "model_executor", "runtime_context", "server_args", "utils"))
"""What runs models, and modules below."""


class Absent:
    """Finds a module that has every name in place of those."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name.startswith(ABSENT) else None

    def create_module(self, spec: object) -> types.ModuleType:
        return types.ModuleType(spec.name)  # type: ignore[attr-defined]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []
        module.__getattr__ = anything  # type: ignore[method-assign]


def anything(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return mock.MagicMock()


def import_sglang() -> None:
    if "sglang" in sys.modules:
        return
    # It looks at each module that is loaded, and takes the stand-ins below for files.
    import torch  # noqa: F401

    found = importlib.util.find_spec("sglang")
    assert found is not None and found.submodule_search_locations
    root = list(found.submodule_search_locations)[0]
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage", "sglang.srt.observability"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = module
    sys.meta_path.insert(0, Absent())
