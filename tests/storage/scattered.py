"""A home in which two people's data lies in every place that a home has."""

import gzip
import json
import sqlite3
from pathlib import Path

import msgspec

from flywheel.home import Home
from flywheel.lineage import Checkpoint, Decision, Deployment, Run
from flywheel.records import Feedback, Grade, Problem, Tokens, Trace, say
from storage.committer import commit
from storage.curate import RuleSpec, curate
from storage.datasets import write_dataset
from storage.envelope import encode
from storage.importer import import_path
from storage.inbox import Inbox
from storage.journal import Journal
from storage.quarantine import quarantine
from storage.queries import traces
from storage.raw import RawStore
from storage.search import advance
from tests.storage.rows_for_curation import a_row
from tests.storage.store_parts import spoken

SECRETS = {
    "ada": 'My passport number is "X-4471-ADA", please\nship to 12 Countess Lane',
    "bob": 'My passport number is "Y-9902-BOB", please\nship to 7 Builder Road',
}
TOKENS = {"ada": tuple(range(1000, 1040)), "bob": tuple(range(2000, 2040))}


def scattered(root: Path) -> tuple[Home, Journal]:
    """The home, and the journal that a server still has open."""
    home = Home(root / "home")
    _imported(home, root)
    journal = Journal(home)
    for who in SECRETS:
        journal.append(encode(_live(who, home)))
    Inbox(home).append([record for who in SECRETS for record in _about(who)])
    commit(home)
    _made_of(home)
    for who, said in SECRETS.items():
        _files(home, who, said)
    _databases(home)
    advance(home, "shop")
    return home, journal


def _imported(home: Home, root: Path) -> None:
    """One chunk of the raw store that holds rows of both."""
    rows = [
        {
            "id": f"chat-{who}-{k}", "user": who,
            "messages": [{"role": "user", "content": f"{SECRETS[who]} ({k})"},
                         {"role": "assistant", "content": f"Thanks {who}, noted as number {k}"}],
        }
        for k in range(3) for who in SECRETS
    ]  # fmt: skip
    path = root / "export.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_path(home, path, project="shop")


def _live(who: str, home: Home) -> Trace:
    raw = RawStore(home).put(json.dumps({"asked": SECRETS[who]}).encode())
    sampled = Tokens(prompt_ids=TOKENS[who], completion_ids=TOKENS[who][::-1])
    return spoken(f"live-{who}", question=SECRETS[who], answer=f"Dear {who}, it is on its way",
                  span=f"span-{who}", user=who, conversation=f"talk-{who}", raw=raw,
                  tokens=sampled, tenant="acme" if who == "ada" else "other")  # fmt: skip


def _about(who: str) -> list[object]:
    live = spoken(f"live-{who}")
    problem = Problem(environment="shop", messages=(say("user", SECRETS[who]),), text=SECRETS[who],
                      trace_id=live.id, user=who, conversation=f"talk-{who}")  # fmt: skip
    sampled = spoken(f"try-{who}", question=SECRETS[who], answer=f"As {who} wished, so it is",
                     origin="rollout", source="rollout:r1", problem_id=problem.id,
                     run_id=f"run-{who}", start=None)  # fmt: skip
    return [
        problem, sampled,
        Grade(trace_id=live.id, reward="polite", value=1.0, reason=f"{who} was thanked politely"),
        Feedback(project="shop", target=f"talk-{who}", target_kind="conversation", by=who,
                 value=f"{who} says that it never came", at=5),
        Decision(id=f"d-{who}", project="shop", outcome="passed", gate="data", reason="good",
                 by="x", at=1, evidence={"example": SECRETS[who]}),
    ]  # fmt: skip


def _made_of(home: Home) -> None:
    """A dataset of both, what was trained on it, and one of bob alone."""
    found = {one.external_id: one for batch in traces(home) for one in batch}
    rules = (RuleSpec(name="min_reward", params={"value": 1.0}),)

    def row(k: int, who: str) -> object:
        trace = found[f"live-{who}"]
        return a_row(k, trace_id=trace.id, problem_id=None, conversation=trace.conversation,
                     user=who, messages=(say("user", SECRETS[who]),), tokens=None)  # fmt: skip

    both = write_dataset(
        home, "shop", curate([row(1, "ada"), row(2, "bob"), a_row(3)], rules, [], 0.99),  # type: ignore[list-item]
        parents=[], rules=rules,
    )  # fmt: skip
    alone = write_dataset(
        home, "shop", curate([row(2, "bob")], rules, [], 0.99),  # type: ignore[list-item]
        parents=["r"], rules=rules,
    )  # fmt: skip
    Inbox(home).append([
        both, alone,
        Run(id="run", project="shop", algorithm="sft", base_model="b", champion="shop-v0",
            snapshot="s", dataset_id=both.id),
        Checkpoint(id="weights", run_id="run", kind="adapter", path="runs/run/adapter", steps=1),
        Checkpoint(id="later", run_id="next", kind="adapter", path="p", steps=1, parent="weights"),
        Checkpoint(id="clean", run_id="other", kind="adapter", path="q", steps=1),
        Deployment(name="shop-v1", project="shop", version=1, base_model="b",
                   checkpoint_id="weights"),
        Deployment(name="shop-v2", project="shop", version=2, base_model="b",
                   checkpoint_id="clean"),
    ])  # fmt: skip
    commit(home)


def _files(home: Home, who: str, said: str) -> None:
    """What runs, evaluations, logs, caches and other programs leave; a file for both of them."""
    line = msgspec.json.encode({"trace": {"user": who, "text": said}})
    live = spoken(f"live-{who}").id
    for path in ("evals/e1/results.jsonl", "logs/server.log", "runs/run/metrics.jsonl"):
        _append(home.root / path, line + b"\n")
    _append(home.root / "runs/run/turn.md", f"- example: {said!r}\n".encode())
    _append(home.root / "runs/run/report.html", f"<p>{said}</p>\n".encode())
    quarantine(home, f"row-{who}.jsonl", line + b"\n", "cut")
    probe = home.root / "runs/run/probe.json"
    known = json.loads(probe.read_text()) if probe.exists() else {"entries": []}
    known["entries"].append({"prompt_ids": TOKENS[who]})
    probe.write_text(json.dumps(known))
    group = home.root / "runs/run/groups/one.group"
    held = msgspec.msgpack.decode(group.read_bytes()) if group.exists() else {"rollouts": []}
    held["rollouts"].append({"trace_id": live, "token_ids": TOKENS[who]})
    group.parent.mkdir(parents=True, exist_ok=True)
    group.write_bytes(msgspec.msgpack.encode(held))
    table = home.root / "mlflow/artifacts/shop/pairs.json"
    table.parent.mkdir(parents=True, exist_ok=True)
    pairs = json.loads(table.read_text()) if table.exists() else {"columns": ["a"], "data": []}
    pairs["data"].append([said])
    table.write_text(json.dumps(pairs))
    (home.root / "cache").mkdir(exist_ok=True)
    (home.root / f"cache/{who}.gz").write_bytes(gzip.compress(said.encode()))
    (home.root / "prefect/storage").mkdir(parents=True, exist_ok=True)
    (home.root / f"prefect/storage/{who}").write_text(json.dumps({"result": json.dumps([said])}))


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def _databases(home: Home) -> None:
    for name in ("mlflow/mlflow.db", "prefect/prefect.db", "judge.sqlite", "responses.sqlite"):
        path = home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE said (key TEXT PRIMARY KEY, body BLOB NOT NULL, n INT)")
            for who, said in SECRETS.items():
                body = json.dumps({"said": said})
                database.execute("INSERT INTO said VALUES (?, ?, 1)", [f"{who}-1", body])
                database.execute("INSERT INTO said VALUES (?, ?, 2)", [f"{who}-2", said.encode()])
        database.close()
