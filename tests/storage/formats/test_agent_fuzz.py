"""Runs and sessions of agents bent out of shape: nothing raises, each is read or refused."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.ids import digest_bytes
from storage.chunk import read_chunk
from storage.rows_in import Row
from tests.storage.formats.agent_seeds import SEEDS
from tests.storage.formats.test_formats_fuzz import JUNK, bent, check, places


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bent_run_is_read_or_refused(data: st.DataObject):
    row: Any = SEEDS[data.draw(st.sampled_from(sorted(SEEDS)))]
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(row, dict | list):
            break
        row = bent(row, data.draw(st.sampled_from(places(row)[1:] or [()])), data.draw(JUNK))
    found = read_chunk([Row(1, json.dumps(row).encode())], "0" * 32, "p", "auto", digest_bytes)
    check(found)
    for _, error, _ in found.rejects:
        assert "has a shape that" not in error.reason, (row, error.reason)


@pytest.mark.parametrize("name", SEEDS)
def test_every_seed_is_read(name: str):
    data = json.dumps(SEEDS[name]).encode()
    found = read_chunk([Row(1, data)], "0" * 32, "p", "auto", digest_bytes)
    check(found)
    assert found.traces >= 1 and not found.rejects
