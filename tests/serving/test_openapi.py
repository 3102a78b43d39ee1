"""What /openapi.json says holds: for every path of the gateway, and whatever is sent there."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from serving.limits import Limits
from tests.serving.running import Running, running
from tests.serving.scripted_upstream import upstream


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("home")
    with upstream() as model, running(folder, model.url, limits=Limits(read_s=5)) as up:
        yield up


def described(gateway: Running) -> dict[str, Any]:
    answer = httpx.get(gateway.url + "/openapi.json", verify=False)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_every_path_is_described_and_none_that_is_not_there(standing: Running) -> None:
    paths = described(standing)["paths"]
    routes = standing.gateway.application._inner.routes  # type: ignore[attr-defined]
    there = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert {(path, method) for path, methods in paths.items() for method in methods} == there


def test_the_document_is_whole(standing: Running) -> None:
    """No reference that leads nowhere, and each answer has its words."""
    text, document = str(described(standing)), described(standing)
    schemas = document["components"]["schemas"]
    for name in text.split("#/components/schemas/")[1:]:
        assert name.split("'")[0] in schemas
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            assert all(one["description"] for one in operation["responses"].values())


@pytest.mark.slow
def test_generated_requests_are_answered_as_described(standing: Running) -> None:
    """Sound ones and broken ones, at every path: no fault, and no answer that is not described."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks

    schema = schemathesis.openapi.from_url(standing.url + "/openapi.json")
    asked = [
        not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance,
    ]  # fmt: skip
    few = settings(
        max_examples=8, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    def try_all(operation: Any, mode: GenerationMode) -> int:
        seen = 0

        @few
        @given(case=operation.as_strategy(generation_mode=mode))
        def holds(case: Any) -> None:
            nonlocal seen
            seen += 1
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                case.body |= {"model": "support"} if "model" in case.body else {}
            case.call_and_validate(checks=asked, timeout=20)

        with contextlib.suppress(Unsatisfiable):  # there is nothing that could be wrong
            holds()
        return seen

    operations = [result.ok() for result in schema.get_all_operations()]
    assert sum(try_all(one, mode) for one in operations for mode in GenerationMode) > 100
