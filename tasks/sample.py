"""Sample: the champion answers each training problem several times; every answer is graded.

Rollouts are sampled in fixed chunks and committed whole: a chunk that was killed is sampled again,
with the same seeds as the same batch, and gives the same rollouts; episodes of several calls keep
their ids and seeds, so that they too are never there twice.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import UsageError
from flywheel.failpoints import failpoint
from flywheel.lineage import Deployment
from flywheel.progress import report
from flywheel.project import Project
from flywheel.records import Origin
from flywheel.settings import secret
from flywheel.train_section import TeacherSection
from tasks.judges import judge_of
from tasks.playing import graded, opens
from tasks.providing import provided
from tasks.rl_problems import is_online
from tasks.step import step
from tasks.turns import Turn, engine, environment_of, home, note, project_of, run_folder

if TYPE_CHECKING:
    from environments.rollouts import Sampler


def sample_rollouts(turn: Turn, problems: dict[str, Any]) -> dict[str, Any]:
    """All chunks of the turn, one after the other; none where the algorithm samples while it
    trains: it gets the problems."""
    project, ids = project_of(turn), problems["train"]
    if is_online(project):
        found: dict[str, Any] = {"rollouts": 0, "graded": 0, "reward": None, "problems": ids}
        note(turn, "rollouts", found)
        return found
    size = project.rollouts.chunk
    own = project.traffic == project.name
    ids = ids if own and "rollouts" in project.curate.sources else []
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    done = []
    for number, chunk in enumerate(chunks):
        report("sampling rollouts", number, len(chunks))
        done.append(sample_chunk(turn, number, chunk))
    report("sampling rollouts", len(chunks), len(chunks))
    graded = sum(one["graded"] for one in done)
    found = {
        "rollouts": sum(one["rollouts"] for one in done),
        "graded": graded,
        "reward": sum(one["reward"] for one in done) / graded if graded else None,
    }
    note(turn, "rollouts", found)
    return found


@step(minutes=60)
def sample_chunk(turn: Turn, number: int, problem_ids: list[str]) -> dict[str, Any]:
    """Samples and grades one chunk; returns its counts and the sum of its rewards."""
    project = project_of(turn)
    rollouts = answers(
        turn,
        problem_ids,
        speaker(turn),
        name=f"rollouts-{turn.run_id}-{number}",
        origin="rollout",
        samples=project.rollouts.samples,
        sampler=teacher_of(project, turn.start),
    )
    failpoint("turn.after_chunk")
    return rollouts


def answers(
    turn: Turn,
    problem_ids: list[str],
    deployment: Deployment,
    *,
    name: str,
    origin: Origin,
    samples: int,
    side: str = "",
    sampler: "Sampler | None" = None,
) -> dict[str, Any]:
    """Samples, grades and commits the deployment's answers to some problems, as one segment.

    `sampler`: who answers in its place.
    """
    from environments.grading import score
    from environments.rollouts import sample
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.queries import problems as stored

    project = project_of(turn)
    environment = environment_of(project)
    known = {one.id: one for one in stored(home(), ids=problem_ids)}
    with contextlib.ExitStack() as stack:
        sampler = sampler or stack.enter_context(asked(project, deployment))
        done = sample(
            environment,
            [known[one] for one in problem_ids],
            sampler,
            run_id=turn.run_id,
            project=turn.project,
            samples=samples,
            temperature=project.rollouts.temperature,
            max_tokens=project.rollouts.max_tokens,
            origin=origin,
            side=side,
            chunk_id=name,
            gang=sampler.tokens,
            opens=opens(
                environment,
                sampler,
                run_folder(turn) / "runtimes",
                base=deployment.base_model if sampler.tokens else None,
            ),
        )
    given = graded(environment, done, known, judge_of(project, home()))
    failpoint("turn.before_rollouts_commit")
    traces, grades = [one.trace for one in done], [grade for one in given for grade in one]
    Inbox(home()).append([*traces, *grades], name=name)
    commit(home())
    scores = [value for one in given if (value := score(one)) is not None]
    return {"rollouts": len(done), "graded": len(scores), "reward": sum(scores), "segment": name}


def speaker(turn: Turn) -> Deployment:
    """Who gives the answers of a turn: its champion; where that judges, the base model."""
    from serving.routing import base_deployment

    if not project_of(turn).judges:
        return turn.start
    return base_deployment(turn.project, turn.start.base_model)


def answering(turn: Turn, challenger: dict[str, Any] | None) -> Deployment:
    """Who answers for a side: the champion, or the challenger, which the engine then serves."""
    if challenger is None:
        return turn.start
    deployment = msgspec.convert(challenger, Deployment)
    engine().load_adapter(deployment.name, home().path(deployment.adapter or ""))
    return deployment


@contextlib.contextmanager
def asked(project: Project, deployment: Deployment) -> "Iterator[Sampler]":
    """Where a deployment answers, for the block: our engine, or its provider."""
    from serving.routing import is_external

    if not is_external(deployment):
        yield sampler_of(deployment)
        return
    with provided(project, deployment) as sampler:
        yield sampler


def sampler_of(deployment: Deployment) -> "Sampler":
    """Where a deployment answers: the engine of the server that runs in this home."""
    from environments.rollouts import Sampler
    from serving.routing import served_as

    client = engine()
    said = client.health()
    return Sampler(
        client.url,
        served_as(deployment),
        key=client.access.key,
        deployment=deployment.name,
        template_digest=said.get("template_digest"),
        tokenizer_digest=said.get("tokenizer_digest"),
    )


def teacher_of(project: Project, deployment: Deployment) -> "Sampler | None":
    """Whose answers a run with `algorithm = "teacher"` learns from. A teacher elsewhere may be of
    any make: its answers come as text. None = the run learns from its champion's own, which where
    that is a provider's model makes it the teacher.

    Raises:
        UsageError: its key is not set, or it is elsewhere and not named.
    """
    from environments.rollouts import Sampler
    from serving.routing import is_external

    if project.train.algorithm != "teacher":
        return None
    section = project.train.teacher or TeacherSection()
    if is_external(deployment) and section.url is None and section.model is None:
        return None
    if section.url is None:
        model = section.model or "base"
        return sampler_of(deployment)._replace(model=model, deployment=f"teacher {model}")
    key = secret(section.key_env) if section.key_env else None
    if section.key_env and not key:
        raise UsageError(f"the teacher's key is in {section.key_env}, which is not set")
    if section.model is None:
        raise UsageError(f"train.teacher: which model of {section.url}? Name it in `model`")
    named = f"teacher {section.model}"
    return Sampler(section.url, section.model, key=key, deployment=named, tokens=False)
