# Sleep mode: the device gets its memory back, and the engine writes the same text afterwards.
import json
import os
import subprocess
import sys

import pytest
import torch
from vllm import SamplingParams

MIB = 1 << 20


@pytest.fixture
def sleeper(run):
    """An engine with sleep mode, awake at the end of a test, too."""
    llm = run(enable_sleep_mode=True)
    yield llm
    if llm.llm_engine.is_sleeping():
        llm.wake_up()


def write(llm, prompts: list[dict], tokens: int = 12) -> list[list[int]]:
    settings = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, settings, use_tqdm=False)]


def device_tensors(llm):
    """The model's parameters, its buffers, and the cache."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    weights = [*runner.model.parameters(), *runner.model.buffers()]
    return [t for t in weights if t.device.type == "kunlun"], runner.kv_caches


def size(tensors) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def free() -> int:
    torch.kunlun.empty_cache()
    return torch.kunlun.mem_get_info()[0]


def test_weights_come_back_and_the_cache_begins_anew(sleeper, prompts, greedy):
    asked = prompts(40, 7, seed=70)
    expected = [greedy(p, 12) for p in asked]
    assert write(sleeper, asked) == expected
    weights, caches = device_tensors(sleeper)
    addresses = [t.data_ptr() for t in (*weights, *caches)]
    awake, reserved = free(), torch.kunlun.memory_reserved()
    sleeper.sleep(level=1)
    assert sleeper.llm_engine.is_sleeping()
    given_back = torch.kunlun.mem_get_info()[0] - awake
    assert given_back >= size(weights) + size(caches) > 4 * MIB
    assert torch.kunlun.memory_reserved() == reserved - given_back
    with pytest.raises(RuntimeError, match="memory pool that sleeps"):
        weights[0].sum()
    sleeper.wake_up()
    assert not sleeper.llm_engine.is_sleeping()
    assert [t.data_ptr() for t in (*weights, *caches)] == addresses
    assert free() == awake
    (again, _) = sleeper.generate(
        asked, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False), use_tqdm=False
    )
    assert again.num_cached_tokens == 0  # what the cache held is forgotten
    assert write(sleeper, asked) == expected


def test_weights_and_cache_wake_up_apart(sleeper, prompts, greedy):
    asked = prompts(20, seed=71)
    weights, caches = device_tensors(sleeper)
    sleeper.sleep()
    asleep = torch.kunlun.mem_get_info()[0]
    assert not sleeper.wake_up(tags=["weights"])
    assert sleeper.llm_engine.is_sleeping()
    with_weights = torch.kunlun.mem_get_info()[0]
    assert asleep - with_weights >= size(weights)
    assert sum(t.float().abs().sum().item() for t in weights) > 0
    with pytest.raises(RuntimeError, match="memory pool that sleeps"):
        caches[0].sum()
    assert sleeper.wake_up(tags=["kv_cache"])
    assert with_weights - torch.kunlun.mem_get_info()[0] >= size(caches)
    assert write(sleeper, asked) == [greedy(p, 12) for p in asked]


def test_dropped_weights_are_read_again(sleeper, prompts, greedy):
    asked = prompts(33, seed=72)
    weights, caches = device_tensors(sleeper)
    awake, pinned = free(), torch.kunlun.host_memory_stats()["allocated_bytes.current"]
    sleeper.sleep(level=2)
    assert torch.kunlun.mem_get_info()[0] - awake >= size(weights) + size(caches)
    assert torch.kunlun.host_memory_stats()["allocated_bytes.current"] == pinned
    sleeper.wake_up(tags=["weights"])
    sleeper.collective_rpc("reload_weights")
    sleeper.wake_up(tags=["kv_cache"])
    assert write(sleeper, asked) == [greedy(p, 12) for p in asked]


def test_the_cache_alone_is_given_back(sleeper, prompts, greedy):
    asked = prompts(33, seed=73)
    weights, caches = device_tensors(sleeper)
    awake = free()
    write(sleeper, asked)
    sleeper.llm_engine.step()  # the finished request leaves the scheduler, or vLLM does not count it as idle
    sleeper.sleep(level=0)
    sleeper.release_kv_cache_memory()
    assert torch.kunlun.mem_get_info()[0] - awake >= size(caches)
    assert sum(t.float().abs().sum().item() for t in weights) > 0
    sleeper.wake_up(tags=["kv_cache", "scheduling"])
    assert write(sleeper, asked) == [greedy(p, 12) for p in asked]


def test_without_memory_the_engine_sleeps_on(sleeper, prompts, greedy):
    asked = prompts(20, seed=74)
    _, caches = device_tensors(sleeper)
    sleeper.sleep()
    hog = torch.empty(torch.kunlun.mem_get_info()[0] - size(caches) // 2, dtype=torch.uint8, device="kunlun")
    with pytest.raises(torch.OutOfMemoryError, match="kunlun out of memory"):
        sleeper.wake_up()
    assert sleeper.llm_engine.is_sleeping()
    del hog
    assert sleeper.wake_up()
    assert write(sleeper, asked) == [greedy(p, 12) for p in asked]


def test_groups_that_are_to_sleep_are_refused(run):
    with pytest.raises(ValueError, match="enable-nccl-comm-suspend"):
        run(enable_sleep_mode=True, enable_nccl_comm_suspend=True)


TWO_DEVICES = """
import json, sys
import torch
from vllm import LLM, SamplingParams

def memory(worker):
    return torch.kunlun.mem_get_info(worker.device)[0]

if __name__ == "__main__":
    model, prompts = json.loads(sys.argv[1])
    llm = LLM(model, dtype="float32", max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64, seed=0,
              gpu_memory_utilization=0.2, tensor_parallel_size=2, enable_sleep_mode=True)
    settings = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    write = lambda: [list(o.outputs[0].token_ids) for o in llm.generate(prompts, settings, use_tqdm=False)]
    texts, free = [write()], [llm.collective_rpc(memory)]
    for level in 1, 2:
        llm.sleep(level)
        free.append(llm.collective_rpc(memory))
        llm.wake_up(["weights"])
        if level == 2:
            llm.collective_rpc("reload_weights")
        llm.wake_up(["kv_cache"])
        texts.append(write())
    print(json.dumps({"texts": texts, "free": free}))
"""


@pytest.mark.full
def test_two_devices_sleep(model, prompts, greedy, tmp_path):
    asked = prompts(7, 80, seed=75)
    program = tmp_path / "two.py"
    program.write_text(TWO_DEVICES)
    result = subprocess.run(
        [sys.executable, str(program), json.dumps([model, asked])],
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    (line,) = [line for line in result.stdout.splitlines() if line.startswith('{"texts"')]
    answer = json.loads(line)
    assert answer["texts"] == [[greedy(p, 12) for p in asked]] * 3
    awake, first, second = answer["free"]
    for rank in range(2):
        assert min(first[rank], second[rank]) - awake[rank] > 100 * MIB
