"""A small random Llama with grouped key-value heads, an adapter that learns, and samples."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from flywheel.durable import write
from flywheel.records import Tokens, say
from flywheel.row_files import write_rows
from flywheel.rows import TrainingRow
from flywheel.train_section import TrainSection
from trainer import spool
from trainer.algorithms.contract import Context
from trainer.algorithms.rejection import rejection
from trainer.attention import attend
from trainer.job import Job
from trainer.models import add_adapter, load_tokenizer, use_attention
from trainer.render import Rendering, renderer_for
from trainer.samples import Sample


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def small_model(
    dtype: torch.dtype = torch.float64, seed: int = 0, attention: str | None = None
) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(dtype)
    model.requires_grad_(False)
    for index, parameter in enumerate(
        add_adapter(model, "candidate", rank=4, alpha=8, seed=seed, trainable=True)
    ):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    if attention is None:
        use_attention(model, "flywheel_tree", attend)
    else:
        model.set_attn_implementation(attention)
    return model.to(dtype).train()


@pytest.fixture
def model() -> Any:
    """In float64, but for the norms, which transformers computes in float32."""
    return small_model()


def make_sample(
    name: str, prompt: list[int], answer: list[int], weight: float = 1.0, **more: Any
) -> Sample:
    mask = [False] * len(prompt) + [True] * len(answer)
    return Sample(
        row_id=name,
        token_ids=(*prompt, *answer),
        mask=tuple(mask),
        weights={"ce": tuple(weight if wanted else 0.0 for wanted in mask)},
        template_digest="t",
        **more,
    )


def random_samples(count: int, *, shared: int, seed: int = 0) -> list[Sample]:
    """`count` samples that share their first `shared` tokens; lengths differ."""
    draw = random.Random(seed)
    prefix = [draw.randrange(97) for _ in range(shared)]
    return [
        make_sample(
            f"row-{index}",
            prefix + [draw.randrange(97) for _ in range(draw.randint(1, 9))],
            [draw.randrange(97) for _ in range(draw.randint(1, 7))],
            weight=draw.choice([1.0, 0.5]),
        )
        for index in range(count)
    ]


@pytest.fixture
def samples() -> list[Sample]:
    return random_samples(8, shared=20)


@pytest.fixture
def sampled_from() -> Any:
    return random_samples


@pytest.fixture
def sample_of() -> Any:
    return make_sample


@pytest.fixture
def model_of() -> Any:
    return small_model


TINY = Path(__file__).resolve().parents[1] / "sorting" / "base"


@pytest.fixture(scope="session")
def rendering() -> Rendering:
    return renderer_for(load_tokenizer(TINY))


def sorting_row(digits: list[int], rendering: Rendering, **changes: Any) -> TrainingRow:
    """A right answer to the sorting problem, with the tokens of one who said it."""
    prompt = (say("system", "Sort the digits."), say("user", " ".join(map(str, digits))))
    answer = say("assistant", " ".join(map(str, sorted(digits))))
    ids, mask = rendering.render_sample(prompt, answer)
    start = mask.index(True)
    row = TrainingRow(
        trace_id="t" + "".join(map(str, digits)),
        span_id="s",
        problem_id="p" + "".join(map(str, digits)),
        messages=prompt,
        completion=answer,
        finish_reason="stop",
        reward=1.0,
        tokens=Tokens(
            prompt_ids=tuple(ids[:start]),
            completion_ids=tuple(ids[start:]),
            logprobs=(-0.5,) * (len(ids) - start),
            policy_versions=("sorting-v0",),
            template_digest=rendering.template_digest,
            tokenizer_digest=rendering.tokenizer_digest,
        ),
    )
    return msgspec.structs.replace(row, **changes)


@pytest.fixture
def row_of(rendering: Rendering) -> Any:
    return lambda digits, **changes: sorting_row(digits, rendering, **changes)


@pytest.fixture
def online_job_in(tmp_path: Path, rendering: Rendering) -> Any:
    """Writes job.json for an online run of 4 steps on the tiny model, and the batches up to step
    `put`; returns the job's path."""

    def write_job(
        name: str, put: int = 4, train: dict[str, Any] | None = None, **more: Any
    ) -> Path:
        folder = tmp_path / name
        settings = {"checkpoint_every": 2, "micro_tokens": 128, "rl": {"steps": 4}}
        job = Job(
            run_id="run",
            base_model=str(TINY),
            online=True,
            train=settings | (train or {}),
            out=str(folder),
            threads=1,
            **({"patience_s": 60.0} | more),
        )
        write(folder / "job.json", msgspec.json.encode(job))
        for step in range(1, put + 1):
            spool.put_batch(folder, batch_of(step, rendering))
        return folder / "job.json"

    return write_job


def batch_of(step: int, rendering: Rendering) -> spool.Batch:
    draw = random.Random(step)
    rows = [sorting_row([draw.randrange(10) for _ in range(4)], rendering) for _ in range(5)]
    samples = rejection(rows, Context(rendering, TrainSection())).samples
    return spool.Batch(step=step, groups=(f"g{step}",), samples=samples, report={"reward": 1.0})


@pytest.fixture
def batch_at() -> Any:
    return batch_of


@pytest.fixture
def job_in(tmp_path: Path, rendering: Rendering) -> Any:
    """Writes rows and job.json for a short run on the tiny model; returns the job's path."""

    def write_job(
        name: str, count: int = 20, train: dict[str, Any] | None = None, **more: Any
    ) -> Path:
        draw = random.Random(7)
        rows = [
            sorting_row([draw.randrange(10) for _ in range(4)], rendering) for _ in range(count)
        ]
        folder = tmp_path / name
        folder.mkdir()
        write_rows(folder / "rows.parquet", rows)
        settings = {"epochs": 2, "batch": 4, "checkpoint_every": 2, "micro_tokens": 128}
        job = Job(
            run_id="run",
            base_model=str(TINY),
            rows=str(folder / "rows.parquet"),
            train=settings | (train or {}),
            out=str(folder),
            threads=1,
            **more,
        )
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        return folder / "job.json"

    return write_job
