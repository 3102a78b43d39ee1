"""New weights while episodes are played: at each engine, what answers is what was published."""

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from environments.load import load_environment
from flywheel.errors import EngineError, Refused
from flywheel.ids import digest_bytes
from flywheel.records import Problem, Tokens, model_spans, say
from serving.engines.client import EngineClient
from serving.engines.process import EngineProcess
from serving.engines.reach import Access
from serving.engines.supervised import Supervised
from serving.interception import Served
from serving.policies import Policies, Policy
from serving.publishing import Seat, WeightPublisher
from serving.teacher import Teacher, must_read_alike
from tasks.player import EpisodePlayer, Rules, players
from tasks.rl_seat import forget_earlier
from trainer.attention import attend
from trainer.forward import trained_logprobs
from trainer.models import add_adapter, load_base, use_attention
from trainer.orchestrator.contract import Attempt, Played, Visit
from trainer.packing import lay_out
from trainer.paths import paths_of, sample_of
from trainer.probe import ProbePair, probe_logprobs, write_probe
from trainer.render import renderer_for

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
PAIRS = [ProbePair((1, 30 + i, 31, 32), (40, 41 + i, 2)) for i in range(6)]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def version(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes the folder of a version for an engine: adapter tiny-vN with the trainer's logprobs of
    it, or, to lie, those of another."""
    said: dict[Path, dict[str, list[tuple[float, ...]]]] = {}

    def make(engine: Supervised, number: int, probe: str = "") -> Path:
        if engine.model not in said:
            model = load_base(engine.model, threads=1).model
            said[engine.model] = {"base": probe_logprobs(model, PAIRS)}
            for name, folder in adapters.items():
                add_adapter(model, name, folder)
                said[engine.model][name] = probe_logprobs(model, PAIRS)
        name, known = f"tiny-v{number}", said[engine.model]
        folder = tmp_path_factory.mktemp("versions")
        shutil.copytree(adapters[name], folder / "adapter")
        write_probe(folder / "probe.json", PAIRS, new=known[probe or name], old=known["base"])
        return folder

    return make


@pytest.fixture
def client(either: Supervised) -> Iterator[EngineClient]:
    with either.client(timeout_s=120) as client:
        yield client


def visit(number: int, digits: str = "3 1 2") -> Visit:
    answer = " ".join(sorted(digits.split()))
    asked = (say("system", "Sort the digits."), say("user", digits))
    problem = Problem(environment="sorting", messages=asked, answer=answer)
    return Visit(f"visit-{number}", problem, "sorting", number)


@contextlib.asynccontextmanager
async def playing(
    engine: Supervised,
    client: EngineClient,
    folder: Path,
    run: str,
    *,
    temperature: float = 1.0,
    repeatable: bool = False,
) -> AsyncIterator[tuple[EpisodePlayer, WeightPublisher, Seat]]:
    policies = Policies(Policy(0, "base", f"{run}-v0"))
    seat = Seat(client, policies, replace=engine.load_weights)
    access, publisher = engine.access, WeightPublisher(run, [seat])
    served = Served(
        engine.url, "base", key=access.key, deployment=run, base=str(engine.model),
        template_digest=access.template_digest, tokenizer_digest=access.tokenizer_digest,
    )  # fmt: skip
    environment = load_environment("environment.py:Sorting", ROOT / "tests" / "sorting")
    how = Rules("sorting", run, temperature, 12, repeatable)
    async with publisher, players(
        {"sorting": environment}, {"one": (served, seat)}, publisher, how,
        folder=folder, put=digest_bytes,
    ) as (player,):  # fmt: skip
        yield player, publisher, seat


def tokens_of(played: Played) -> Tokens:
    (span,) = model_spans(played.finished.trace)
    assert span.call is not None and span.call.choices[0].tokens is not None, span.error
    return span.call.choices[0].tokens


def test_what_is_published_answers_the_next_call_and_is_what_records_name(
    either: Supervised, client: EngineClient, version: Make, tmp_path: Path
) -> None:
    async def go() -> list[Played]:
        played, scored = [], []
        async with playing(either, client, tmp_path, "wheel") as (player, publisher, seat):
            for number in range(4):
                if number:
                    await publisher.publish(number, version(either, number))
                    assert publisher.evidence["largest"] < 1e-3
                played.append(await player.play(Attempt(visit(number), 0), number))
                model, tokens = seat.policies.now.model, tokens_of(played[-1])
                asked = (model, tokens.prompt_ids, tokens.completion_ids)
                scored.append(await asyncio.to_thread(client.logprobs, *asked))
            assert await player.beat() and await player.load() is not None
            left = [name for name in client.models() if name.startswith("wheel-v")]
            assert left == [seat.policies.now.model]
        for one, own in zip(played, scored, strict=True):
            tokens = tokens_of(one)
            assert (one.tokens,) == one.sampled == (len(tokens.completion_ids),)
            assert one.ended >= one.started and tokens.logprobs == pytest.approx(own, abs=1e-3)
        return played

    assert [one.versions for one in asyncio.run(go())] == [(0,), (1,), (2,), (3,)]
    assert not [name for name in client.models() if name.startswith("wheel-v")]


def test_what_is_not_what_was_trained_changes_nothing(
    either: Supervised, client: EngineClient, version: Make, tmp_path: Path
) -> None:
    async def go() -> Played:
        async with playing(either, client, tmp_path, "lie") as (player, publisher, seat):
            with pytest.raises(Refused, match="not what was trained"):
                await publisher.publish(1, version(either, 1, "tiny-v2"))
            assert seat.policies.now.version == 0
            assert not [name for name in client.models() if name.startswith("lie-v")]
            return await player.play(Attempt(visit(0), 0), 0)

    assert asyncio.run(go()).versions == (0,)


def test_of_several_engines_all_confirm_before_any_answers(
    engine: EngineProcess, version: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(fit: EngineClient, other: EngineClient) -> None:
        seats = [Seat(one, Policies(Policy(0, "base", "several-v0"))) for one in (fit, other)]
        async with WeightPublisher("several", seats) as publisher:
            monkeypatch.setattr(other, "load_adapter", failing)
            with pytest.raises(EngineError, match="out of memory"):
                await publisher.publish(1, version(engine, 1))
            assert [one.policies.now.version for one in seats] == [0, 0]
            assert not [name for name in fit.models() if name.startswith("several-v")]
            monkeypatch.undo()
            await publisher.publish(1, version(engine, 1))
            assert [one.policies.now.version for one in seats] == [1, 1]

    def failing(name: str, folder: Path) -> None:
        raise EngineError("out of memory")

    with engine.client() as fit, engine.client() as other:
        asyncio.run(go(fit, other))


def test_an_engine_that_is_away_as_others_confirm_plays_when_it_has_confirmed_too(
    engine: EngineProcess, version: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(there: EngineClient, away: EngineClient) -> None:
        seats = [Seat(one, Policies(Policy(0, "base", "away-v0"))) for one in (there, away)]
        async with WeightPublisher("away", seats) as publisher:
            monkeypatch.setattr(away, "_http", nowhere._http)
            await publisher.publish(1, version(engine, 1))
            assert [one.policies.now.version for one in seats] == [1, 1], "none serves older ones"
            with pytest.raises(EngineError):
                await publisher.revive(seats[1])
            monkeypatch.undo()
            assert await publisher.revive(seats[1]) and await publisher.revive(seats[0])
            await publisher.publish(2, version(engine, 2))
            left = [name for name in away.models() if name.startswith("away-v")]
            assert left == [seats[1].policies.now.model]

    nowhere = EngineClient("http://127.0.0.1:9", timeout_s=5)
    with engine.client() as there, engine.client() as away, nowhere:
        asyncio.run(go(there, away))


def test_what_is_being_loaded_as_a_run_is_stopped_does_not_stay(
    engine: EngineProcess, version: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    async def go(client: EngineClient) -> None:
        def slowly(name: str, folder: Path) -> None:
            begun.set()
            time.sleep(0.3)
            EngineClient.load_adapter(client, name, folder)

        monkeypatch.setattr(client, "load_adapter", slowly)
        publisher = WeightPublisher("cut", [Seat(client, Policies(Policy(0, "base", "cut-v0")))])
        async with publisher:
            publishing = asyncio.create_task(publisher.publish(1, version(engine, 1)))
            await asyncio.to_thread(begun.wait)
            publishing.cancel()
        assert not [name for name in client.models() if name.startswith("cut-v")]

    with engine.client() as client:
        asyncio.run(go(client))


def test_what_earlier_runs_of_a_project_left_in_the_engine_goes_and_no_one_elses(
    engine: EngineProcess, adapters: dict[str, Path]
) -> None:
    own, ours, theirs = (f"{name}-v1-{'c' * 12}" for name in ("p-" + "a" * 12, "p-" + "b" * 12,
                                                             "p-q-" + "b" * 12))  # fmt: skip
    with engine.client() as client:
        for name in (own, ours, theirs):
            client.load_adapter(name, adapters["tiny-v1"])
        forget_earlier(client, "p", "p-" + "a" * 12)
        known = client.models()
        assert {own, theirs, "tiny-v1"} <= set(known) and ours not in known
        for name in (own, theirs):
            client.unload_adapter(name)


def test_an_answer_under_way_ends_under_the_version_that_it_began_with(
    either: Supervised, client: EngineClient, version: Make, tmp_path: Path
) -> None:
    async def go() -> None:
        async with playing(either, client, tmp_path, "hold") as (player, publisher, seat):
            await publisher.publish(1, version(either, 1))
            old = seat.policies.now.model
            async with seat.policies.use() as held:
                await publisher.publish(2, version(either, 2))
                assert held.version == 1 and seat.policies.now.version == 2
                assert old in client.models()
                later = await player.play(Attempt(visit(0), 0), 2)
                assert later.versions == (2,)
                await publisher.publish(2, version(either, 2))
                assert old in client.models()
            await publisher.clear()
            assert old not in client.models()

    asyncio.run(go())


def test_an_engine_that_lost_its_weights_gets_them_again(
    engine: EngineProcess, version: Make, tmp_path: Path
) -> None:
    async def go() -> None:
        with engine.client() as client:
            async with playing(engine, client, tmp_path, "lost") as (player, publisher, seat):
                await publisher.publish(1, version(engine, 1))
                client.unload_adapter(seat.policies.now.model)  # as by a start anew
                assert await player.beat()
                assert (await player.play(Attempt(visit(0), 0), 1)).versions == (1,)

    asyncio.run(go())


def test_played_repeatably_a_seed_gives_the_same_bits_whatever_else_is_played(
    engine: EngineProcess, tmp_path: Path
) -> None:
    digits = ["3 1 2", "9 9 1", "4 5 6 1", "2 2 8 7 1"]
    attempts = [Attempt(visit(n, digits[n]), k) for n in range(4) for k in range(4)]

    async def go(order: list[Attempt]) -> dict[Any, Tokens]:
        with engine.client() as client:
            async with playing(engine, client, tmp_path, "bits", repeatable=True) as (player, *_):
                played = await asyncio.gather(*(player.play(one, 0) for one in order))
        return {(one.attempt.visit.id, one.attempt.k): tokens_of(one) for one in played}

    together = asyncio.run(go(attempts))
    assert asyncio.run(go(attempts[::-3])) == {
        (one.visit.id, one.k): together[one.visit.id, one.k] for one in attempts[::-3]
    }
    assert len({tokens.completion_ids for tokens in together.values()}) > 4


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_trainer_says_the_same_logprobs_of_what_was_sampled_whatever_the_version_is_called(
    either: Supervised, client: EngineClient, version: Make, tmp_path: Path, temperature: float
) -> None:
    """The mismatch stays what it is where the weights do: as with a learning rate of 0."""

    async def go() -> list[list[Played]]:
        found = []
        same = {"temperature": temperature, "repeatable": True}
        async with playing(either, client, tmp_path, "flat", **same) as (player, publisher, _):
            for number in (1, 2, 3):
                await publisher.publish(number, version(either, 1))
                some = [player.play(Attempt(visit(0), k), number) for k in range(4)]
                found.append(list(await asyncio.gather(*some)))
        return found

    steps = asyncio.run(go())
    assert not [name for name in client.models() if name.startswith("flat-v")]
    assert [{one.versions for one in some} for some in steps] == [{(1,)}, {(2,)}, {(3,)}]
    samples = [
        [sample_of(paths_of(one.finished.trace).paths[0], row_id="r") for one in some]
        for some in steps
    ]
    model = load_base(either.model, threads=1).model
    add_adapter(model, "trained", version(either, 1) / "adapter")
    use_attention(model, "flywheel_tree", attend)
    for some in samples:
        packed = lay_out(some)
        with torch.no_grad():
            ours = trained_logprobs(model, packed)
        theirs = [
            (packed.samples[owner].behaviour_logprobs or ())[place]
            for owner, place in zip(packed.owners, packed.places, strict=True)
        ]
        assert ours.tolist() == pytest.approx(theirs, abs=1e-4)
    if either.access.kind == "embedded":
        streams = [[one.behaviour_logprobs for one in some] for some in samples]
        assert streams[0] == streams[1] == streams[2]


def test_a_teacher_says_of_each_token_what_it_would_have_said_and_reads_as_the_student_does(
    either: Supervised, client: EngineClient
) -> None:
    pairs = [((1, *(30 + k % 9 for k in range(40)), 31 + i), (40, 41 + i)) for i in range(70)]
    pairs.insert(3, ((1, 2), ()))
    model = load_base(either.model, threads=1)
    names = iter(["gone", "base", "base"])
    said = Teacher(client, lambda: next(names, "base"))(pairs)
    own = probe_logprobs(model.model, [ProbePair(*pair) for pair in pairs if pair[1]])
    assert said.pop(3) == []
    for one, other in zip(said, own, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    rendering = renderer_for(model.tokenizer)
    must_read_alike(client, "tiny-v1", rendering)
    with pytest.raises(Refused, match="no model gone"):
        must_read_alike(client, "gone", rendering)
    bare = Access(kind=either.access.kind, key=either.access.key)
    with EngineClient(either.url, access=bare) as stranger:  # what no server of ours told us of
        must_read_alike(stranger, "base", rendering)
        model.tokenizer.add_tokens(["Naïve"])
        with pytest.raises(Refused, match="another tokenizer"):
            must_read_alike(stranger, "base", renderer_for(model.tokenizer))


def test_all_weights_are_replaced_in_place_between_two_calls(
    engine: EngineProcess, tmp_path: Path
) -> None:
    before, process = engine.model, engine.pid
    folder = full_version(before, tmp_path / "v1")

    async def go() -> tuple[Played, Played]:
        with engine.client() as client:
            async with playing(engine, client, tmp_path, "full") as (player, publisher, seat):
                first = asyncio.create_task(player.play(Attempt(visit(0), 0), 0))
                while not seat.policies.in_use("base"):
                    await asyncio.sleep(0)
                publishing = asyncio.create_task(publisher.publish(1, folder))
                await asyncio.sleep(0)
                assert seat.policies.halting and await player.beat()
                later = await player.play(Attempt(visit(0), 1), 0)
                await publishing
                lie = full_version(before, tmp_path / "v2", probe=False)
                with pytest.raises(Refused, match="not what was trained"):
                    await publisher.publish(2, lie)
                assert client.health()["model"] == str(folder / "model")
                return await first, later

    try:
        first, later = asyncio.run(go())
        assert (first.versions, later.versions) == ((0,), (1,)) and engine.pid == process
        assert engine.model == folder / "model"
        with engine.client() as client:
            assert {"tiny-v1", "tiny-v2"} <= set(client.models())
            tokens = tokens_of(later)
            own = client.logprobs("base", tokens.prompt_ids, tokens.completion_ids)
            assert tokens.logprobs == pytest.approx(own, abs=1e-3)
    finally:
        engine.load_weights(before)


def full_version(base: Path, folder: Path, *, probe: bool = True) -> Path:
    """The base model with noise in every weight; without `probe`, with another's logprobs."""
    shutil.copytree(base, folder / "model")
    tensors = load_file(folder / "model" / "model.safetensors")
    random = torch.Generator().manual_seed(7)
    noise = {
        name: one + torch.randn(one.shape, generator=random) * 0.02 for name, one in tensors.items()
    }
    save_file(noise, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    old = probe_logprobs(load_base(base, threads=1).model, PAIRS)
    new = probe_logprobs(load_base(folder / "model", threads=1).model, PAIRS)
    write_probe(folder / "probe.json", PAIRS, new=new if probe else old, old=old)
    return folder
