"""What every section of a flywheel.toml is: closed, frozen, finite; and one that others hold."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Url = Annotated[str, Field(pattern=r"^https?://")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EnvironmentSection(Section):
    path: str
    """`file.py:Class`, relative to the project's folder; `package.module:Class`; or the name of an
    installed environment."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What the environment's own configuration takes."""
