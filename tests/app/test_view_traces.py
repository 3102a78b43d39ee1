"""The Traces page: lists, filters, search, one trace; whatever is in it stays text."""

import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.views import safe_html, traces_data, traces_html
from app.views.traces_data import tree
from app.views.traces_one import TABS
from flywheel.home import Home
from flywheel.records import Choice, Grade, ModelCall, Span, Tokens, Trace, Truncated, say
from tests.app.conftest import SORTING
from tests.app.seeing import page, stored, words
from tests.storage.store_parts import everything, spoken

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> </div></style> **bold** [a](javascript:"
    "alert(3)) \u202egnp.exe \x00\x1b[31m {{7*7}} $x$ :red[r] & &lt; \ud83d \U0001f600"
)
STORED = HOSTILE.replace("\ud83d", "\ufffd")


def traces() -> list[Any]:
    tokens = Tokens(prompt_ids=(1, 2), completion_ids=(3, 4, 5), policy_versions=("shop-v1",),
                    logprobs=(-0.01, -9.0, float("-inf")))  # fmt: skip
    calls = Span(
        id="wide", kind="model", start=5, end=9, error=HOSTILE,
        call=ModelCall(input=(say(HOSTILE, HOSTILE),), choices=(
            Choice(message=say("assistant", "first"), finish_reason=HOSTILE, tokens=tokens),
            Choice(message=say("assistant", HOSTILE), finish_reason="stop"),
        )),
    )  # fmt: skip
    found: list[Any] = [
        spoken(f"e{n}", question=f"where is order A{n:03d}", answer="on its way", start=n * 1000)
        for n in range(60)
    ]
    hostile = spoken("hostile", spans=(calls,), user=HOSTILE, conversation=HOSTILE,
                     attributes={"x": HOSTILE})  # fmt: skip
    found += [hostile, everything(), spoken("huge", question="y" * 3_000_000, answer="z", start=1)]
    found += [Grade(trace_id=hostile.id, reward=HOSTILE, value=0.0, reason=HOSTILE)]
    found += [Grade(trace_id=one.id, reward="r", value=float(n % 2)) for n, one in
              enumerate(found[:60])]  # fmt: skip
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    place = Home(tmp_path_factory.mktemp("traces") / "home")
    stored(place, traces())
    return place


def test_an_empty_home_and_an_empty_project_say_what_to_do(tmp_path: Path) -> None:
    place = Home(tmp_path / "home")
    place.root.mkdir()
    assert "flywheel import" in words(page(place, "traces", project=""))
    assert "flywheel serve" in words(page(place, "traces"))


def test_a_page_at_a_time_turned_by_keys(home: Home) -> None:
    shown = page(home, "traces")
    assert "1 to 50 of 63" in words(shown)
    assert len(shown.dataframe[0].value) == 50
    assert shown.dataframe[0].proto.placeholder == "–", "what is unknown, such as a reward"
    shown.button(key="traces:on").click().run()
    assert "51 to 63 of 63" in words(shown)
    shown.button(key="traces:back").click().run()
    assert "1 to 50 of 63" in words(shown)


def test_search_and_filters_combine_and_are_cleared(home: Home) -> None:
    shown = page(home, "traces")
    shown.text_input(key="traces:text").set_value("order A00").run()
    assert "of 10" in words(shown)
    shown.selectbox(key="traces:reward").set_value("1").run()
    assert "1 to 5 of 5" in words(shown)
    table = shown.dataframe[0].value
    assert next(iter(table["asked"])) == "where is order A009" and set(table["reward"]) == {1.0}
    shown.text_input(key="traces:text").set_value('nothing "of the kind*').run()
    assert "Clear filters" in words(shown)
    next(one for one in shown.button if one.label == "Clear filters").click().run()
    assert "of 63" in words(shown)


def test_a_link_sets_filters_and_a_search(home: Home) -> None:
    assert "of 10" in words(page(home, "traces", q="A00"))
    assert "1 to 1 of 1" in words(page(home, "traces", failed="1", user=STORED))
    odd = page(home, "traces", reward="'; DROP", since="abc", origins="\x00", failed="2")
    assert "Nothing fits" in words(odd)


def test_what_turns_made_is_shown_only_where_asked_for(tmp_path: Path) -> None:
    place = Home(tmp_path / "home")
    stored(place, [spoken("r", origin="rollout"), spoken("e", origin="evaluation")])
    told = words(page(place, "traces"))
    assert "No recorded traffic" in told
    people = ("production", "import", "demonstration")
    stored(place, [spoken(one, origin=one, question=f"of {one}") for one in people])
    shown = page(place, "traces")
    assert set(shown.dataframe[0].value["origin"]) == set(people)
    shown.toggle(key="traces:made").set_value(True).run()
    assert "of 5" in words(shown)
    next(one for one in shown.button if one.label == "Clear filters").click().run()
    assert "of 3" in words(shown)
    asked = page(place, "traces", origins="rollout")
    assert set(asked.dataframe[0].value["origin"]) == {"rollout"}, "a link goes before it"


def test_one_trace_by_its_link(home: Home) -> None:
    one = spoken("e7").id
    told = words(page(home, "traces", trace=one))
    for said in (one, "where is order A007", "on its way", "renderable", "ended by: stop"):
        assert said in told, said
    gone = words(page(home, "traces", trace="gone" + STORED))
    assert "erased" in gone


def test_hostile_text_is_only_text(home: Home) -> None:
    hostile = spoken("hostile").id
    inside = ""
    for tab in TABS:
        shown = page(home, "traces", trace=hostile, tab=tab)
        assert not shown.exception
        assert not any(one.proto.unsafe_allow_javascript for one in shown.get("html"))
        inside += "".join(one.proto.body for one in shown.get("html"))
        for one in [*shown.markdown, *shown.caption, *shown.warning, *shown.info]:
            assert "<script" not in one.value and not one.proto.allow_html
    assert "<script" not in inside and "<img" not in inside and "</div></style>" not in inside
    assert "&lt;script&gt;alert(1)" in inside and "\u202e" not in inside and "U+202E" in inside
    tags = set(re.findall(r"<(\w+)", inside))
    assert tags <= {"style", "div", "span", "table", "tr", "th", "td", "i", "p", "mark", "details",
                    "summary"}  # fmt: skip
    assert "token 3\nlogprob" in inside
    listed = page(home, "traces")
    listed.text_input(key="traces:text").set_value("script alert").run()
    assert not listed.exception and len(listed.dataframe[0].value) == 1


def test_a_message_of_three_megabytes_is_cut_with_its_size(home: Home) -> None:
    shown = page(home, "traces", trace=spoken("huge").id)
    sizes = [len(one.proto.body) for one in shown.get("html")]
    assert sum(sizes) < 200_000
    assert "of 3,000,000 characters are not shown" in words(shown)
    every = words(page(home, "traces", trace=everything().id))
    assert "whole has 10,000,000 bytes" in every


def test_a_stored_trace_that_goes_is_told_by_the_open_page(tmp_path: Path) -> None:
    place = Home(tmp_path / "home")
    stored(place, [spoken("a"), spoken("b")])
    shown = page(place, "traces", trace=spoken("a").id)
    assert "on its way" in words(shown)
    from storage.database import writing

    with writing(place, wait_s=5) as database:
        for table, key in (("traces", "id"), ("spans", "trace_id"), ("cards", "trace_id")):
            database.execute(f"DELETE FROM {table} WHERE {key} = ?", [spoken("a").id])
        database.execute("INSERT INTO segments VALUES ('erased', 99, 0, 0)")
    shown.run()
    assert "erased" in words(shown)


def test_pages_never_hold_the_store_from_a_commit(tmp_path: Path) -> None:
    """Situation 31: a page that is open and rerun while the CLI commits."""
    from storage.committer import commit
    from storage.inbox import Inbox
    from storage.queries import counts

    place = Home(tmp_path / "home")
    stored(place, [spoken("a")])
    shown = page(place, "traces")
    stop, failed = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            shown.run()
            if shown.exception:
                failed.append(shown.exception[0].message)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(8):
            Inbox(place).append([spoken(f"n{number}", answer=str(number))])
            commit(place, wait_s=20)
    finally:
        stop.set()
        looking.join()
    assert counts(place, "shop")["traces"] == 9 and not failed
    assert "of 9" in words(shown.run())


def spans(*parents: tuple[str, tuple[str, ...]]) -> Trace:
    made = tuple(Span(id=name, kind="other", parents=above, start=n) for n, (name, above) in
                 enumerate(parents))  # fmt: skip
    return spoken("t", spans=made)


def test_the_span_tree_has_each_span_once_under_its_first_parent() -> None:
    rows = tree(spans(("a", ()), ("b", ("a",)), ("c", ("b", "a")), ("d", ("gone",)), ("e", ("a",))))
    assert [(row.span.id, row.depth) for row in rows] == [
        ("a", 0), ("b", 1), ("c", 2), ("e", 1), ("d", 0),
    ]  # fmt: skip
    assert rows[2].also_under == ("a",) and [row.orphan for row in rows] == [False] * 4 + [True]


def test_circles_and_thousands_of_spans_end() -> None:
    assert {row.span.id for row in tree(spans(("a", ("b",)), ("b", ("a",)), ("c", ("c",))))} == {
        "a", "b", "c",
    }  # fmt: skip
    deep = spans(*((f"s{n}", (f"s{n - 1}",) if n else ()) for n in range(3000)))
    rows = tree(deep)
    assert len(rows) == 500
    assert "2,500 more spans" in traces_html.tree(rows, len(deep.spans))


def test_tokens_are_coloured_by_how_likely_they_were_and_say_their_numbers() -> None:
    of = Tokens(prompt_ids=(), completion_ids=(7, 8), logprobs=(0.0, -3.0))
    shown = traces_html.tokens(of, ["<b>", "x"])
    assert "&lt;b&gt;" in shown and "token 7\nlogprob 0.0000\nprobability 1.0000" in shown
    assert "0.00)" in shown and "probability 0.0498" in shown
    odd = safe_html.token("x", 1, float("nan")) + safe_html.token("", 2, float("-inf"))
    assert odd.count("logprob unknown") == 2
    assert "logprob unknown" in traces_html.tokens(msgspec.structs.replace(of, logprobs=None),
                                                   ["a", "b"])  # fmt: skip


def test_token_texts_come_from_the_base_models_tokenizer() -> None:
    from tokenizers import Tokenizer

    text = "1 2 é日本 <b>"
    ids = Tokenizer.from_file(str(SORTING / "base" / "tokenizer.json")).encode(text).ids
    of = Tokens(prompt_ids=(), completion_ids=tuple(ids))
    pieces, reason = traces_data.pieces(of, SORTING / "base")
    assert "".join(pieces) == text and len(pieces) == len(ids) and reason is None
    numbers, reason = traces_data.pieces(of, None)
    assert numbers[0] == f"[{ids[0]}]" and reason is not None
    odd, reason = traces_data.pieces(
        Tokens(prompt_ids=(), completion_ids=(10**9,)), SORTING / "base"
    )
    assert len(odd) == 1


def test_markup_of_any_text_is_text() -> None:
    for value in (HOSTILE, "<", "&", '"><svg/onload=alert(1)>', "\u2066", Truncated.__doc__ or ""):
        shown = safe_html.text(value)
        assert re.sub(r'</?span( class="\w+")?>', "", shown).count("<") == 0
        assert safe_html.text(value, words=["svg", "<", "alert"]).count("<svg") == 0
