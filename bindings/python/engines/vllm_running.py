"""A vLLM that runs on a CPU, in a process of its own: what it is to do comes as JSON on standard input, what it answered goes to standard
output, one line each.

{"model": FOLDER, "engine": {of LLM}, "connector": {of kv_connector_extra_config, or null}, "transfer": {more of KVTransferConfig}} makes
an engine in place of the one before; the answer is {"ready": true}, or {"refused": "the last line of why"}. {"end": true} ends it.
{"prompts": [[token, ...], ...], "tokens": most, "apart": bool, "reset": bool} is a batch. apart: one request after another. reset: vLLM
forgets its own prefix cache before. The answer: {"tokens": [[...]], "logprobs": [[...]], "cached": [...], "seconds": [...], "stats": {...}}.
"""

import gc
import json
import os
import sys
import time
from typing import Any

# What vLLM prints goes to standard error.
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def make(asked: dict[str, Any]) -> Any:
    from vllm import LLM

    options: dict[str, Any] = dict(
        model=asked["model"], skip_tokenizer_init=True, enforce_eager=True, seed=1, disable_log_stats=False, max_model_len=4096
    )
    if asked.get("connector") is not None:
        options["kv_transfer_config"] = {
            "kv_connector": "Connector",
            "kv_connector_module_path": "kv_store_wasm.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": asked["connector"],
            **asked.get("transfer", {}),
        }
    elif asked.get("transfer"):
        options["kv_transfer_config"] = asked["transfer"]
    return LLM(**{**options, **asked.get("engine", {})})


def answer(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams

    if asked.get("reset"):
        engine.reset_prefix_cache()
    sampling = SamplingParams(temperature=0, max_tokens=asked["tokens"], logprobs=1, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    batches = [[prompt] for prompt in prompts] if asked.get("apart") else [prompts]
    outputs, seconds = [], []
    for batch in batches:
        start = time.perf_counter()
        outputs += engine.generate(batch, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [[next(iter(of.values())).logprob for of in output.outputs[0].logprobs] for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "seconds": seconds,
        "stats": {
            metric.name.removeprefix("vllm:"): metric.value
            for metric in engine.get_metrics()
            if hasattr(metric, "value") and ("kv_store_wasm" in metric.name or "cache" in metric.name or "preempt" in metric.name)
        },
    }


def main() -> None:
    engine: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        said: dict[str, Any]
        if "prompts" in asked:
            said = answer(engine, asked)
        else:
            if engine is not None:
                engine.llm_engine.engine_core.shutdown()
                engine = None
                gc.collect()
            said = {"ended": True}
        if "model" in asked:
            try:
                engine, said = make(asked), {"ready": True}
            except Exception as error:
                said = {"refused": str(error).strip().splitlines()[-1]}
        print(json.dumps(said), file=OUT, flush=True)


if __name__ == "__main__":
    main()
