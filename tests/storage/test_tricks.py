"""Names that would lead elsewhere, if anything followed them."""

import json
import zipfile
from pathlib import Path
from typing import Any

from flywheel.home import Home
from storage.importer import import_path
from storage.queries import traces

NAMES = ("../up.json", "/abs.json", "..\\win.json", "C:\\x.jsonl", "a\nb.json", "n" * 200 + ".json",
         "sub/../../up2.json", "-rf.json", "$(reboot).json", "é\u202e.json")  # fmt: skip
IDS = ("../../etc/passwd", "/", "..", "a\x00b", "x" * 5_000, "'; DROP TABLE traces; --", "\u202e")


def chat(id: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}
    return {
        "trace_id": id, "session_id": id, "user_id": id,
        "request": {"model": id, "messages": [{"role": "user", "content": id}]},
        "response": {"id": id, "object": "chat.completion", "choices": [choice]},
    }  # fmt: skip


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_names_and_ids_with_tricks_lead_nowhere(home: Home, tmp_path: Path):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    with zipfile.ZipFile(inside / "tricks.zip", "w") as archive:
        for number, name in enumerate(NAMES):
            archive.writestr(name, json.dumps(chat(f"zip-{number}")))
    plain = [name for name in NAMES if "/" not in name and name[0] != "."]
    for number, name in enumerate(plain):
        (inside / name).write_text(json.dumps(chat(f"file-{number}")))
    (inside / "ids.jsonl").write_text("\n".join(json.dumps(chat(id)) for id in IDS))
    before = files(tmp_path / "a")
    report = import_path(home, tmp_path / "a", project="p")
    assert not report.rejects
    assert report.traces == len(NAMES) + len(plain) + len(IDS)
    assert files(tmp_path / "a") == before
    assert {path.name for path in tmp_path.iterdir()} == {"a", home.root.name}
    found = {one.external_id for batch in traces(home, project="p") for one in batch}
    assert {id.replace("\x00", "\ufffd") for id in IDS} <= found
