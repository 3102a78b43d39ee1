"""Whether an engine can serve given weights, told from their files and from how it is reached.

Asked when a candidate is registered, before anything is spent on it, and again before each load.
The engine itself is asked nothing, and nothing is loaded.
"""

from pathlib import Path

from flywheel.errors import CorruptFile, MissingPart, Refused
from serving.engines.adapter_files import copied, misfit
from serving.engines.reach import Access
from trainer.models import is_whole

ONE_MODEL = (
    "it is a whole model, and a vLLM holds one. The embedded engine serves them beside each other "
    '([serving] engine = "embedded"); or take a copy of its folder as the base model ([model] base)'
)
"""Why vLLM serves no whole model by name, and what to do."""


def must_fit(access: Access, name: str, folder: Path) -> None:
    """
    Raises:
        Refused: the engine could not serve `folder` as the model `name`.
    """
    if is_whole(folder):
        if access.kind == "vllm":
            raise Refused(f"{name} cannot be loaded: {ONE_MODEL}")
        return
    model = Path(access.model) if access.model else None
    try:
        why = misfit(name, folder.resolve(), model=model, max_rank=access.max_rank)
    except (CorruptFile, MissingPart) as error:
        why = str(error)
    if why is not None:
        raise Refused(f"adapter {name} cannot be loaded: {why}")


def path_for(access: Access, name: str, folder: Path) -> str:
    """The path by which the engine shall load `folder`.

    Raises:
        Refused: it could not serve it.
    """
    if access.kind == "embedded":  # it says itself what it does not take
        return str(folder.resolve())
    must_fit(access, name, folder)
    if access.copies is None:
        return str(folder.resolve())
    try:
        return str(copied(folder, Path(access.copies)))
    except (CorruptFile, MissingPart) as error:
        raise Refused(f"adapter {name} was not loaded: {error}") from error
