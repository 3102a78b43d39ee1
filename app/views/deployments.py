"""Deployments: who answers and on which evidence, what may be promoted, and every decision made.

What changes what serves is in `deployments_acts`, the ledger in `deployments_ledger`.
"""

from typing import Any

from app.views import kept
from app.views.charting import interval
from app.views.deployments_acts import offer_canary_end, offer_promotion, offer_rollback, under_way
from app.views.deployments_charts import evidence
from app.views.deployments_data import Version, decided, versions
from app.views.deployments_ledger import history, ledger
from app.views.deployments_release import release
from app.views.frame import Shown, empty, plain, shown, when
from app.views.ledger_data import turns
from app.views.words import decimal, heading, many, seconds


def view() -> None:
    import streamlit as st

    here = shown()
    heading("Deployments", here.project)
    if not here.project:
        empty("Nothing is deployed yet. `flywheel init FOLDER` begins a project.")
        return
    known = kept.ledger(here.home, here.project)
    found = versions(
        here.home, here.project, known, turns(known), kept.glance(here.home, here.project, None)
    )
    under_way(here)
    if not found:
        empty(
            "No version yet. `flywheel serve FOLDER` serves the base model as version 0; the first "
            "turn that trains registers version 1."
        )
        return
    if here.folder is None:
        st.info(
            "Nothing can be promoted or rolled back from here: this home does not know where the "
            "project's folder is. Run any command that names it here once, such as "
            "`flywheel serve FOLDER`.",
            icon=":material/folder_off:",
        )
    _standing(here, found)
    _candidates(here, found)
    history(known)
    ledger(known)


def _standing(here: Shown, found: list[Version]) -> None:
    import streamlit as st

    by_part = {one.part: one for one in found}
    champion, previous = by_part.get("champion"), by_part.get("previous")
    challenger = by_part.get("challenger")
    with st.container(horizontal=True):
        for one in (champion, challenger, previous):
            if one is not None:
                _card(one)
    if champion is None:
        st.info("Nothing is routed yet: `flywheel serve FOLDER` begins with the base model.")
        return
    if challenger is not None:
        offer_canary_end(here, champion, challenger)
    release(here)
    if previous is not None:
        offer_rollback(here, champion, previous)


def _card(one: Version) -> None:
    import streamlit as st

    with st.container(border=True, width=330, height="stretch", gap="small"):
        share = f" · {one.share:.0%} of requests" if one.share else ""
        st.caption(f"{one.part.capitalize()}{share}")
        st.markdown(f"##### {plain(one.name)}")
        if one.since is not None and one.part == "champion":
            st.caption(f"since {when(one.since)} UTC")
        st.markdown("  \n".join(plain(line) for line in _evidence(one)))


def _evidence(one: Version) -> list[str]:
    told = []
    if one.number == 0:
        told.append("The base model as it is.")
    if one.evaluation is not None:
        overall = one.evaluation.overall
        told.append(
            f"Held out: {decimal(overall.candidate)} against {decimal(overall.champion)} of "
            f"{one.evaluation.champion}, difference {decimal(overall.difference, sign=True)} "
            f"({decimal(overall.low, sign=True)} to {decimal(overall.high, sign=True)}), "
            f"{many(overall.problems, 'problem')}"
        )
    if one.traffic is not None:
        live = one.traffic
        low, high = interval(live.reward, live.graded, live.spread)
        told.append(
            f"Traffic: {many(live.traces, 'trace')}, mean reward {decimal(live.reward)} "
            f"({decimal(low)} to {decimal(high)}) over {live.graded:,} graded, "
            f"median {seconds(live.seconds)}"
        )
    else:
        told.append("No recorded traffic.")
    if one.estimate is not None:
        told.append(f"Estimated on recent traffic: {one.estimate.reason}")
    if one.last is not None:
        what = decided(one)
        told.append(f"{what[0].upper()}{what[1:]}: {one.last.reason}")
    return told


def _candidates(here: Shown, found: list[Version]) -> None:
    import streamlit as st

    st.subheader("Versions", anchor=False)
    chart = evidence(found[:20])
    if chart is not None:
        st.altair_chart(chart, width="stretch")
    st.dataframe(
        [_row(one) for one in found],
        hide_index=True, placeholder="–",
        width="stretch",
        column_config=_columns(),
    )  # fmt: skip
    offer_promotion(here, found)


_NUMBERS = {
    "champion's reward": ("%.3f", "Mean held-out reward of the version in *against*"),
    "own reward": ("%.3f", "Mean held-out reward of this version on the same problems"),
    "difference": ("%+.3f", "Own reward less the champion's: above 0 it is better"),
    "at least": ("%+.3f", "Lower end of the difference's interval: above 0 it is surely better"),
    "at most": ("%+.3f", "Upper end of the difference's interval"),
    "live reward": ("%.3f", "Mean reward of the recorded requests that it answered"),
}
"""Column -> its format, what it says."""
_WORDS = {
    "part": "What it does now: the champion answers, the challenger answers a canary's share, the "
    "previous one can be rolled back to; waiting: for a person's yes; candidate: never answered; "
    "replaced: did answer",
    "against": "The champion of its time, which it was compared with",
    "problems": "Held-out problems that both answered",
    "live traces": "Recorded requests that it answered",
    "estimated": "What `flywheel estimate` said of it on recent traffic, beside what was served",
    "decided last": "The latest decision of it, and who or what made it",
}


def _columns() -> dict[str, Any]:
    import streamlit as st

    numbers = {
        name: st.column_config.NumberColumn(format=form, help=told)
        for name, (form, told) in _NUMBERS.items()
    }
    return numbers | {name: st.column_config.Column(help=told) for name, told in _WORDS.items()}


def _row(one: Version) -> dict[str, object]:
    overall = one.evaluation.overall if one.evaluation else None
    return {
        "version": one.name,
        "part": one.part,
        "turn": one.turn.label if one.turn else None,
        "against": one.evaluation.champion if one.evaluation else None,
        "champion's reward": overall.champion if overall else None,
        "own reward": overall.candidate if overall else None,
        "difference": overall.difference if overall else None,
        "at least": overall.low if overall else None,
        "at most": overall.high if overall else None,
        "problems": overall.problems if overall else None,
        "live reward": one.traffic.reward if one.traffic else None,
        "live traces": one.traffic.traces if one.traffic else 0,
        "estimated": one.estimate.evidence.get("verdict") if one.estimate else None,
        "decided last": decided(one) or None,
        "reason": one.last.reason if one.last else None,
    }
