"""MLflow's REST API of version 3: an experiment's traces by time, and the spans of each
(https://mlflow.org/docs/latest/api_reference/rest-api.html, `searchTraces` and `getTrace`)."""

from collections.abc import Iterator
from typing import Any

from flywheel.errors import MissingPart, UsageError
from storage.pull.asking import Server
from storage.pull.page import Page, Span

_PAGE = 100


def pages(server: Server, project: str, span: Span, at: dict[str, Any] | None) -> Iterator[Page]:
    place = {"experiment_id": _experiment(server, project)}
    wanted = [f"trace.timestamp_ms < {span.until // 10**6}"]
    if span.since is not None:
        wanted.append(f"trace.timestamp_ms >= {span.since // 10**6}")
    asked = {
        "locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": place}],
        "filter": " AND ".join(wanted), "max_results": _PAGE, "order_by": ["timestamp_ms ASC"],
    }  # fmt: skip
    token = (at or {}).get("token")
    while True:
        body = asked if token is None else {**asked, "page_token": token}
        found = server.post("/api/3.0/mlflow/traces/search", body)
        infos = found.get("traces", [])
        rows = [{"info": info, "data": _data(server, info["trace_id"])} for info in infos]
        token = found.get("next_page_token") or None
        yield Page(rows, {"token": token} if token else None)
        if token is None:
            return


def _experiment(server: Server, project: str) -> str:
    found = server.get("/api/2.0/mlflow/experiments/get-by-name", experiment_name=project)
    return str(found["experiment"]["experiment_id"])


def _data(server: Server, trace: str) -> Any:
    """Its spans in the form in which MLflow writes them to files; of one whose spans are gone what
    there is, which the format then says."""
    try:
        return server.get("/ajax-api/3.0/mlflow/get-trace-artifact", request_id=trace)
    except MissingPart:
        raise
    except UsageError:
        return {"spans": []}
