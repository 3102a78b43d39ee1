"""Whatever a client sends, a dialect reads it or refuses it in words."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.dialects import DIALECTS
from serving.keys import ANYBODY
from serving.limits import Limits
from serving.refusal import ApiError

KEYS = (
    "type role content text tool_use_id id name input arguments call_id output source data url "
    "input_schema format schema effort user_id image_url summary file title parameters"
)
WORDS = (
    "text user assistant tool system message function_call function_call_output reasoning image "
    "document tool_use tool_result thinking base64 file content json_schema function auto any tool "
    "input_text output_text input_image input_file refusal"
)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(WORDS.split()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = (
    "messages input system instructions tools tool_choice text prompt metadata output_config "
    "thinking stop stop_sequences max_tokens max_output_tokens include reasoning logprobs stream n"
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(FIELDS.split()), VALUES, max_size=5),
    st.lists(VALUES, max_size=3),
)
def test_what_is_no_request_is_refused_and_never_a_fault(
    fields: dict[str, Any], items: list[Any]
) -> None:
    said = {"model": "m", "max_tokens": 5, "messages": items, "input": items, "prompt": "x"}
    body = json.dumps({**said, **fields}).encode()
    for dialect in DIALECTS.values():
        try:
            chat = dialect.read(body, Limits(), ANYBODY)
        except ApiError as error:
            assert error.status == 400 and json.loads(dialect.refuse(error))
        else:
            assert chat.for_engine("base")
