"""The filters of the Traces page: widgets that keep their values, and links that set them.

Leaves `browse.Filters`. A link's query parameters stand in until the person chooses otherwise.
"""

import datetime as dt
from typing import Any, Literal

from app.views import kept
from app.views.frame import Shown
from app.views.traces_data import lately
from storage import browse

_FIELDS = ("origins", "models", "fidelity", "finish", "slices")
_ANY = "any"
_WHETHER = {"feedback": "Feedback given", "liked": "Feedback was mostly yes",
            "reviewed": "Reviewed", "failed": "A call failed"}  # fmt: skip
LONGEST_SEARCH = 300
RECORDED = ("production", "import", "demonstration")
"""Origins shown at first: what people did, not what turns sampled and compared."""
_KEPT: Literal["session"] = "session"
"""Filters stand while one trace is looked at."""


def search_box() -> str:
    import streamlit as st

    _seed("traces:text", st.query_params.get("q", "")[:LONGEST_SEARCH])
    text = st.text_input(
        "Search", key="traces:text", persist_state=_KEPT, max_chars=LONGEST_SEARCH,
        icon=":material/search:",
        placeholder='Words that were said; "in quotes" for a phrase',
        help="Every word must occur; the last may be a beginning. System prompts are not searched.",
    )  # fmt: skip
    return text or ""


def filters(here: Shown) -> browse.Filters:
    import streamlit as st

    known = lately(
        here.home, kept.sequence(here.home), lambda: browse.choices(here.home, here.project),
        "choices", here.project,
    )  # fmt: skip
    given = _asked()
    with_made = _with_made()
    with st.expander("Filters", expanded=bool(given), icon=":material/filter_list:"):
        first = st.columns(len(_FIELDS))
        chosen = [
            tuple(_several(column, name, known.get(name, []), given))
            for name, column in zip(_FIELDS, first, strict=True)
        ]
        second = st.columns(len(_WHETHER) + 1)
        yes_no = [
            _whether(column, name, label, given)
            for column, (name, label) in zip(second, _WHETHER.items(), strict=False)
        ]
        reward = _reward(second[-1], given)
        third = st.columns(5)
        since, until = _between(third[0], given)
        with third[1]:
            least = st.number_input(
                "Output tokens from", 0, None, None, key="traces:least", persist_state=_KEPT
            )
        with third[2]:
            most = st.number_input("to", 0, None, None, key="traces:most", persist_state=_KEPT)
        user, conversation = (
            _exactly(column, name, given)
            for column, name in zip(third[3:], ("user", "conversation"), strict=True)
        )
        with st.container(horizontal=True):
            st.button("Clear filters", on_click=_clear, icon=":material/filter_list_off:")
    return browse.Filters(
        since=since, until=until, user=user, conversation=conversation,
        ungraded=reward == "ungraded", reward=_REWARDS.get(reward),
        tokens=None if least is None and most is None else (least or 0, most or 2**62),
        origins=chosen[0] or (() if with_made else RECORDED), models=chosen[1],
        fidelity=chosen[2], finish=chosen[3], slices=chosen[4],
        feedback=yes_no[0], liked=yes_no[1], reviewed=yes_no[2], failed=yes_no[3],
    )  # fmt: skip


_REWARDS: dict[str, tuple[float, float]] = {
    "0": (-1e300, 0.0), "up to 0.5": (-1e300, 0.5), "above 0.5": (0.500001, 1e300),
    "1": (1.0, 1e300),
}  # fmt: skip


def _with_made() -> bool:
    import streamlit as st

    return st.toggle(
        "Rollouts and evaluations too", key="traces:made", persist_state=_KEPT,
        help="What turns sampled to learn from, and to compare. *Origin* in the filters, where "
        "something is chosen, goes before this.",
    )  # fmt: skip


def _several(column: Any, name: str, options: list[str], given: dict[str, str]) -> list[str]:
    import streamlit as st

    labels = {"origins": "Origin", "models": "Deployment or model", "fidelity": "Fidelity",
              "finish": "Ended by", "slices": "Slice of its problem"}  # fmt: skip
    key = f"traces:{name}"
    _seed(key, [given[name]] if name in given else [])
    # What stands chosen stays an option, even where the last trace of it is gone.
    there = list(dict.fromkeys([*options, *st.session_state[key]]))
    with column:
        return st.multiselect(labels[name], there, key=key, persist_state=_KEPT, format_func=short)


def _whether(column: Any, name: str, label: str, given: dict[str, str]) -> bool | None:
    import streamlit as st

    key = f"traces:{name}"
    _seed(key, {"1": "yes", "0": "no"}.get(given.get(name, ""), _ANY))
    with column:
        said = st.selectbox(label, (_ANY, "yes", "no"), key=key, persist_state=_KEPT)
    return None if said == _ANY else said == "yes"


def _reward(column: Any, given: dict[str, str]) -> str:
    import streamlit as st

    options = (_ANY, "ungraded", *_REWARDS)
    _seed("traces:reward", given["reward"] if given.get("reward") in options else _ANY)
    with column:
        return str(st.selectbox("Reward", options, key="traces:reward", persist_state=_KEPT))


def _between(column: Any, given: dict[str, str]) -> tuple[int | None, int | None]:
    import streamlit as st

    with column:
        _seed("traces:days", ())
        days = st.date_input("Started on (from, to)", key="traces:days", persist_state=_KEPT)
    chosen = [one for one in (days if isinstance(days, tuple) else (days,)) if one is not None]
    if not chosen:
        return _number(given.get("since")), _number(given.get("until"))
    start, end = min(chosen), max(chosen)
    return _start_of(start), _start_of(end + dt.timedelta(days=1))


def _exactly(column: Any, name: str, given: dict[str, str]) -> str | None:
    import streamlit as st

    _seed(f"traces:{name}", given.get(name, ""))
    with column:
        return (
            st.text_input(
                name.capitalize(), key=f"traces:{name}", persist_state=_KEPT, max_chars=500
            )
            or None
        )


def _asked() -> dict[str, str]:
    """What a link asked to be filtered by; of the names that filters have."""
    import streamlit as st

    names = ("origins", "models", "fidelity", "finish", "slices", *_WHETHER, "reward", "user",
             "conversation", "since", "until")  # fmt: skip
    return {name: st.query_params[name][:500] for name in names if name in st.query_params}


def _clear() -> None:
    import streamlit as st

    for key in [key for key in st.session_state if str(key).startswith("traces:")]:
        del st.session_state[key]
    for name in list(_asked()):
        del st.query_params[name]
    st.query_params.pop("q", None)


def _seed(key: str, value: Any) -> None:
    import streamlit as st

    if key not in st.session_state:
        st.session_state[key] = value


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() and len(value) < 20 else None


def _start_of(day: dt.date) -> int:
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp()) * 10**9


def short(value: str, longest: int = 60) -> str:
    """One line of `value`."""
    line = " ".join(value[: longest * 4].split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
