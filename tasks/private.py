"""What a turn's rows are cleaned by before anything of a dataset is written."""

from typing import TYPE_CHECKING

from tasks.turns import Turn, home, project_of

if TYPE_CHECKING:
    from storage.privacy.rows import Privacy


def privacy_of(turn: Turn) -> "Privacy | None":
    """Its counts begin at 0; None = the project's rows stay as they are."""
    from storage.privacy.rows import privacy_of as of_section

    return of_section(home(), project_of(turn).privacy)
