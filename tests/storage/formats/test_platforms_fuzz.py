"""Rows of providers and platforms bent out of shape: nothing raises, every row gives storable
records or a reason, and nothing is of a shape that no format foresaw."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.ids import digest_bytes
from storage.chunk import read_chunk
from storage.rows_in import Row
from tests.storage.formats.platform_rows import OTHERS, POST, ROWS
from tests.storage.formats.test_formats_fuzz import JUNK, bent, check, places

SEEDS: list[Any] = [*ROWS.values(), *(row for rows in OTHERS.values() for row in rows), POST]


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bent_row_of_a_platform_is_read_or_refused(data: st.DataObject):
    row: Any = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(row, dict | list):
            break
        row = bent(row, data.draw(st.sampled_from(places(row)[1:] or [()])), data.draw(JUNK))
    line = json.dumps(row).encode()
    found = read_chunk([Row(1, line)], "0" * 32, "p", "auto", digest_bytes)
    check(found)
    for _, error, _ in found.rejects:
        assert "has a shape that" not in error.reason, (row, error.reason)
