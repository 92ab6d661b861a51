"""The token-exact cache: states by exactly the tokens that made them, in memory and on a disk of one process.

    with rows.open(ram_bytes=4 << 30, directory="/var/cache/kv-rows", disk_bytes=200 << 30) as cache:
        cache.put(model, tokens, state)  # model: kv_store_wasm.key(...) of all that shapes a state
        row = cache.longest(model, prompt)  # the longest beginning of the prompt that a state is of

It is the crate `kv-cache` (`docs/cache.md`) with no component and no store: what machines share goes into a `Store`. A miss, a damaged
file and a full disk are no errors: `longest` answers None, `put` a negative `Status`.
"""

from ._lib import Row, Rows
from ._lib import open_rows as open
from ._types import Tokens

__all__ = ["Row", "Rows", "Tokens", "open"]
