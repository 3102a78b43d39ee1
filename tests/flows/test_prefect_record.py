"""`prefect/server.json` as somebody may have left it: it is a record, or there is none."""

import json
from pathlib import Path

import pytest

from flows.server import answers, record_of, running
from flywheel.home import Home
from tasks.beats import myself

RECORD = {"process": "", "url": "http://127.0.0.1:9/api", "pages": "", "worker": True}


@pytest.mark.parametrize("process", ["garbage", "9" * 300 + "@x", "9" * 5000 + "@x", "1@", 7, None])
def test_a_record_of_a_process_that_cannot_be_is_none(tmp_path: Path, process: object) -> None:
    home = Home(tmp_path)
    record_of(home).parent.mkdir()
    record_of(home).write_text(json.dumps(RECORD | {"process": process}))
    assert running(home) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe\0", b'{"process": "1@\\ud800"}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, data: bytes) -> None:
    home = Home(tmp_path)
    record_of(home).parent.mkdir()
    record_of(home).write_bytes(data)
    assert running(home) is None
    record_of(home).unlink()
    record_of(home).mkdir()
    assert running(home) is None


@pytest.mark.parametrize("url", ["", "garbage", "http://[::1", "http://a b:1/\n", "file:/x"])
def test_an_address_that_is_none_does_not_answer(tmp_path: Path, url: str) -> None:
    home = Home(tmp_path)
    record_of(home).parent.mkdir()
    record_of(home).write_text(json.dumps(RECORD | {"process": myself(), "url": url}))
    there = running(home)
    assert there is not None and not answers(there.url)
