"""What `flywheel import` says of what it could not understand."""

import pytest

from app.commands.import_ import show


def test_rows_quarantined_for_one_reason_are_one_line_and_a_few_unmapped_fields_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = [
        {"path": "a.jsonl", "line": line, "reason": "is odd", "kept": "quarantine/1"}
        for line in range(2, 11)
    ]
    found: dict[str, object] = {
        "rejects": [*several, {"path": "b.json", "field": "samples", "reason": "holds none"}],
        "formats": {"otlp": 1200, "chat_rows": 3},
        "unmapped_fields": {"few": 1, **{f"field{at}": 10 * at for at in range(6)}},
    }
    show(found)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "quarantined a.jsonl:2,3,4,5,6 and 4 more: is odd (kept in quarantine/1)",
        "quarantined b.json: samples: holds none",
    ]
    assert said.out.splitlines() == [
        "formats          otlp 1,200, chat_rows 3",
        "unmapped_fields  field5 50, field4 40, field3 30, field2 20, field1 10 and 2 more: "
        "--json has all",
    ]
