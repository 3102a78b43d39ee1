"""The real vLLM: the gate before it, the gateway in front of it, and what becomes of it when it is
killed. What it must do as any engine is in test_contract.py.

The last tests kill it and change its model; they stand at the end because all share one.
"""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from safetensors.torch import save_file

from flywheel.errors import MissingPart, Refused, UsageError
from flywheel.home import Home
from flywheel.records import Trace, model_spans, say
from flywheel.serving_section import ServingSection
from serving import routing
from serving.engines import vllm as vllm_module
from serving.engines.client import EngineClient
from serving.engines.loading import Loading
from serving.engines.remote import RemoteVllm
from serving.engines.vllm import VllmProcess
from serving.limits import Limits
from serving.policies import Policies, Policy
from serving.publishing import Seat, WeightPublisher
from serving.smoke import Prompt, smoke
from serving.state import EngineState
from serving.verify import Probe, ProbeEntry, check_logprobs
from tests.serving.running import Running, running
from trainer.models import add_adapter, load_base, load_tokenizer, save_adapter
from trainer.probe import ProbePair, probe_logprobs, write_probe
from trainer.render import renderer_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests" / "sorting" / "base"
SMOL = ROOT / ".models" / "smollm2-135m-instruct"
PAIRS = [ProbePair((1, 30 + i, 31, 32), (40, 41 + i, 2)) for i in range(6)]


@pytest.fixture
def client(vllm: VllmProcess) -> Iterator[EngineClient]:
    with vllm.client(timeout_s=120) as client:
        yield client


def wait_for(what: Callable[[], Any], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def probe_of(old: list[tuple[float, ...]], new: list[tuple[float, ...]]) -> Probe:
    return Probe(
        entries=tuple(
            ProbeEntry(
                prompt_ids=pair.prompt_ids, completion_ids=pair.completion_ids, new=after, old=old_
            )
            for pair, old_, after in zip(PAIRS, old, new, strict=True)
        )
    )


def probes(model_folder: Path, adapters: dict[str, Path], *names: str) -> dict[str, Probe]:
    """What the trainer says of each adapter, by its name."""
    model = load_base(model_folder, threads=1).model
    old = probe_logprobs(model, PAIRS)
    found = {}
    for name in names:
        add_adapter(model, name, adapters[name])
        found[name] = probe_of(old, probe_logprobs(model, PAIRS))
    return found


def prompt_of(model: Path, text: str) -> Prompt:
    rendering = renderer_for(load_tokenizer(model))
    ids = rendering.render_prompt([say("user", text)])
    return Prompt(messages=({"role": "user", "content": text},), ids=tuple(ids))


# --- the gate


def test_the_gate_passes_what_was_trained_and_refuses_another_adapter(
    vllm: VllmProcess, client: EngineClient, adapters: dict[str, Path]
) -> None:
    trained = probes(vllm.model, adapters, "tiny-v1", "tiny-v2")
    evidence = check_logprobs(client, "tiny-v1", trained["tiny-v1"])
    assert evidence["largest"] < 1e-4 and evidence["moved"] > 0.01
    with pytest.raises(Refused, match="is not what was trained"):
        check_logprobs(client, "tiny-v1", trained["tiny-v2"])
    seen = smoke(client, "tiny-v1", [prompt_of(vllm.model, "3 1 2")])
    assert seen["tokens"] > 0 and seen["largest"] < 1e-4


def test_the_gate_catches_prefixes_cached_under_other_weights(
    vllm: VllmProcess, client: EngineClient, adapters: dict[str, Path], tmp_path: Path
) -> None:
    """vLLM's, as it says itself, when one name's files change in place."""
    long = prompt_of(vllm.model, " ".join(str(n % 10) for n in range(120)))
    assert len(long.ids) > 256, "longer than the blocks in which prefixes are cached"
    trained = probes(vllm.model, adapters, "tiny-v3")
    folder = shutil.copytree(adapters["tiny-v1"], tmp_path / "adapter")
    _load(client, "again", folder)
    smoke(client, "again", [long])
    shutil.copy(adapters["tiny-v3"] / "adapter_model.safetensors", folder)
    _load(client, "again", folder, load_inplace=True)
    check_logprobs(client, "again", trained["tiny-v3"])
    with pytest.raises(Refused, match="Cached prefixes of other weights"):
        smoke(client, "again", [long])
    client.unload_adapter("again")
    client.load_adapter("again-v2", adapters["tiny-v3"])
    smoke(client, "again-v2", [long])
    client.unload_adapter("again-v2")


def _load(client: EngineClient, name: str, folder: Path, **how: Any) -> None:
    """As vLLM itself would let one."""
    body = {"lora_name": name, "lora_path": str(folder), **how}
    assert client._send("POST", "/v1/load_lora_adapter", body).status_code == 200


def test_the_gate_catches_a_stale_output_head(
    vllm: VllmProcess, client: EngineClient, tmp_path: Path
) -> None:
    """vLLM reloads weights in place, says 200, and keeps a tied head as it was."""
    import torch
    from safetensors.torch import load_file

    changed = shutil.copytree(vllm.model, tmp_path / "changed")
    tensors = load_file(changed / "model.safetensors")
    random = torch.Generator().manual_seed(7)
    noise = {
        name: one + torch.randn(one.shape, generator=random) * 0.02 for name, one in tensors.items()
    }
    save_file(noise, changed / "model.safetensors", metadata={"format": "pt"})
    old, new = (probe_logprobs(load_base(f, threads=1).model, PAIRS) for f in (vllm.model, changed))
    try:
        _reload(client, changed)
        with pytest.raises(Refused, match="base is not what was trained"):
            check_logprobs(client, "base", probe_of(old, new))
    finally:
        _reload(client, vllm.model)
    check_logprobs(client, "base", probe_of(new, old))


def _reload(client: EngineClient, folder: Path) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    assert client._send("POST", "/collective_rpc", body).status_code == 200
    assert client._send("POST", "/reset_prefix_cache").json()["success"]


# --- the gateway in front of it


@pytest.fixture
def gateway(vllm: VllmProcess, tmp_path: Path) -> Iterator[Running]:
    state = EngineState(
        "ready",
        template_digest=vllm.access.template_digest,
        tokenizer_digest=vllm.access.tokenizer_digest,
    )
    limits = Limits(max_tokens=600)
    with running(tmp_path / "gateway", vllm.url, engine=state, limits=limits) as started:
        started.gateway.upstream.point_to(vllm.url, vllm.access.key)
        yield started


def post(gateway: Running, **asked: Any) -> httpx.Response:
    body = {"model": "support", "messages": [{"role": "user", "content": "3 1 2"}], **asked}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)


def choices_of(trace: Trace) -> list[Any]:
    return [
        choice for span in model_spans(trace) for choice in (span.call.choices if span.call else ())
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_what_passes_the_gateway_can_be_trained_on(gateway: Running, stream: bool) -> None:
    answer = post(gateway, n=2, seed=3, temperature=0.7, stream=stream, max_tokens=12)
    assert answer.status_code == 200, answer.text
    if not stream:
        said = answer.json()
        assert said["model"] == "support-v0" and len(said["choices"]) == 2
        assert said["choices"][0]["logprobs"] is None and "prompt_token_ids" not in said
    (trace,) = gateway.traces()
    assert trace.spans[0].error is None
    for choice in choices_of(trace):
        assert choice.tokens is not None and choice.finish_reason in ("stop", "length")
        assert len(choice.tokens.logprobs) == len(choice.tokens.completion_ids) > 0
        assert choice.tokens.template_digest is not None
        ours = prompt_of(TINY, "3 1 2").ids
        assert choice.tokens.prompt_ids == ours
    usage = trace.spans[0].call.usage
    assert usage.output_tokens == sum(len(c.tokens.completion_ids) for c in choices_of(trace))


def test_a_client_gets_the_logprobs_and_ids_that_it_asks_for(gateway: Running) -> None:
    said = post(gateway, logprobs=True, top_logprobs=2, return_token_ids=True, max_tokens=3).json()
    choice = said["choices"][0]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_prompt_is_answered_with_what_room_there_is(gateway: Running, stream: bool) -> None:
    """vLLM refuses a bound that is longer than its context; ours is, here."""
    text = " ".join(str(n % 10) for n in range(215))
    for asked in ({}, {"max_tokens": 600}):
        answer = post(
            gateway,
            messages=[{"role": "user", "content": text}],
            stream=stream,
            ignore_eos=True,
            **asked,
        )
        assert answer.status_code == 200, answer.text
        choice = choices_of(gateway.traces()[-1])[0]
        whole = len(choice.tokens.prompt_ids) + len(choice.tokens.completion_ids)
        assert (choice.finish_reason, whole) == ("length", 512)


def test_a_prompt_beyond_the_context_is_refused_in_words(gateway: Running) -> None:
    answer = post(gateway, messages=[{"role": "user", "content": "7 " * 600}])
    assert answer.status_code == 400 and "context length" in answer.json()["error"]["message"]


TOOL = {
    "type": "function",
    "function": {
        "name": "sort",
        "description": "Sorts.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_offered_as_the_trainer_does_and_a_call_is_read(
    gateway: Running, stream: bool
) -> None:
    answer = post(
        gateway, tools=[TOOL], stream=stream, max_tokens=120,
        tool_choice={"type": "function", "function": {"name": "sort"}},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    (trace,) = gateway.traces()
    choice = choices_of(trace)[0]
    rendering = renderer_for(load_tokenizer(TINY))
    assert list(choice.tokens.prompt_ids) == rendering.render_prompt([say("user", "3 1 2")], [TOOL])
    if choice.finish_reason != "length":
        assert choice.message.tool_calls[0].name == "sort"
    free = post(gateway, tools=[TOOL], stream=stream, max_tokens=4)
    assert free.status_code == 200, free.text
    assert choices_of(gateway.traces()[-1])[0].tokens.logprobs is not None


CALLS = (
    '<tool_call>[{"name": "sort", "arguments": {"n": 3}}, '
    '{"name": "sort", "arguments": {}}]</tool_call>'
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "text", "arguments"),
    [
        (f"First. {CALLS}", "First. ", ['{"n": 3}', "{}"]),
        ('<tool_call>{"name": "sort"}</tool_call>', None, ["{}"]),
        ("<tool_call>[{broken</tool_call>", "<tool_call>[{broken</tool_call>", []),
        ("No call < here", "No call < here", []),
    ],
)
def test_calls_in_the_models_own_words_are_read(
    gateway: Running, stream: bool, said: str, text: str | None, arguments: list[str]
) -> None:
    """The answer is forced to be `said`; how it is read is vLLM's, with our parser."""
    answer = post(
        gateway,
        tools=[TOOL],
        stream=stream,
        max_tokens=150,
        structured_outputs={"choice": [said]},
    )
    assert answer.status_code == 200, answer.text
    choice = choices_of(gateway.traces()[-1])[0]
    assert [json.loads(call.arguments) for call in choice.message.tool_calls] == [
        json.loads(one) for one in arguments
    ]
    assert choice.message.text == (text or "")
    assert choice.finish_reason == ("tool_calls" if arguments else "stop")
    rendering = renderer_for(load_tokenizer(TINY))
    assert rendering.decode(choice.tokens.completion_ids).startswith(said)
    assert len(choice.tokens.logprobs) == len(choice.tokens.completion_ids)


def test_an_adapter_that_is_not_loaded_is_told_as_an_engine_that_is_away(gateway: Running) -> None:
    home = Home(gateway.home.root)
    now = routing.read(home)
    champion = routing.Deployment(
        name="support-v9", project="support", version=9, base_model="base", adapter="runs/9/adapter"
    )
    route = routing.ProjectRoute(project="support", base_model="base", champion=champion)
    routing.replace(home, routing.Routing(version=now.version, projects={"support": route}))
    answer = post(gateway)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_away"


def test_drain_waits_for_what_is_under_way(client: EngineClient) -> None:
    """So much at once, and again where it was over too soon, that it is seen under way."""
    with ThreadPoolExecutor(16) as pool:
        made: list[Any] = []

        def answer(number: int) -> Any:
            return client.generate("base", [1, 40 + number], max_tokens=400, ignore_eos=True)

        def under_way() -> bool:
            if all(one.done() for one in made):
                made.extend(
                    pool.submit(
                        client.generate, "base", [1, 40 + n], max_tokens=400, ignore_eos=True
                    )
                    for n in range(16)
                )
            return (load := client.load()) is not None and load.running > 0

        wait_for(under_way, 120)
        client.drain()
        ended = [one.result(30) for one in made]
    assert {len(one[0].token_ids) for one in ended} == {400}


def test_an_adapter_that_made_room_for_others_comes_back_as_it_was(
    client: EngineClient, adapters: dict[str, Path], tmp_path: Path
) -> None:
    """vLLM keeps eight in memory, and reads the others again when they are asked."""
    folder = shutil.copytree(adapters["tiny-v3"], tmp_path / "adapter")
    client.load_adapter("first", folder)
    expected = client.logprobs("first", [1, 40, 41], [42, 43])
    shutil.copy(adapters["tiny-v1"] / "adapter_model.safetensors", folder)
    for number in range(9):
        client.load_adapter(f"more-{number}", adapters["tiny-v2"])
        client.logprobs(f"more-{number}", [1], [42])
    assert client.logprobs("first", [1, 40, 41], [42, 43]) == pytest.approx(expected, abs=1e-5)
    for name in ("first", *(f"more-{number}" for number in range(9))):
        client.unload_adapter(name)


# --- given as a URL


def test_a_vllm_that_somebody_else_runs_is_followed(
    vllm: VllmProcess, adapters: dict[str, Path], tmp_path: Path
) -> None:
    served = {"remote-v1": adapters["tiny-v3"]}
    serving = ServingSection(engine="vllm", engine_url=vllm.url + "/v1", context=512)
    remote = RemoteVllm(
        Home(tmp_path),
        vllm.model,
        serving,
        adapters=lambda: served,
        key=vllm.access.key,
        look_s=0.2,
    )
    remote.start()
    try:
        assert remote.alive and remote.access.template_digest == vllm.access.template_digest
        assert remote.access.max_rank == 16, "as it says itself"
        with remote.client() as client:
            assert "remote-v1" in client.models()
            with pytest.raises(Refused, match="other weights"):
                client.load_adapter("remote-v1", adapters["tiny-v1"])
            client.unload_adapter("remote-v1")
            wait_for(lambda: "remote-v1" in client.models(), 60)
            served.clear()
            client.unload_adapter("remote-v1")
    finally:
        remote.stop()
    assert vllm.ready(), "it is not ours to stop"


def test_a_key_that_is_missing_is_asked_for(vllm: VllmProcess, tmp_path: Path) -> None:
    serving = ServingSection(engine="vllm", engine_url=vllm.url)
    with pytest.raises(UsageError, match="FLYWHEEL_ENGINE_KEY"):
        RemoteVllm(Home(tmp_path), vllm.model, serving).start()


# --- killed, and given other weights; the last ones


def group(pid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


def core_of(pid: int) -> psutil.Process:
    return next(one for one in group(pid) if "EngineCore" in " ".join(one.cmdline()))


@pytest.mark.soak
def test_killed_at_any_place_it_comes_back_with_its_adapters(
    vllm: VllmProcess, client: EngineClient
) -> None:
    """The engine core first; then, while it starts again, its first process. It comes back with
    another chat template, which no gate lets pass. Seen first, with the engine that is quick to
    start and the same supervisor, in test_process.py and test_loading.py; that nothing outlives a
    killed vLLM, in tests/flows/test_turn_vllm.py."""
    expected = client.logprobs("tiny-v1", [1, 40, 41], [42, 43])
    url, restarts, first = vllm.url, vllm.restarts, vllm.pid
    assert first is not None
    core_of(first).send_signal(signal.SIGKILL)
    template = vllm.model / "tokenizer_config.json"
    right = template.read_text()
    config = json.loads(right)
    config["chat_template"] = config["chat_template"].replace("named SmolLM", "named Smol")
    template.write_text(json.dumps(config))
    try:
        wait_for(lambda: vllm.restarts > restarts and vllm.pid not in (None, first))
        assert not group(first), "all that belonged to it went with it"
        second = vllm.pid
        assert second is not None
        os.kill(second, signal.SIGKILL)
        wait_for(lambda: vllm.restarts > restarts + 1 and vllm.pid not in (None, second))
        wait_for(lambda: vllm.ready() and {"tiny-v1", "tiny-v2"} <= set(client.models()))
    finally:
        template.write_text(right)
    assert (vllm.url, vllm.last_error) == (url, None)
    assert client.logprobs("tiny-v1", [1, 40, 41], [42, 43]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(Refused, match="chat template is another one"):
        smoke(client, "tiny-v1", [prompt_of(TINY, "3 1 2")])
    wait_for(lambda: vllm.access.template_digest is None, 60)


@pytest.mark.soak  # first looks: the tiny model's adapters above, and the turn on vLLM
def test_an_adapter_of_the_real_model_is_deployed_after_full_weights_were(
    vllm: VllmProcess, client: EngineClient, tmp_path: Path
) -> None:
    import torch

    with pytest.raises(Refused, match="untied"):
        vllm.load_weights(vllm.model)
    with pytest.raises(Refused, match="cannot be read"):
        vllm.load_weights(tmp_path)
    assert vllm.ready()
    if not (SMOL / "model.safetensors").exists():
        pytest.fail(f"no model at {SMOL}: `make model`")
    vllm.loading = Loading(dict)
    model = load_base(SMOL, threads=1).model
    rendering = renderer_for(load_tokenizer(SMOL))
    prompt = tuple(rendering.render_prompt([say("user", "Name a colour.")]))
    pairs = [
        ProbePair(prompt, tuple(rendering.tokenizer.encode(text))) for text in ("Blue.", "Red")
    ]
    old = probe_logprobs(model, pairs)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in add_adapter(model, "made", seed=3):
            parameter.add_(torch.randn(parameter.shape, generator=random) * 0.02)
    new = probe_logprobs(model, pairs)
    save_adapter(model, "made", tmp_path / "adapter")
    del model
    vllm.load_weights(SMOL)
    assert client.models() == ["base"]
    with vllm.client() as fresh:
        fresh.load_adapter("smol-v1", tmp_path / "adapter")
        entries = tuple(
            ProbeEntry(prompt_ids=p.prompt_ids, completion_ids=p.completion_ids, new=n, old=o)
            for p, n, o in zip(pairs, new, old, strict=True)
        )
        evidence = check_logprobs(fresh, "smol-v1", Probe(entries=entries))
        assert evidence["moved"] > 0.01 and evidence["largest"] < 1e-3
        base = Probe(
            entries=tuple(
                ProbeEntry(
                    prompt_ids=e.prompt_ids, completion_ids=e.completion_ids, new=e.old, old=e.new
                )
                for e in entries
            )
        )
        check_logprobs(fresh, "base", base)
        seen = smoke(fresh, "smol-v1", [prompt_of(SMOL, "Name a colour.")], max_tokens=8)
        assert seen["tokens"] > 0


def test_full_weights_are_published_as_it_runs(vllm: VllmProcess, tmp_path: Path) -> None:
    """Of a model that is untied, as whole ones are saved."""
    import torch

    vllm.loading = Loading(dict)
    vllm.load_weights(TINY)
    first, base = vllm.pid, vllm.model
    shutil.copytree(base, tmp_path / "v1" / "model")
    model = load_base(base, threads=1).model
    old = probe_logprobs(model, PAIRS)
    random = torch.Generator().manual_seed(5)
    tensors = {
        name: (one + torch.randn(one.shape, generator=random) * 0.01 * one.std()).bfloat16()
        for name, one in model.state_dict().items()
    }
    save_file(tensors, tmp_path / "v1" / "model" / "model.safetensors", metadata={"format": "pt"})
    del model, tensors
    new = probe_logprobs(load_base(tmp_path / "v1" / "model", threads=1).model, PAIRS)
    write_probe(tmp_path / "v1" / "probe.json", PAIRS, new=new, old=old)
    vllm._in_place = True
    with vllm.client() as client:
        policies = Policies(Policy(0, "base", "run-v0"))
        publisher = WeightPublisher("run", [Seat(client, policies, replace=vllm.load_weights)])
        asyncio.run(publisher.publish(1, tmp_path / "v1"))
    assert publisher.evidence["moved"] > 0.01 and publisher.evidence["largest"] < 1e-3
    assert policies.now.name == "run-v1" and (vllm.pid, vllm.model) == (
        first,
        tmp_path / "v1/model",
    )


def test_stopped_it_leaves_no_process_no_port_and_no_shared_memory(vllm: VllmProcess) -> None:
    first, port = vllm.pid, vllm.port
    assert first is not None
    before = len(group(first))
    vllm.stop()
    assert before >= 3 and not group(first)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)


# --- without one


def test_an_environment_that_is_not_there_or_of_another_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match="make install-vllm"):
        vllm_module.python_of(tmp_path / "none", "cpu")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / ".installed").write_text("cpu 1 2\n")
    assert vllm_module.python_of(tmp_path, "cpu").name == "python"
    with pytest.raises(MissingPart, match="DEVICE=gpu"):
        vllm_module.python_of(tmp_path, "gpu")
