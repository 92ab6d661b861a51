"""`kv_store_wasm`'s own fixtures, for tests that need the engines."""

import importlib.util
import pathlib
import sys

# The stand-ins are not for here.
_spec = importlib.util.spec_from_file_location("tests_conftest", pathlib.Path(__file__).parent.parent / "tests/conftest.py")
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
redis, uri, store, free_port = _module.redis, _module.uri, _module.store, _module.free_port
