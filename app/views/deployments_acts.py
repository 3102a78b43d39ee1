"""What changes what serves: promote, canary share, roll back.

Each asks first, acts once by a one-time token, runs as a `flywheel` command that outlives the page,
and is followed here until it ended. The role is asked for when it acts, not when it is drawn.
"""

import time
from typing import Any

from app.views.acting import Action, actions, confirm, start_command
from app.views.deployments_data import Version, command, of_promotion, of_release, of_rollback
from app.views.frame import Shown, link, plain
from app.views.words import ago, seconds

_SHOWN = 8
"""Actions listed, the newest."""
_TAIL = 12
"""Lines of a running command's output."""
_STATES = {
    "running": ":blue[:material/progress_activity:]",
    "done": ":green[:material/check_circle:]",
    "refused": ":orange[:material/block:]",
    "failed": ":red[:material/error:]",
    "lost": ":red[:material/help:]",
}


def under_way(here: Shown) -> None:
    """What people began from the dashboard, followed while any of it runs."""
    import streamlit as st

    running = sorted(one.begun.token for one in _mine(here) if one.state == "running")

    @st.fragment(run_every=1.5 if running else None)
    def follow() -> None:
        mine = _mine(here)
        if running != sorted(one.begun.token for one in mine if one.state == "running"):
            st.rerun()
        if mine:
            with st.expander("Actions", expanded=bool(running) or _fresh(mine[0])):
                for one in mine[:_SHOWN]:
                    _action(one)

    follow()


def _mine(here: Shown) -> list[Action]:
    return [one for one in actions(here.home)
            if one.begun.project == here.project and one.begun.arguments]  # fmt: skip


def _fresh(action: Action) -> bool:
    return time.time_ns() - (action.ended or action.begun.at) < 120 * 10**9


def _action(one: Action) -> None:
    import streamlit as st

    took = (one.ended - one.begun.at) / 1e9 if one.ended else None
    spent = (time.time_ns() - one.begun.at) / 1e9
    told = f"{one.state}, after {seconds(spent if took is None else took)}"
    st.markdown(f"{_STATES[one.state]} **{plain(one.begun.what)}** by {plain(one.begun.by)}, "
                f"{ago(one.begun.at)}: {plain(told)}")  # fmt: skip
    if one.state == "running" and one.output is not None:
        text = one.output.read_text(errors="replace").strip()
        st.code("\n".join(text.splitlines()[-_TAIL:]) or "starting …", language=None)
    elif one.words:
        st.text(one.words)


def offer_rollback(here: Shown, champion: Version, previous: Version) -> None:
    import streamlit as st

    if here.folder is None:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        reason = st.text_input(
            "Why roll back?", key=f"rollback_reason:{champion.name}", max_chars=500, width=420,
            placeholder="it stands in the ledger",
        )  # fmt: skip
        _offer(
            here,
            f"rollback:{champion.name}:{previous.name}",
            f"Roll back to {previous.name}",
            of_rollback(champion.name, previous.name),
            "rollback",
            reason,
            shortcut="b",
        )


def offer_canary_end(here: Shown, champion: Version, challenger: Version) -> None:
    _offer(
        here,
        f"canary:{challenger.name}:0",
        f"Take {challenger.name} out",
        of_release(challenger.name, champion.name, 0.0),
        "release",
        options={"version": str(challenger.number), "end": ""},
    )


def offer_promotion(here: Shown, found: list[Version]) -> None:
    """The choice of a version, and what may be done with it."""
    import streamlit as st

    champion = next((one for one in found if one.part == "champion"), None)
    able = [one for one in found if one.number > 0 and one.part != "champion"]
    if champion is None or not able:
        st.caption("No other version that could be promoted; the next turn may bring one.")
        return
    if here.folder is None:
        return
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = _chosen(here, able)
            reason = st.text_input(
                "Why?", key=f"promote_reason:{chosen.name}", max_chars=500, width=420,
                placeholder="optional; it stands in the ledger",
            )  # fmt: skip
        if chosen.turn is not None:
            link("runs", f"See its answers beside {champion.name}'s →", run=chosen.turn.run_id)
        _offer(
            here,
            f"promote:{champion.name}:{chosen.name}",
            f"Promote {chosen.name}",
            of_promotion(chosen, champion.name),
            "promote",
            reason,
            {"version": str(chosen.number)},
            shortcut="p",
        )
        _offer_canary(here, champion, chosen, reason)


def _offer_canary(here: Shown, champion: Version, chosen: Version, reason: str) -> None:
    import streamlit as st

    runs = chosen.part == "challenger"
    now = round(100 * (chosen.share or 0)) if runs else 0
    with st.container(horizontal=True, vertical_alignment="bottom"):
        percent = st.slider(
            "Canary share of the requests", 1, 50, min(50, now) or 10, format="%d%%",
            key=f"canary_share:{chosen.name}", width=420,
        )  # fmt: skip
        _offer(
            here,
            f"canary:{champion.name}:{chosen.name}",
            "Change its share" if runs else f"Let {chosen.name} answer a share",
            of_release(chosen.name, champion.name, percent / 100),
            "release",
            reason,
            {"version": str(chosen.number), "canary": f"{percent}%"},
        )


def _chosen(here: Shown, able: list[Version]) -> Version:
    import streamlit as st

    by_name = {one.name: one for one in able}
    asked = f"{here.project}-v{st.query_params.get('version', '')}"
    waiting = next((one.name for one in able if one.part == "waiting"), able[0].name)
    names = list(by_name)
    name = st.selectbox(
        "Version", names, index=names.index(asked if asked in by_name else waiting),
        format_func=lambda one: f"{one} ({by_name[one].part})", key="promote_version", width=260,
    )  # fmt: skip
    return by_name[name]


def _offer(
    here: Shown,
    key: str,
    label: str,
    question: str,
    what: str,
    reason: str = "",
    options: dict[str, str] | None = None,
    **button: Any,
) -> None:
    """One action: a `flywheel` command on the project's folder, once."""
    if here.folder is None:
        return  # `view` says why
    arguments = command(what, str(here.folder), here.person.name, reason, **(options or {}))

    def act() -> str:
        return start_command(here.home, here.person, arguments)

    confirm(key, label, question=question, role="promoter", act=act, **button)
