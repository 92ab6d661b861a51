"""The two-level block cache: blocks of KV state by their tokens, in memory and in any store.

    with blocks.open("redis://cache.svc:6379/3", model="llama-3-8b bf16", block_tokens=16, block_bytes=1 << 20) as cache:
        cache.put(tokens, pages)
        found = cache.get(tokens, pages)  # leading tokens whose blocks were copied

Calls are about a query that follows a prefix of whole blocks, and answer how many leading tokens of the query were handled. A miss,
a late answer and a store that fails are no errors: fewer tokens. `docs/blocks.md` has the semantics, and the config.
"""

from ._lib import AcquiredBlocks as Acquired
from ._lib import BlockCache as Cache
from ._lib import open_blocks as open
from ._types import Piece, Tokens

__all__ = ["Acquired", "Cache", "Piece", "Tokens", "open"]
