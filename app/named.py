"""The projects of a home by their names, wherever it met them."""

from flywheel.home import Home


def projects(home: Home) -> list[str]:
    """Every project that a command named, that serves, or that has traces."""
    from storage.overview import known_projects

    return sorted({*without_traces(home), *known_projects(home)})


def without_traces(home: Home) -> list[str]:
    """Likewise without a look into the store: one that was only imported is not among them."""
    from flywheel.known import known
    from serving.routing import read

    return sorted({*known(home), *read(home).projects})
