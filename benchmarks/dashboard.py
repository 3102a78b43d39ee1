"""The dashboard over 10k, 100k and 1M traces: first view and reruns, beside what one would write.

Ours are the real pages, run by Streamlit's own test runner: Overview, Traces with filters and
search, one trace, Review. The peers answer the same questions over a Parquet export of the same
traces: polars scanning it at each rerun, and pandas holding it in memory, as a Streamlit app that
caches a frame does. All in one run, each page and peer in a process of its own.

The first 10,000 traces come in by the inbox and the committer; larger stores are those rows
multiplied inside DuckDB under new ids, times and words, and their cards built by a commit.

    python benchmarks/dashboard.py [--json] [--rows 10000 100000 1000000] [--folder DIR]
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORDS = str.split(
    "the order was shipped on monday from our warehouse and should arrive within two working days "
    "please check the tracking page if nothing moves call support we can refund the express fee"
)
BASE = 10_000
SEARCH = "refund tracking"
STEP_NS = 37 * 10**9


# --- stores ---------------------------------------------------------------------------------------


def record(number: int) -> list[Any]:
    """One support conversation with a tool call, its grade, and now and then feedback."""
    from flywheel import records as r

    dice = random.Random(number)

    def text(words: int) -> str:
        return " ".join(dice.choice(WORDS) for _ in range(words))

    at = 1_764_000_000_000_000_000 + number * STEP_NS
    ids = tuple(dice.randrange(30_000) for _ in range(40))
    tokens = r.Tokens(prompt_ids=tuple(range(200)), completion_ids=ids,
                      policy_versions=("bench-v1",),
                      logprobs=tuple(-dice.random() for _ in ids))  # fmt: skip
    call = r.ModelCall(
        input=(
            r.say("system", "You are a support agent. " + "the rules are these " * 20),
            r.say("user", f"where is my order A{number:07d} {text(30)}"),
            r.Message(role="assistant", parts=(
                r.ToolCall(name="get_order", arguments=f'{{"id": {number}}}', id="c"),)),
            r.Message(role="tool", parts=(r.ToolResult(content=text(14), id="c"),)),
        ),
        choices=(r.Choice(message=r.say("assistant", text(32)), tokens=tokens,
                          finish_reason=dice.choice(["stop"] * 9 + ["length"])),),
        tools=(), model="support", deployment=f"bench-v{dice.randrange(3)}",
        usage=r.Usage(input_tokens=200, output_tokens=40),
    )  # fmt: skip
    external = f"conversation-{number}"
    span = r.Span(id=f"response-{number}", kind="model", start=at, end=at + 10**9, call=call)
    one = r.Trace(
        id=r.trace_id("bench", "gateway", external), project="bench", source="gateway",
        external_id=external, origin="production", conversation=external, spans=(span,),
        user=f"user-{number % 997}",
    )  # fmt: skip
    value = None if dice.random() < 0.2 else float(dice.random() < 0.6)
    found: list[Any] = [
        one,
        r.Grade(trace_id=one.id, reward="correct", value=value, grader="g", at=at),
    ]
    if dice.random() < 0.4:
        said = {"value": dice.random() < 0.7, "kind": "boolean", "by": "crm", "at": at}
        found.append(r.Feedback(project="bench", target=external, target_kind="conversation",
                                **said))  # fmt: skip
    return found


def build(folder: Path, rows: int) -> dict[str, float]:
    """A store of `rows` traces with its cards and its search index; CPU seconds of each step."""
    from flywheel.home import Home
    from storage import search
    from storage.committer import commit
    from storage.inbox import Inbox

    home, took = Home(folder), {}
    clock = time.process_time()
    for start in range(0, BASE, 2000):
        Inbox(home).append([x for number in range(start, start + 2000) for x in record(number)])
    commit(home)
    took["commit_10000"] = time.process_time() - clock
    if rows > BASE:
        multiply(home.database, rows // BASE)
        clock = time.process_time()
        Inbox(home).append(record(10**7))
        commit(home)  # there are no cards: all are made
        took["cards"] = time.process_time() - clock
    clock = time.process_time()
    search.advance(home, "bench", batches=10**6)
    took["search_index"] = time.process_time() - clock
    took["store_mb"] = home.database.stat().st_size / 1e6
    took["search_mb"] = (home.root / "search" / "bench.sqlite").stat().st_size / 1e6
    return {name: round(value, 2) for name, value in took.items()}


def multiply(file: Path, times: int) -> None:
    import duckdb

    database = duckdb.connect(file, config={"threads": 2, "memory_limit": "4GB"})

    def name(column: str) -> str:
        return f"md5({column} || '-{{k}}')"

    def names(column: str) -> str:
        return f"list_transform({column}, lambda x: md5(x || '-{{k}}'))"

    later = f"{{k}} * {STEP_NS * BASE}"
    times_of = {"started": f"started + {later}", "ended": f"ended + {later}"}
    since = {"since": "since + {k} * 100"}
    tables: dict[str, dict[str, str]] = {
        "traces": {"id": name("id"), "external_id": "external_id || '-{k}'",
                   "conversation": "conversation || '-{k}'", "digest": name("digest"),
                   "content": name("content"), **times_of, **since},
        "spans": {"id": "id || '-{k}'", "trace_id": name("trace_id"), "input": names("input"),
                  "output": names("output"), **times_of, **since},
        "tokens": {"trace_id": name("trace_id"), "span_id": "span_id || '-{k}'", **since},
        "messages": {"id": name("id"), "body": "replace(body, 'A0', 'A{k}x0')",
                     "key": f"('0x' || left({name('id')}, 15))::BIGINT"},
        "grades": {"id": name("id"), "trace_id": name("trace_id"), **since},
        "feedback": {"id": name("id"), "target": "target || '-{k}'", **since},
    }  # fmt: skip
    for table, changed in tables.items():
        replaced = ", ".join(f"{value} AS {column}" for column, value in changed.items())
        database.execute(f"CREATE TEMP TABLE base AS SELECT * FROM {table}")
        for k in range(1, times):
            these = replaced.replace("{k}", str(k))
            database.execute(f"INSERT INTO {table} SELECT * REPLACE ({these}) FROM base")
        database.execute("DROP TABLE base")
    database.execute(f"INSERT INTO segments VALUES ('multiplied', {times * 100}, 0, 0)")
    database.execute("DELETE FROM cards")
    database.close()


def export(folder: Path, file: Path) -> None:
    """What a peer has: a row a trace, with the words that may be searched."""
    import duckdb

    with duckdb.connect(folder / "flywheel.duckdb", read_only=True) as database:
        database.execute(
            "COPY (SELECT cards.trace_id, cards.started, cards.deployment, reward, liked, user_id, "
            "cards.conversation, finish, cards.output_tokens, asked.body AS question, "
            "said.body AS answer FROM cards JOIN spans ON spans.trace_id = cards.trace_id "
            "JOIN messages AS asked ON asked.id = input[2] "
            f"JOIN messages AS said ON said.id = output[1]) TO '{file}' (FORMAT parquet)"
        )


# --- pages, each in a process of its own ----------------------------------------------------------


def took(work: Callable[[], Any]) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {"cpu_s": round(time.process_time() - cpu, 3),
            "wall_s": round(time.perf_counter() - wall, 3)}  # fmt: skip


def ours(folder: Path, _: Path) -> dict[str, Any]:
    from streamlit.testing.v1 import AppTest

    def page(view: str) -> AppTest:
        return AppTest.from_string(
            "from pathlib import Path\nfrom app.people import Person\nfrom app.views import frame\n"
            f"from app.views import {view}\nfrom flywheel.home import Home\n"
            f"frame.show(frame.Shown(Home(Path({str(folder)!r})), 'bench', None, "
            f"Person('ann', 'promoter')))\n{view}.view()\n",
            default_timeout=300,
        )

    def run(shown: AppTest) -> None:
        shown.run()
        if shown.exception:
            raise RuntimeError(shown.exception[0].message)

    found: dict[str, Any] = {}
    traces, overview, review = page("traces"), page("overview"), page("review")
    found["traces_first"] = took(lambda: run(traces))
    found["traces_rerun"] = took(lambda: run(traces))
    traces.selectbox(key="traces:reward").set_value("up to 0.5")
    traces.multiselect(key="traces:models").set_value(["bench-v1"])
    found["traces_filter"] = took(lambda: run(traces))
    traces.text_input(key="traces:text").set_value(SEARCH)
    found["traces_filter_and_search"] = took(lambda: run(traces))
    traces.selectbox(key="traces:reward").set_value("any")
    traces.multiselect(key="traces:models").set_value([])
    found["traces_search"] = took(lambda: run(traces))
    traces.button(key="traces:on").click()
    found["traces_next_page"] = took(lambda: run(traces))
    for name, place in (("one_trace_first", 4_000), ("another_trace", 3_000)):
        traces.query_params["trace"] = _some_trace(folder, place)
        found[name] = took(lambda: run(traces))
    found["overview_first"] = took(lambda: run(overview))
    overview.segmented_control[0].set_value("All")
    found["overview_charts_first"] = took(lambda: run(overview))
    found["overview_rerun"] = took(lambda: run(overview))
    found["review_first"] = took(lambda: run(review))
    found["review_rerun"] = took(lambda: run(review))
    del traces.query_params["trace"]
    run(traces)
    traces.text_input(key="traces:text").set_value(SEARCH)
    _one_more(folder)
    for name, shown in (("traces", traces), ("overview", overview), ("review", review)):
        found[f"{name}_after_a_commit"] = took(lambda shown=shown: run(shown))
    return found


def _one_more(folder: Path) -> None:
    """Something came in: nothing that pages kept is of use."""
    from flywheel.home import Home
    from storage.committer import commit
    from storage.inbox import Inbox

    Inbox(Home(folder)).append(record(10**7 + 1))
    commit(Home(folder))


def answers(folder: Path, _: Path) -> dict[str, Any]:
    """Ours without the page: what the peers' answers are to be read beside."""
    from app.views.traces_data import listed
    from flywheel.home import Home
    from storage.browse import Filters

    home, few = Home(folder), Filters(reward=(-1.0, 0.5), models=("bench-v1",))

    def ask(filters: Any = Filters(), text: str = "") -> dict[str, float]:  # noqa: B008
        return took(lambda: listed(home, "bench", filters, text, 0))

    return {
        "traces_first": ask(), "traces_rerun": ask(), "traces_filter": ask(few),
        "traces_search": ask(text=SEARCH), "traces_filter_and_search": ask(few, SEARCH),
    }  # fmt: skip


def _some_trace(folder: Path, place: int) -> str:
    from flywheel.home import Home
    from storage.browse import page

    return page(Home(folder), "bench", offset=place, limit=1).cards[0].trace_id


def polars(_: Path, file: Path) -> dict[str, Any]:
    import polars as pl

    def ask(*conditions: Any) -> None:
        frame = pl.scan_parquet(file).filter(*conditions) if conditions else pl.scan_parquet(file)
        frame.select("trace_id", "started", "reward", "deployment", "question", "answer").sort(
            "started", descending=True
        ).head(50).collect()
        frame.select(pl.len()).collect()

    few = (pl.col("reward") <= 0.5, pl.col("deployment") == "bench-v1")
    said = (pl.col("question"), pl.col("answer"))
    words = [said[0].str.contains(word, literal=True) | said[1].str.contains(word, literal=True)
             for word in SEARCH.split()]  # fmt: skip
    return {
        "traces_first": took(ask), "traces_rerun": took(ask),
        "traces_filter": took(lambda: ask(*few)), "traces_search": took(lambda: ask(*words)),
        "traces_filter_and_search": took(lambda: ask(*few, *words)),
    }  # fmt: skip


def pandas(_: Path, file: Path) -> dict[str, Any]:
    import pandas as pd

    held: dict[str, Any] = {}

    def ask(*conditions: Callable[[Any], Any]) -> None:
        frame = held["frame"]
        for condition in conditions:
            frame = frame[condition(frame)]
        frame.sort_values("started", ascending=False).head(50)

    def first() -> None:
        held["frame"] = pd.read_parquet(file)
        ask()

    few = (lambda f: f["reward"] <= 0.5, lambda f: f["deployment"] == "bench-v1")

    def has(word: str) -> Callable[[Any], Any]:
        return lambda f: (f["question"].str.contains(word, regex=False)
                          | f["answer"].str.contains(word, regex=False))  # fmt: skip

    words = [has(word) for word in SEARCH.split()]
    return {
        "traces_first": took(first), "traces_rerun": took(ask),
        "traces_filter": took(lambda: ask(*few)), "traces_search": took(lambda: ask(*words)),
        "traces_filter_and_search": took(lambda: ask(*few, *words)),
    }  # fmt: skip


TARGETS = {"ours": ours, "answers": answers, "polars": polars, "pandas": pandas}
GOAL_S = 0.3


def measure(step: str, folder: Path, rows: int) -> Any:
    command = [sys.executable, __file__, "--step", step, "--at", str(folder), "--rows", str(rows)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{step} at {rows}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def step(name: str, folder: Path, rows: int) -> Any:
    home, file = folder / f"home-{rows}", folder / f"{rows}.parquet"
    if name == "build":
        found: Any = build(home, rows)
        export(home, file)
        return found
    found = TARGETS[name](home, file)
    return {**found, "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def bench(folder: Path, sizes: list[int]) -> dict[str, Any]:
    stores, views = {}, []
    for rows in sizes:
        stores[str(rows)] = measure("build", folder, rows)
        print(f"{rows:>8} built: {stores[str(rows)]}", file=sys.stderr)
        for target in TARGETS:
            found = measure(target, folder, rows)
            peak = found.pop("peak_mb")
            for view, seconds in found.items():
                views.append({"target": target, "rows": rows, "view": view, **seconds})
                print(f"{rows:>8} {target:7} {view:26} {seconds['cpu_s']:7.3f} CPU s "
                      f"{seconds['wall_s']:7.3f} s", file=sys.stderr)  # fmt: skip
            print(f"{rows:>8} {target:7} peak {peak} MB", file=sys.stderr)
            stores[str(rows)][f"{target}_peak_mb"] = peak
    return {"benchmark": "dashboard", "stores": stores, "views": views,
            "ratios": ratios(views, max(sizes))}  # fmt: skip


def ratios(views: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    cpu = {(x["target"], x["view"]): x["cpu_s"] for x in views if x["rows"] == rows}
    reruns = [value for (target, view), value in cpu.items()
              if target == "ours" and not view.endswith(("_first", "_commit"))]  # fmt: skip
    found: dict[str, Any] = {"slowest_rerun_cpu_s": max(reruns), "goal_cpu_s": GOAL_S}
    for peer in ("polars", "pandas"):
        for view in ("traces_filter", "traces_search", "traces_filter_and_search"):
            found[f"{peer}_over_answers_{view}"] = round(cpu[peer, view] / cpu["answers", view], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary one by default")
    parser.add_argument("--step", choices=["build", *TARGETS], help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(step(options.step, options.at, options.rows[0])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = bench(folder, sorted(options.rows))
    for name, value in found["ratios"].items():
        print(f"{name:42} {value}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
