"""An estimate's plot: the difference to what was served, with its intervals."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {"replay": "#2563eb", "slice": "#6b7280", "logged": "#2f9e6e"}


def plot(report: dict[str, Any]) -> "Figure":
    """By replay, slice by slice, and by logged choices."""
    from matplotlib.figure import Figure

    replay, logged = report["replay"], report["logged"]
    rows = [("replay", "replay", replay["overall"], replay["compared"])]
    if len(replay["slices"]) > 1:
        rows += [("slice", one["name"][:40], one, one["problems"]) for one in replay["slices"][:20]]
    rows.append(("logged", "logged choices", logged, logged["answers"]))
    figure = Figure(figsize=(7, 1.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, (kind, _, one, _) in enumerate(rows):
        if one["difference"] is None:
            axes.text(0, place, " cannot tell", va="center", color=_COLORS["slice"], fontsize=8)
        elif one["low"] is None:
            axes.plot([one["difference"]], [place], "o", mfc="none", color=_COLORS[kind])
        else:
            ends = [[one["difference"] - one["low"]], [one["high"] - one["difference"]]]
            axes.errorbar([one["difference"]], [place], xerr=ends, fmt="o", capsize=3,
                          color=_COLORS[kind])  # fmt: skip
    axes.axvline(0, color="#d1d5db", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{name} ({count})" for _, name, _, count in rows])
    axes.invert_yaxis()
    axes.set(
        xlabel=f"reward less {report['champion']}'s",
        title=f"{report['candidate']} on recent traffic: {report['verdict']}",
    )
    return figure
