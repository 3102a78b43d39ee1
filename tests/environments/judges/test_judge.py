"""A model judge: votes, both orders, replies that do not fit, pictures, faults of the endpoint."""

import asyncio
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from environments.judges.contract import Judged
from environments.judges.endpoint import seconds
from environments.judges.judge import open_judge
from flywheel.errors import MissingPart, ProjectError
from flywheel.judge_section import JudgeSection
from flywheel.project import load_project
from flywheel.records import Image
from tests.environments.judges.conftest import Opens
from tests.environments.judges.scripted_judge import (
    Endpoint,
    completion,
    fitting,
    prompt,
    quoted,
)

PRICED = {"price_in": 1.0, "price_out": 10.0}


def scored(judge: Any, answer: str = "Paris.", **more: Any) -> Judged:
    return asyncio.run(judge.score("Is it right?", answer, **more))


def compared(judge: Any, first: str = "good", second: str = "bad") -> Judged:
    return asyncio.run(judge.compare("Which is better?", first, second))


def test_a_verdict_is_a_number_from_0_to_1_with_reason_cost_and_digest(
    judge: Opens, endpoint: Endpoint
) -> None:
    said = scored(judge(**PRICED), context="The capital of France?")
    assert (said.value, said.votes, said.reason) == (0.75, (0.75,), "because")
    assert said.cost_usd == pytest.approx((100 * 1 + 10 * 10) / 1e6)
    assert said.digest == judge().digest_of("score", "Is it right?")
    (body,) = endpoint.asked
    assert quoted(body, "ANSWER") == "Paris." and "Is it right?" in prompt(body)
    assert quoted(body, "CONTEXT") == "The capital of France?"
    assert body["temperature"] == 0 and body["response_format"]["json_schema"]["strict"]
    assert scored(judge(), "Rome.").cost_usd is None  # no price, and none is made up


def test_what_was_asked_before_costs_nothing(judge: Opens, endpoint: Endpoint) -> None:
    first = scored(judge(**PRICED, budget_calls=1))
    again = scored(judge(**PRICED, budget_calls=1, votes=1))
    assert again == first._replace(cost_usd=0.0) and len(endpoint.asked) == 1
    for changed in ({"model": "other"}, {"scale": 10}, {"max_tokens": 99}):
        scored(judge(**changed))
    asyncio.run(judge().score("Is it kind?", "Paris."))
    assert len(endpoint.asked) == 5


def test_equal_questions_under_way_together_are_asked_once(
    judge: Opens, endpoint: Endpoint
) -> None:
    async def together() -> list[Judged]:
        return await asyncio.gather(*(judge(**PRICED).score("r", "same") for _ in range(6)))

    said = asyncio.run(together())
    assert {one.value for one in said} == {0.75} and len(endpoint.asked) == 1
    assert sorted(one.cost_usd == 0.0 for one in said) == [False] + [True] * 5


def test_votes_that_disagree_are_a_mean_or_a_majority_and_stay_beside_it(
    judge: Opens, endpoint: Endpoint
) -> None:
    values = {number: value for number, value in enumerate((4, 4, 0))}
    seeds: list[int] = []

    def verdict(body: dict[str, Any]) -> int:
        seeds.append(body["seed"])
        return values[len(seeds) - 1]

    endpoint.verdict = verdict
    one_by_one = {"votes": 3, "temperature": 1.0, "at_once": 1}
    mean = scored(judge(**one_by_one))
    assert mean.value == pytest.approx(2 / 3) and sorted(mean.votes) == [0.0, 1.0, 1.0]
    assert len(set(seeds)) == 3 and mean.reason == "because; votes 1, 1, 0"
    majority = scored(judge(**one_by_one, aggregate="majority"))
    assert majority.value == 1.0 and len(endpoint.asked) == 3  # the same votes, counted otherwise
    assert majority.digest != mean.digest
    with pytest.raises(ValueError, match="votes at temperature 0 are one vote"):
        judge(votes=3)


def test_a_judge_that_prefers_the_first_place_says_nothing_of_a_pair(
    judge: Opens, endpoint: Endpoint
) -> None:
    endpoint.verdict = lambda body: "first"
    said = compared(judge())
    assert (said.value, said.disagreements) == (0.5, 1) and "changed with the order" in said.reason
    orders = {(quoted(body, "FIRST"), quoted(body, "SECOND")) for body in endpoint.asked}
    assert orders == {("good", "bad"), ("bad", "good")}

    endpoint.verdict = lambda body: "first" if quoted(body, "FIRST") == "best" else "second"
    assert compared(judge(), "best", "worst")[:1] == (1.0,)
    assert compared(judge(), "worst", "best")[:1] == (0.0,)
    assert len(endpoint.asked) == 4  # the turned pair was asked already
    endpoint.verdict = lambda body: "neither"
    equal = compared(judge(), "same", "as this")
    assert (equal.value, equal.disagreements) == (0.5, 0)


def test_a_reply_that_does_not_fit_is_asked_to_be_mended_once(
    judge: Opens, endpoint: Endpoint
) -> None:
    endpoint.verdict = lambda body: 2 if len(body["messages"]) > 2 else "I would say 2 of 4."
    assert scored(judge()).value == 0.5
    assert endpoint.asked[1]["messages"][2] == {
        "role": "assistant", "content": "I would say 2 of 4."
    }  # fmt: skip
    assert "no JSON object" in endpoint.asked[1]["messages"][3]["content"]


def test_what_never_fits_is_null_with_the_reason_and_asked_again_another_time(
    judge: Opens, endpoint: Endpoint
) -> None:
    endpoint.verdict = lambda body: "The answer deserves 4."
    said = scored(judge())
    assert said.value is None and "does not fit" in said.reason and len(endpoint.asked) == 2
    endpoint.verdict = lambda body: 4
    assert scored(judge()).value == 1.0 and len(endpoint.asked) == 3
    assert scored(judge()).value == 1.0 and len(endpoint.asked) == 3


def test_a_repair_that_the_budget_has_no_room_for_costs_what_the_first_reply_did(
    judge: Opens, endpoint: Endpoint
) -> None:
    endpoint.verdict = lambda body: "2 of 4"
    said = scored(judge(**PRICED, budget_calls=1))
    assert said.value is None and "budget of 1 calls a day is spent" in said.reason
    assert said.cost_usd == pytest.approx(0.0002)


def test_a_refusal_is_null_and_not_asked_to_be_mended(judge: Opens, endpoint: Endpoint) -> None:
    refused = completion(None, None, message={"refusal": "I cannot judge this."})
    filtered = completion("", None, finish_reason="content_filter")
    for number, body in enumerate((refused, filtered)):
        endpoint.verdict = lambda _, body=body: (200, body, {})  # type: ignore[misc]
        said = scored(judge(), f"answer {number}")
        assert said.value is None and "refuses" in said.reason
    assert len(endpoint.asked) == 2


def test_a_verdict_that_was_cut_says_so(judge: Opens, endpoint: Endpoint) -> None:
    cut = completion('{"check": "', None, finish_reason="length")
    endpoint.verdict = lambda body: (200, cut, {})
    assert "cut at 512 tokens" in scored(judge()).reason


def test_an_endpoint_without_schemas_is_asked_without_from_then_on(
    judge: Opens, endpoint: Endpoint
) -> None:
    def verdict(body: dict[str, Any]) -> Any:
        return (400, {"error": {"message": "no"}}, {}) if "response_format" in body else 3

    endpoint.verdict = verdict
    assert scored(judge()).value == 0.75 and scored(judge(), "Rome.").value == 0.75
    assert ["response_format" in body for body in endpoint.asked] == [True, False, False]


def test_a_rate_limit_is_waited_for_and_faults_are_tried_again(
    judge: Opens, endpoint: Endpoint
) -> None:
    faults = iter([
        (429, b"slow down", {"Retry-After": "0.05"}), (503, b"", {}), (200, b"{half", {}),
    ])  # fmt: skip
    endpoint.verdict = lambda body: next(faults, 4)
    unreadable = scored(judge())
    assert unreadable.value is None and "no chat completion" in unreadable.reason
    assert len(endpoint.asked) == 3 and scored(judge()).value == 1.0
    endpoint.verdict = lambda body: (429, b"", {"Retry-After": "1000"})
    said = scored(judge(), "Rome.")
    assert said.value is None and "rate limit ends in" in said.reason
    asked = len(endpoint.asked)
    said = scored(judge(), "Bonn.")  # another process would know it too
    assert "rate limit ends in" in said.reason and len(endpoint.asked) == asked


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b'{"choices": []}', b'{"choices": [null]}', b"\xff\xfe",
        b'{"choices": [{"message": null}]}', b'{"choices": [{"message": {"content": 5}}]}',
        b'{"choices": [{"message": {"content": ["x"]}}]}', b'{"choices": {"0": {}}}', b"[" * 99_999,
        b'{"choices": [{"message": {"content": "x"}}], "usage": [1]}',
    ],
    ids=range(13),
)  # fmt: skip
def test_a_reply_that_is_no_completion_is_null(
    judge: Opens, endpoint: Endpoint, body: bytes
) -> None:
    endpoint.verdict = lambda _: (200, body, {})
    said = scored(judge())
    assert said.value is None and "no chat completion" in said.reason and said.cost_usd is None


def test_what_a_judge_says_can_be_kept_whatever_it_holds(judge: Opens, endpoint: Endpoint) -> None:
    def verdict(body: dict[str, Any]) -> Any:
        text = fitting(body, 4).replace("because", "half \\ud83d")
        usage = {"prompt_tokens": 10**30, "completion_tokens": 1}
        return 200, completion([{"type": "text", "text": text}], usage), {}

    endpoint.verdict = verdict
    first = scored(judge(**PRICED))
    assert (first.value, first.reason, first.cost_usd) == (1.0, "half \ufffd", None)
    assert scored(judge(**PRICED)).reason == first.reason and len(endpoint.asked) == 1
    endpoint.verdict = lambda body: (200, completion(None, None, message={"refusal": "\ud83d"}), {})
    assert "refuses: \ufffd" in scored(judge(), "Rome.").reason


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_mistake_of_ours_is_not_tried_again(
    judge: Opens, endpoint: Endpoint, status: int
) -> None:
    endpoint.verdict = lambda body: (status, {"error": {"message": "too long"}}, {})
    said = scored(judge(structured=False))
    assert said.value is None and f"HTTP {status} too long" in said.reason
    assert len(endpoint.asked) == 1 and said.cost_usd == 0.0


def test_a_key_that_the_endpoint_repeats_is_told_nowhere(
    judge: Opens, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    endpoint.verdict = lambda body: (401, {"error": f"who is {endpoint.keys[-1]}?"}, {})
    said = scored(judge(key_env="JUDGE_KEY"))
    assert "who is Bearer [key]?" in said.reason and "very" not in repr(said)


def test_a_judge_that_hangs_is_null_in_time_and_left_alone_after_a_few(
    judge: Opens, endpoint: Endpoint
) -> None:
    endpoint.verdict = lambda body: (200, b"", {}) if endpoint.released.wait(20) else (500, b"", {})
    slow = judge(timeout_s=0.2)

    async def many() -> list[Judged]:
        return await asyncio.gather(*(slow.score("r", str(number)) for number in range(5)))

    for said in asyncio.run(many()):
        assert said.value is None and "no answer in time" in said.reason
        assert said.cost_usd is None  # it may have been answered, and paid for
    asked = len(endpoint.asked)
    assert "left alone" in scored(slow, "one more").reason and len(endpoint.asked) == asked


def test_a_clock_that_was_set_back_leaves_nothing_alone(judge: Opens, endpoint: Endpoint) -> None:
    asked = judge()
    assert asked.ledger is not None
    for fact in ("wait", "down", "failed"):
        asked.ledger.note(f"{fact} {endpoint.url}", time.time() + 365 * 86_400)
    assert scored(asked).value == 0.75


def test_nobody_at_the_address_is_null(judge: Opens) -> None:
    said = scored(judge(url="http://127.0.0.1:9/v1", timeout_s=0.4))
    assert said.value is None and "no connection" in said.reason and said.cost_usd == 0.0


def test_an_endless_reply_is_not_read_to_its_end(judge: Opens, endpoint: Endpoint) -> None:
    endpoint.verdict = lambda body: (200, b" " * (2 << 20), {})
    assert "more than" in scored(judge()).reason


def test_pictures_reach_a_judge_that_sees_and_another_says_that_it_did_not(
    judge: Opens, endpoint: Endpoint
) -> None:
    pictures = [Image(url="data:image/png;base64,aGk="), Image(digest="kept nowhere")]
    blind = scored(judge(), images=pictures)
    assert blind.value == 0.75 and "2 pictures were not shown" in blind.reason
    assert isinstance(endpoint.asked[0]["messages"][1]["content"], str)
    seeing = scored(judge(vision=True), images=pictures)
    assert "1 of 2 pictures could not be shown" in seeing.reason
    content = endpoint.asked[1]["messages"][1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    assert content[1]["image_url"]["url"] == pictures[0].url
    assert "check" in content[2]["text"]  # our words come after what is judged
    other = [Image(url="data:image/png;base64,eW8=")]
    scored(judge(vision=True), images=other)
    assert len(endpoint.asked) == 3  # another picture is another question


def test_a_judge_can_be_pickled_and_holds_no_key_in_its_text(
    judge: Opens, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    section = judge(key_env="JUDGE_KEY").section
    back = pickle.loads(pickle.dumps(open_judge(section, tmp_path)))
    assert scored(back).value == 0.75 and endpoint.keys == ["Bearer sk-secret"]
    assert "secret" not in repr(back) and "secret" not in str(section)
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(MissingPart, match="JUDGE_KEY is not set"):
        open_judge(section, tmp_path)
    from_file = JudgeSection(url=endpoint.url, model="m", key_file=Path("key"))
    with pytest.raises(MissingPart, match="cannot be read"):
        open_judge(from_file, tmp_path, folder=tmp_path)
    os.mkfifo(tmp_path / "key")
    with pytest.raises(MissingPart, match="it is no file"):
        open_judge(from_file, tmp_path, folder=tmp_path)
    (tmp_path / "key").unlink()
    for key, found in (("sk-1\n", "sk-1"), (" \n", None), ("ключ", None), ("a\nb", None)):
        (tmp_path / "key").write_text(key)
        if found:
            assert open_judge(from_file, tmp_path, folder=tmp_path).key == found
        else:
            with pytest.raises(MissingPart, match="the judge's key"):
                open_judge(from_file, tmp_path, folder=tmp_path)


def test_answers_too_long_are_null_and_long_contexts_lose_their_middle(
    judge: Opens, endpoint: Endpoint
) -> None:
    small = judge(longest=300)
    said = scored(small, "x" * 301)
    assert said.value is None and "301 characters" in said.reason and not endpoint.asked
    scored(small, "x", context="a" * 1000 + "b" * 1000)
    shown = quoted(endpoint.asked[0], "CONTEXT")
    assert shown.startswith("a") and shown.endswith("b") and "1700 characters left out" in shown


def test_the_section_is_checked_when_it_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "flywheel.toml"
    head = 'name = "shop"\nmodel.base = "m"\nenvironment.path = "e.py:E"\n[judge]\n'

    def refused(text: str) -> str:
        file.write_text(head + text)
        with pytest.raises(ProjectError) as caught:
            load_project(tmp_path)
        return str(caught.value)

    at = 'url = "http://x/v1"\nmodel = "m"\n'
    assert "did you mean 'votes'" in refused(at + "vote = 3")
    assert "budget_usd needs price_in and price_out" in refused(at + "budget_usd = 1.0")
    assert "two places of one key" in refused(at + 'key_env = "K"\nkey_file = "k"')
    assert "judge.url" in refused('url = "ftp://x"\nmodel = "m"')
    file.write_text(head + at)
    assert load_project(tmp_path).judge == JudgeSection(url="http://x/v1", model="m")


def test_how_long_a_rate_limit_is_waited_for_is_bounded() -> None:
    assert seconds("2") == 2.0 and seconds("1e9") == 3600.0
    for said in (None, "", "-3", "nan", "soon", "Thu, 01 Jan 1970 00:00:00 GMT"):
        assert seconds(said) == 0.0
    assert seconds("Fri, 01 Jan 2100 00:00:00 GMT") == 3600.0
    assert seconds("Fri, 01 Jan 2100 00:00:00 -0000") == 3600.0
