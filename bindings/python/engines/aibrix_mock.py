"""AIBrix's own manager over its mock connector, which keeps nothing: the peer of `blocks/noop-*`.

Each line of standard input, `put` or `get`, is one round over 16 blocks of 1 MiB, from and to memory of the caller; the answer is its
seconds. Standard output has nothing else.
"""

import os
import sys
import time

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

for name, value in {
    "L1_CACHE_ENABLED": "1",
    "L1_CACHE_CAPACITY_GB": "0.25",
    "L2_CACHE_BACKEND": "MOCK",
    "L2_CACHE_INGESTION_TYPE": "ALL",
    "L2_CACHE_INGESTION_MAX_INFLIGHT_TOKENS": "0",
    "L2_CACHE_PER_TOKEN_TIMEOUT_MS": "2000",
    "MOCK_USE_NOOP": "1",
    "MOCK_USE_MPUT_MGET": "1",
    "DEVICE": "cpu",
    "TIME_MEASUREMENT_ENABLED": "0",
    "BREAKDOWN_MEASUREMENT_ENABLED": "0",
}.items():
    os.environ[f"AIBRIX_KV_CACHE_OL_{name}"] = value

import torch
from aibrix_kvcache import cache_manager, config, spec
from aibrix_kvcache.cache_hashable import TokenListView

BLOCKS = 16
TOKENS = 16

cache_manager.TESTING_DISABLE_PIN_MEMORY = True
tensor = spec.KVCacheTensorSpec(heads=list(range(8)), layers=list(range(16)), head_size=128)
block = spec.KVCacheBlockSpec(TOKENS, torch.bfloat16, spec.KVCacheBlockLayout.LCND, tensor)
settings = config.KVCacheConfig(block_spec=block, model_spec=spec.ModelSpec(max_model_len=BLOCKS * TOKENS))
manager = cache_manager.BaseKVCacheManager(settings)


def prompt(number: int) -> TokenListView:
    return TokenListView(tuple(range(number * 1_000_003, number * 1_000_003 + BLOCKS * TOKENS)))


def put(number: int) -> None:
    tokens = prompt(number)
    handle = manager.allocate_for(None, tokens).get()
    for place, bytes_of_caller in zip(handle.to_tensors(), memory):
        place.copy_(bytes_of_caller)
    stored = manager.put(None, tokens, handle)
    assert stored.is_ok() and stored.get() == len(tokens), stored


def get(number: int) -> None:
    length, handle = manager.acquire(None, prompt(number)).get()
    assert length == BLOCKS * TOKENS, length
    for place, bytes_of_caller in zip(handle.to_tensors(), memory):
        bytes_of_caller.copy_(place)
    handle.release()


probe = manager.allocate_for(None, prompt(0)).get()
memory = [torch.ones_like(place) for place in probe.to_tensors()]
assert sum(place.nbytes for place in memory) == BLOCKS << 20
probe.release()
put(0)
rounds = 0
for line in sys.stdin:
    rounds += 1
    # New prompts all the time, as long as they fit.
    work, number = (put, 1 + rounds % 12) if line.strip() == "put" else (get, 0)
    if work is put:
        manager.delete(None, prompt(number))
    begun = time.perf_counter()
    work(number)
    print(time.perf_counter() - begun, file=ANSWERS, flush=True)
