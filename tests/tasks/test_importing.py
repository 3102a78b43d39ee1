"""Reading by many workers outlives them."""

from concurrent.futures.process import BrokenProcessPool

import pytest

from flywheel.errors import EngineError
from tasks.importing import outliving


@pytest.mark.parametrize("killed", [0, 2, 3])
def test_an_import_whose_workers_are_killed_is_begun_again_but_not_for_ever(killed: int) -> None:
    deaths = [BrokenProcessPool("terminated abruptly")] * killed

    def work() -> str:
        if deaths:
            raise deaths.pop()
        return "read"

    if killed < 3:
        assert outliving(work) == "read"
    else:
        with pytest.raises(EngineError, match="fewer --workers"):
            outliving(work)
