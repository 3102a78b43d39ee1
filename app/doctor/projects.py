"""Projects: the file, the environment with its rewards on an example, the rules, the base model."""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.doctor.finding import Case, Finding, ok, size, warning, wrong
from flywheel.errors import FlywheelError, MissingPart, ProjectError
from flywheel.known import known
from flywheel.project import Project, base_folder, load_project
from flywheel.records import (
    Choice,
    Grade,
    ModelCall,
    Problem,
    Span,
    Trace,
    Usage,
    say,
    trace_id,
)
from serving.provider_keys import key_of

if TYPE_CHECKING:
    from environments.define import Environment

NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")


def projects(case: Case) -> Iterator[Finding]:
    """Their files and, where the home knows them, their folders."""
    if not case.folders:
        yield ok("no project is known here: flywheel init FOLDER writes one")
    remembered = {folder: name for name, folder in known(case.home).items()}
    for folder in case.folders:
        if not folder.exists() and folder in remembered:
            name = remembered[folder]
            yield warning(
                f"{name} was last in {folder}, which is gone",
                "any command with its new folder, such as flywheel grade FOLDER; if it is no more: "
                f"rm {case.home.projects / name}.json",
            )
            continue
        try:
            project = load_project(folder)
        except FlywheelError as error:
            yield wrong(str(error), _remedy(error, folder))
            continue
        yield ok(f"{project.name}: {project.folder / 'flywheel.toml'} is as it should be")
        yield from _rules(project)
        yield from _engine(case, project)
        yield from _keys(project)


def environments(case: Case) -> Iterator[Finding | str]:
    """Each environment is loaded, and its rewards judge an example."""
    from environments.load import load_environment

    for project in sound(case):
        section = project.environment
        file = project.folder / section.path.partition(":")[0]
        yield f"{project.name}: {file}"
        try:
            environment = load_environment(section.path, project.folder, section.config)
        except ProjectError as error:
            yield wrong(f"{project.name}: {error}", f"mend {file}")
            continue
        yield from _rewards(case, project, environment)


def models(case: Case) -> Iterator[Finding | str]:
    for project in sound(case):
        if project.serving.engine_url:
            continue  # somebody else has it
        folder = base_folder(project, case.settings.models)
        name = f"{project.name}: the base model {folder}"
        yield name
        if not folder.is_dir():
            yield wrong(
                f"{name} is not there",
                "make model for the demo's; else put it there, or set FLYWHEEL_MODELS",
            )
            continue
        try:
            weights = _whole(folder)
            tokens = _tokenizer(folder)
            yield ok(f"{name}: {size(weights)} of weights, {tokens} tokens")
            if case.deep:
                yield from _loaded(name, folder)
        except (FlywheelError, OSError, ValueError, KeyError, struct.error) as error:
            yield wrong(
                f"{name} cannot be loaded: {error}",
                f"bring it anew: for the demo's, rm -r {folder}; make model",
            )


def sound(case: Case) -> Iterator[Project]:
    """Those whose file can be read; `projects` tells of the others."""
    for folder in case.folders:
        try:
            yield load_project(folder)
        except (FlywheelError, OSError):
            continue


def _remedy(error: FlywheelError, folder: Path) -> str:
    return (
        f"give the project's folder, or flywheel init {folder}"
        if "no flywheel.toml" in str(error)
        else "mend those keys; docs/project.md and the error name the right ones"
    )


def _rules(project: Project) -> Iterator[Finding]:
    from storage.curate import rule_specs

    try:
        rule_specs(project.curate)
    except FlywheelError as error:
        yield wrong(f"{project.name}: {error}", "mend [[curate.rules]] of its flywheel.toml")


def _keys(project: Project) -> Iterator[Finding]:
    for name, provider in project.providers.items():
        try:
            key_of(name, provider)
        except MissingPart as error:
            yield warning(
                f"{project.name}: {error}",
                f"set {provider.key_env} where flywheel serve is started",
            )


def _engine(case: Case, project: Project) -> Iterator[Finding]:
    serving = project.serving
    if serving.engine == "vllm" and not (serving.engine_url or serving.engine_urls):
        python = case.settings.vllm / "bin" / "python"
        if not python.exists():
            yield wrong(
                f"{project.name} is served by vLLM, and there is none at {case.settings.vllm}",
                f'make install-vllm (DEVICE={serving.device}), or engine = "embedded"',
            )
    if project.train.rank > serving.max_rank and serving.engine == "vllm":
        yield wrong(
            f"{project.name} trains adapters of rank {project.train.rank}; vLLM makes room for "
            f"{serving.max_rank}",
            f"max_rank = {project.train.rank} under [serving], or a lower rank under [train]",
        )


def _rewards(case: Case, project: Project, environment: "Environment") -> Iterator[Finding]:
    from environments.grading import grade

    problem = _problem(case, project, environment)
    grades = grade(environment, _example(project, problem), problem)
    broken = [one for one in grades if one.reason and _is_fault(one.reason)]
    for one in broken:
        yield wrong(
            f"{project.name}: the reward {one.reward} fails on an example: {_last(one.reason)}",
            f"mend {one.reward} in {project.folder / project.environment.path.partition(':')[0]}",
        )
    if not any(one.weight > 0 for one in grades):
        yield wrong(f"{project.name}: its environment has no reward", "mark a method with @reward")
    elif not broken:
        yield ok(f"{project.name}: its rewards on an example: {_said(grades)}")


def _problem(case: Case, project: Project, environment: "Environment") -> Problem | None:
    """One of the store's; None = there is none, or it cannot be had now."""
    from storage.queries import problems

    try:
        found = problems(case.home, environment.name, split="train")
    except FlywheelError:
        return None  # the check of the store tells
    return next((one for one in found if one.answer is not None), None)


def _example(project: Project, problem: Problem | None) -> Trace:
    """An answer that is the truth where one is known, as the gateway would have recorded it."""
    answer = problem.answer if problem and isinstance(problem.answer, str) else None
    text = answer if answer is not None else json.dumps(problem.answer if problem else "yes")
    messages = problem.messages if problem else (say("user", "Are you well?"),)
    choice = Choice(message=say("assistant", text), finish_reason="stop")
    call = ModelCall(input=messages, choices=(choice,), usage=Usage(reason="an example"))
    return Trace(
        id=trace_id(project.name, "doctor", "example"),
        project=project.name,
        source="doctor",
        external_id="example",
        origin="import",
        spans=(Span(id="call", kind="model", start=1, end=2, call=call),),
    )


def _is_fault(reason: str) -> bool:
    """Whether the reward broke, rather than said why it cannot be given."""
    broke = reason.startswith(("took longer", "the reward ended"))
    return broke or "\nTraceback (most recent call last)" in reason


def _last(reason: str | None) -> str:
    return (reason or "").strip().splitlines()[-1]


def _said(grades: Sequence[Grade]) -> str:
    told = [
        f"{one.reward} {one.value:g}" if one.value is not None else f"{one.reward} ({one.reason})"
        for one in grades
    ]
    return ", ".join(told)


def _whole(folder: Path) -> int:
    """Bytes of weights, every file of which is as long as its header says.

    Raises:
        ValueError: a file is missing, cut or none of ours.
    """
    for name in NEEDED:
        _json(folder / name)
    index = folder / "model.safetensors.index.json"
    named = set(_json(index)["weight_map"].values()) if index.exists() else set()
    files = sorted({*folder.glob("*.safetensors"), *(folder / one for one in named)})
    if not files:
        raise ValueError("no *.safetensors in it")
    return sum(_length(path) for path in files)


def _length(path: Path) -> int:
    with path.open("rb") as file:
        (header,) = struct.unpack("<Q", file.read(8))
        have = path.stat().st_size
        if header > have:
            raise ValueError(f"{path.name} is cut, or no safetensors file")
        tensors = json.loads(file.read(header))
    ends = [one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"]
    if 8 + header + max(ends, default=0) != have:
        raise ValueError(f"{path.name} has {have} bytes, and its header tells of another length")
    return have


def _tokenizer(folder: Path) -> int:
    """How many tokens it knows; it takes a text apart and puts it together."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"tokenizer.json: {error}") from error
    if not tokenizer.encode("1 2 3").ids:
        raise ValueError("its tokenizer gives no token for a text")
    settings = _json(folder / "tokenizer_config.json")
    if not settings.get("chat_template") and not (folder / "chat_template.jinja").exists():
        raise ValueError("its tokenizer has no chat template")
    return int(tokenizer.get_vocab_size())


def _loaded(name: str, folder: Path) -> Iterator[Finding]:
    from trainer.models import digest_of, load_base
    from trainer.render import renderer_for

    base = load_base(folder, threads=1)
    rendering = renderer_for(base.tokenizer)
    ids = rendering.render_prompt([say("user", "Are you well?")])
    yield ok(f"{name} loads; digest {digest_of(folder)}, a prompt is {len(ids)} tokens")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"{path.name} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
