"""Rows `engines/vllm/*`: 48 chunks of 1 MiB through vLLM's factory of tiers, beside its tier `fs`."""

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy
from rows import in_turns, quick, row, wanted
from vllm_alone import import_vllm, offloading_spec

CHUNKS = 48
CHUNK = 1 << 20


def main() -> None:
    if not any(wanted(f"engines/vllm/{name}") for name in ("store", "lookup", "load")):
        return
    import_vllm()
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
    from vllm.v1.kv_offload.tiering.base import TransferJob
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    spec = offloading_spec(CHUNK)
    folder = tempfile.mkdtemp(dir=os.environ.get("KV_STORE_BENCH_FOLDER"))
    # Pages of their own, as vLLM's region has them: `fs` reads and writes around the page cache.
    memory = numpy.frombuffer(mmap.mmap(-1, CHUNKS * CHUNK), dtype=numpy.uint8).reshape(CHUNKS, CHUNK)
    source = numpy.random.default_rng(1).integers(0, 256, memory.shape, dtype=numpy.uint8)
    chunks = numpy.arange(CHUNKS)

    class Side:
        def __init__(self, **tier) -> None:
            os.mkdir(f"{folder}/{tier['type']}")
            self.tier = SecondaryTierFactory.create_secondary_tier(tier, memoryview(memory), spec)

        def job(self, submit: Callable, keys: list, context: ReqContext, load: bool) -> float:
            """Seconds until a job is done: what its threads take, without any polling."""
            start = time.perf_counter()
            submit(TransferJob(1, keys, chunks, load, context))
            self.tier.drain_jobs()
            [result] = self.tier.get_finished_jobs()
            taken = time.perf_counter() - start
            assert result.success, result
            return taken

        def lookup(self, keys: list, context: ReqContext) -> float:
            """Seconds until all keys are known, by steps of a scheduler that has nothing else to do."""
            start = time.perf_counter()
            asked = keys
            while asked:
                asked = [key for key in asked if self.tier.lookup(key, context) is LookupResult.RETRY]
                self.tier.on_schedule_end(ScheduleEndContext((), ()))
                # The tiers' threads have the interpreter meanwhile.
                time.sleep(1e-5)
            taken = time.perf_counter() - start
            assert {self.tier.lookup(key, context) for key in keys} == {LookupResult.HIT}
            return taken

        def round(self, number: int) -> Sequence[float]:
            keys = [make_offload_key(os.urandom(32), 0) for _ in range(CHUNKS)]
            context = ReqContext(req_id=str(number))
            self.tier.on_new_request(context)
            memory[:] = source
            taken = [self.job(self.tier.submit_store, keys, context, False), self.lookup(keys, context)]
            memory[:] = 0
            taken.append(self.job(self.tier.submit_load, keys, context, True))
            assert numpy.array_equal(memory, source), "other bytes than were stored"
            self.tier.on_request_finished(context)
            return taken

    ours = Side(type="Tier", module_path="kv_store_wasm.vllm", uri=f"local-fs://{folder}/Tier")
    peer = Side(type="fs", root_dir=f"{folder}/fs")
    taken = in_turns(ours.round, peer.round, 5 if quick() else 11)
    # A time of 1.5 times theirs is 0.67 as fast.
    for (operation, goal), mine, theirs in zip((("store", 1.3), ("lookup", 0.67), ("load", 3.0)), *taken):
        amount = 0 if operation == "lookup" else CHUNKS * CHUNK / 1e6
        row(f"engines/vllm/{operation}", mine, theirs, amount, "MB/s" if amount else "us", goal)
    for side in (ours, peer):
        side.tier.shutdown()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
