from pathlib import Path

import msgspec

from flywheel.home import Home
from flywheel.lineage import Deployment
from serving.keeper import adapters_of
from serving.routing import ProjectRoute, Routing, replace
from trainer.models import digest_of


def test_weights_that_changed_on_disk_are_not_loaded_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    deployments = []
    for number in (1, 2):
        folder = tmp_path / "runs" / str(number) / "adapter"
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(b"weights %d" % number)
        deployments.append(
            Deployment(
                name=f"shop-v{number}",
                project="shop",
                version=number,
                base_model="base",
                adapter=f"runs/{number}/adapter",
                checkpoint_id=digest_of(folder),
            )
        )
    route = ProjectRoute(
        project="shop", base_model="base", champion=deployments[1], previous=deployments[0]
    )
    replace(home, msgspec.structs.replace(Routing(), projects={"shop": route}))
    shop = frozenset({"shop"})
    assert sorted(adapters_of(home, shop)) == ["shop-v1", "shop-v2"]
    (tmp_path / "runs/2/adapter/adapter_model.safetensors").write_bytes(b"weights 3")
    assert sorted(adapters_of(home, shop)) == ["shop-v1"]
