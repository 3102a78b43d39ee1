"""What people asked for in MLflow is answered: through the same gates, once each."""

from typing import Any

from prefect import flow

from flows.trial import trial
from tasks.asked import look, put_in_line, tell_newcomer, who
from tasks.slots import in_its_slot, run_name
from tasks.turns import UnderWay


@flow(name="registry", flow_run_name=run_name, persist_result=False)
@in_its_slot()
def registry(project_folder: str) -> dict[str, Any]:
    """One pass over the project's registered model.

    Returns: {"answered": [a trial's report …], "waiting": count, "in_line": [what was set back …]}.
    While a turn of the project is under way, what was asked waits for the next pass.

    Raises:
        FlywheelError: of a trial that failed, after the others were answered; its ask stays.
    """
    found = look(project_folder)
    wanted = [(one["version"], True, *who(one), one["id"]) for one in found["asks"]]
    newcomers = [one for one in found["newcomers"] if not tell_newcomer(project_folder, one)]
    wanted += [(one, False, "flywheel", "registered by hand", "") for one in newcomers]
    answered: list[Any] = []
    failed: list[Exception] = []
    for version, promote, by, reason, ask in wanted:
        state: Any = trial(project_folder, version, promote, by, reason, ask, return_state=True)
        report = state.result(raise_on_failure=False)
        if isinstance(report, UnderWay):
            return {
                "answered": answered,
                "waiting": len(wanted) - len(answered),
                "why": str(report),
            }
        (failed if isinstance(report, Exception) else answered).append(report)
    if failed:
        raise failed[0]
    return {"answered": answered, "waiting": 0, "in_line": put_in_line(project_folder)}
