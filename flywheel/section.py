"""What every section of a flywheel.toml is: closed, frozen, finite."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Url = Annotated[str, Field(pattern=r"^https?://")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
