"""Everything of one home at once: gateway, dashboard, Prefect with its worker, MLflow.

Each page opens, no part is in another's way, and the doctor finds all of it well.
"""

import pytest

from tests.app.calling import call
from tests.browser.chromium import Browser
from tests.browser.lived import Lived, command

pytestmark = pytest.mark.slow


def test_all_servers_of_a_home_run_side_by_side(browser: Browser, dashboard: Lived) -> None:
    home, project = dashboard.home, dashboard.project
    with (
        command(home, "prefect", "--port", "0") as prefect,
        command(home, "mlflow", "--port", "0") as mlflow,
    ):
        deployed = call("deploy", project, "--json", home=home.root)
        assert deployed.code == 0, deployed
        with browser.page(f"{prefect['url']}/deployments") as page:
            page.wait_for(text="turn")
            page.wait_for(text="ingest")
        with browser.page(f"{mlflow['url']}/#/models/sorting") as page:
            page.wait_for(text="champion")
        with browser.page(dashboard.page("deployments")) as page:
            page.wait_for(text="Ledger")
        assert dashboard.answered_by().startswith("sorting-v")
        looked = call("doctor", project, "--json", home=home.root)
        found = looked.object()["findings"]
        assert not [one for one in found if one["level"] == "wrong"], found
        says = " | ".join(one["says"] for one in found)
        for words in (
            "the gateway is ready",
            "token ids and logprobs come",
            "Prefect's server at",
            "1 worker of Prefect at work",
            "deployments as flywheel.toml wants them",
            "MLflow's aliases are what serves",
            "nothing of this home listens beyond this machine",
            "no process of ours was left behind",
        ):
            assert words in says, (words, says)
