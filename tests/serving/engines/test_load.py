"""How busy an engine is, out of what it says in Prometheus' form."""

import pytest

from serving.engines.load import Load, load_text, read_load

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="base"} 3.0
vllm:num_requests_running{engine="1",model_name="base"} 2.0
vllm:num_requests_waiting{engine="0",model_name="base"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:num_requests_waiting{engine="1",model_name="base"} 0.0
"""


@pytest.mark.parametrize("name", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
def test_all_engines_of_a_vllm_are_counted_and_the_fullest_cache_is_told(name: str) -> None:
    cache = f'vllm:{name}{{engine="0"}} 0.25\nvllm:{name}{{engine="1"}} 0.5\n'
    assert read_load(VLLM + cache) == Load(5, 7, 0.5)


def test_what_is_not_said_is_not_known() -> None:
    assert read_load(VLLM) == Load(5, 7, None)
    assert read_load("process_cpu_seconds_total 3\n") is None


def test_what_is_written_is_read() -> None:
    for load in (Load(0, 0, 0.0), Load(64, 3, 0.125), Load(1, 0, None)):
        assert read_load(load_text(load)) == load
