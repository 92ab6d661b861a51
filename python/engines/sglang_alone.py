"""SGLang's storage modules without the packages around them, whose own __init__ bring in what runs models."""

import importlib.util
import os
import sys
import types


def import_sglang() -> None:
    if "sglang" in sys.modules:
        return
    # It looks at each module that is loaded, and takes the stand-ins below for files.
    import torch  # noqa: F401

    found = importlib.util.find_spec("sglang")
    assert found is not None and found.submodule_search_locations
    root = list(found.submodule_search_locations)[0]
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage"):
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = module
    common = types.ModuleType("sglang.srt.utils.common")
    common.__getattr__ = lambda name: lambda *_, **__: None  # type: ignore[method-assign]
    utils = types.ModuleType("sglang.srt.utils")
    utils.__path__ = []
    sys.modules.update({"sglang.srt.utils": utils, "sglang.srt.utils.common": common})
