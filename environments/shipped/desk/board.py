"""A team's board, in the form of tau2's mock domain: tasks, users, and nothing may be deleted."""

from typing import Any

from environments.shipped.desk.domain import TEXT, Action, Call, Database, Domain, NotDone, one_of

STATUSES = ("pending", "completed")


def _create(db: Database, user_id: str, title: str, description: str | None = None) -> Any:
    user = db["users"].get(user_id)
    if user is None:
        raise NotDone(f"User {user_id} not found")
    task_id = f"task_{len(db['tasks']) + 1}"
    task = {"task_id": task_id, "title": title, "description": description, "status": "pending"}
    db["tasks"][task_id] = task
    user.setdefault("tasks", []).append(task_id)
    return task


def _update(db: Database, task_id: str, status: str) -> Any:
    if task_id not in db["tasks"]:
        raise NotDone(f"Task {task_id} not found")
    if status not in STATUSES:
        raise NotDone(f"Invalid status {status}")
    db["tasks"][task_id]["status"] = status
    return db["tasks"][task_id]


def _status(db: Database, task_id: str, expected_status: str) -> bool:
    return bool(db["tasks"].get(task_id, {}).get("status") == expected_status)


def _number(db: Database, user_id: str, expected_number: int) -> bool:
    return len(db["users"].get(user_id, {}).get("tasks", ())) == expected_number


def _forbidden(db: Database, call: Call, before: list[Call]) -> str | None:
    if call.name == "create_task" and not str(call.arguments.get("title", "")).strip():
        return "each task must have a title"
    return None


BOARD = Domain(
    {
        "create_task": Action(
            "Creates a task for a user.",
            {"user_id": TEXT, "title": TEXT, "description": {"type": ["string", "null"]}},
            _create,
            writes=True,
            optional=("description",),
        ),
        "get_users": Action("All users.", {}, lambda db: list(db["users"].values())),
        "update_task_status": Action(
            "Sets a task's status.",
            {"task_id": TEXT, "status": one_of(*STATUSES)},
            _update,
            writes=True,
        ),
        "transfer_to_human_agents": Action(
            "Hands the user over to a human, with a summary.",
            {"summary": TEXT},
            lambda db, summary: "Transfer successful",
        ),
    },
    _forbidden,
    {"assert_task_status": _status, "assert_number_of_tasks": _number},
)
