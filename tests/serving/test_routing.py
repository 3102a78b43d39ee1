import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from flywheel.errors import Busy, CorruptFile
from flywheel.home import Home
from serving.routing import (
    ProjectRoute,
    Routing,
    base_deployment,
    read,
    replace,
    served_as,
)


def route(project: str) -> ProjectRoute:
    return ProjectRoute(
        project=project, base_model="tiny", champion=base_deployment(project, "tiny")
    )


def test_no_file_is_version_zero_and_no_projects(tmp_path: Path) -> None:
    assert read(Home(tmp_path)) == Routing()


def test_what_was_replaced_is_read_back_one_version_later(tmp_path: Path) -> None:
    home = Home(tmp_path)
    written = replace(home, Routing(projects={"p": route("p")}))
    assert written.version == 1
    assert read(home) == written


def test_a_change_made_for_an_older_version_loses_and_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = replace(home, Routing(projects={"p": route("p")}))
    replace(home, first)
    with pytest.raises(Busy, match="version 2"):
        replace(home, first)
    assert read(home).version == 2


def test_of_many_at_once_each_version_has_one_winner(tmp_path: Path) -> None:
    home = Home(tmp_path)

    def add(k: int) -> int:
        losses = 0
        while True:
            seen = read(home)
            try:
                replace(
                    home,
                    Routing(
                        version=seen.version, projects={**seen.projects, f"p{k}": route(f"p{k}")}
                    ),
                )
                return losses
            except Busy:
                losses += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert read(home).version == 8
    assert set(read(home).projects) == {f"p{k}" for k in range(8)}


def test_a_held_lock_is_busy_not_a_hang(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.locks.mkdir()
    with FileLock(home.locks / "routing.lock"), pytest.raises(Busy, match="held"):
        replace(home, Routing(), wait_s=0.05)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": "x"}', b"\xff\x00", b"[]"])
def test_a_file_that_is_not_ours_is_named_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    home = Home(tmp_path)
    home.routing.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"routing\.json"):
        read(home)
    with pytest.raises(CorruptFile):
        replace(home, Routing())
    assert home.routing.read_bytes() == content


def test_deployment_zero_is_the_base_and_an_adapter_bears_its_own_name() -> None:
    base = base_deployment("p", "tiny")
    assert (base.name, base.version, served_as(base)) == ("p-v0", 0, "base")
    assert served_as(msgspec.structs.replace(base, name="p-v3", adapter="runs/r/adapter")) == "p-v3"


@pytest.mark.parametrize(("place", "value"), [
    (("version",), -5),
    (("version",), 10**30),
    (("projects", "p", "share"), 7.5),
    (("projects", "p", "share"), 1.0),
    (("projects", "p", "share"), -0.1),
    (("projects", "p", "share"), 0.2),
    (("projects", "p", "champion", "version"), -1),
    (("projects", "p", "champion", "project"), "q"),
    (("projects", "p", "project"), "q"),
])  # fmt: skip
def test_what_no_writer_puts_into_the_file_is_not_read(
    tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    home = Home(tmp_path)
    replace(home, Routing(projects={"p": route("p")}))
    whole = json.loads(home.routing.read_bytes())
    part = whole
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    home.routing.write_text(json.dumps(whole))
    with pytest.raises(CorruptFile, match="is not a routing file"):
        read(home)
