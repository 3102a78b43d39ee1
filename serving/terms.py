"""What each project's file says to the gateway. A reload replaces it whole; a request that was let
in keeps what it was let in by.
"""

from collections.abc import Iterable, Mapping

from flywheel.data_section import PrivacySection
from flywheel.project import Project
from flywheel.records import Record
from flywheel.serving_section import (
    CaptureSection,
    LimitsSection,
    PriceSection,
    ProviderSection,
    ReleaseSection,
    ServingSection,
)


class ProjectTerms(Record, frozen=True, kw_only=True):
    serving: ServingSection = ServingSection()
    capture: CaptureSection = CaptureSection()
    privacy: PrivacySection = PrivacySection()
    limits: LimitsSection = LimitsSection()
    release: ReleaseSection = ReleaseSection()
    providers: Mapping[str, ProviderSection] = {}
    prices: Mapping[str, PriceSection] = {}


_USUAL = ProjectTerms()


def terms_of(project: Project) -> ProjectTerms:
    return ProjectTerms(
        serving=project.serving,
        capture=project.capture,
        privacy=project.privacy,
        limits=project.limits,
        release=project.release,
        providers=dict(project.providers),
        prices=dict(project.prices),
    )


class Terms:
    """`of` is what requests ask; `replace` is the reload's. `version` grows with each."""

    def __init__(self, projects: Iterable[Project] = ()) -> None:
        self.version = 0
        self._by_name = {project.name: terms_of(project) for project in projects}

    def of(self, project: str) -> ProjectTerms:
        """Of one that has none: every default."""
        return self._by_name.get(project, _USUAL)

    def replace(self, projects: Iterable[Project]) -> None:
        self._by_name = {project.name: terms_of(project) for project in projects}
        self.version += 1
