"""What the frame itself shows of a home: its projects."""

from flywheel.home import Home


def projects(home: Home) -> list[str]:
    """Every project that a command named, that serves, or that has traces."""
    from flywheel.known import known
    from serving.routing import read
    from storage.overview import known_projects

    return sorted({*known(home), *read(home).projects, *known_projects(home)})
