"""The peer of engine-side/kvx/examples/kvx_bench/main.rs: writes and gathers a paged cache by index, as one does with numpy.

Arguments: nhd|hnd, write|gather|take, blocks, block size, heads, dim, calls of a round. The first line of standard input is the block ids in
order; for each line after it, one round is done and its nanoseconds are printed. `take` is a gather by `numpy.take` into the
output, which saves the copy that an index makes first; it needs tokens that are whole, which only NHD has.
"""

import sys
import time

import numpy as np

order, op = sys.argv[1:3]
blocks, block, heads, dim, calls = map(int, sys.argv[3:8])
ids = np.array(sys.stdin.readline().split(), dtype=np.int64)
slots = (ids[:, None] * block + np.arange(block)).reshape(-1)
where, offset = slots // block, slots % block
shape = (blocks, block, heads, dim) if order == "nhd" else (blocks, heads, block, dim)
pools = [np.ones(shape, np.float16) for _ in range(2)]
outside = [np.ones((blocks * block, heads, dim), np.float16) for _ in range(2)]


def move(pool, tokens):
    if order == "hnd":
        if op == "write":
            pool[where, :, offset] = tokens
        else:
            tokens[...] = pool[where, :, offset]
        return
    flat = pool.reshape(blocks * block, heads, dim)
    if op == "write":
        flat[slots] = tokens
    elif op == "gather":
        tokens[...] = flat[slots]
    else:
        np.take(flat, slots, axis=0, out=tokens, mode="clip")


for _ in sys.stdin:
    start = time.perf_counter_ns()
    for _ in range(calls):
        for pool, tokens in zip(pools, outside):
            move(pool, tokens)
    print(time.perf_counter_ns() - start, flush=True)
