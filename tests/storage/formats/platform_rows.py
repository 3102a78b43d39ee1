"""Small rows of our own in the shape of each provider's and platform's, one conversation in all:
a system prompt, a question, two parallel calls and their results, an answer."""

import json
from typing import Any

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALLS = [("c1", '{"city":"Oslo"}'), ("c2", '{"city":"Rome"}')]
SYSTEM, QUESTION, ANSWER = "Be brief.", "Weather in Oslo and Rome?", "Cold and warm."
RESULTS = {"c1": "-3", "c2": "21"}
TEXT = {"type": "text", "text": QUESTION}

CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CHAT_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": asked}}
        for id, asked in CALLS
    ]},
    *({"role": "tool", "tool_call_id": id, "content": RESULTS[id]} for id, _ in CALLS),
]  # fmt: skip
CHAT_ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": "m-2026",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": ANSWER}}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107,
              "prompt_tokens_details": {"cached_tokens": 90}},
}  # fmt: skip
CHAT = {"request": {"model": "m", "messages": CHAT_MESSAGES, "tools": [CHAT_TOOL],
                    "temperature": 0.5, "max_tokens": 50}, "response": CHAT_ANSWER}  # fmt: skip

RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1_790_000_000, "status": "completed",
    "model": "m-2026", "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": ANSWER, "annotations": []}]},
    ],
    "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 90},
              "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3},
              "total_tokens": 107},
}  # fmt: skip
RESPONSES = {
    "request": {
        "model": "m", "instructions": SYSTEM, "temperature": 0.5, "max_output_tokens": 50,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
            *({"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "weather",
               "arguments": asked} for id, asked in CALLS),
            *({"type": "function_call_output", "call_id": id, "output": RESULTS[id]}
              for id, _ in CALLS),
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
    },
    "response": RESPONSE,
}  # fmt: skip
RESPONSES_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": [],
                                              "usage": None}},
    {"type": "response.output_item.added", "output_index": 0, "item": RESPONSE["output"][0]},
    {"type": "response.output_item.added", "output_index": 1,
     "item": {**RESPONSE["output"][1], "content": []}},
    {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Cold "},
    {"type": "response.output_text.delta", "output_index": 1, "content_index": 0,
     "delta": "and warm."},
    {"type": "response.completed", "response": RESPONSE},
]  # fmt: skip

MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m-2026",
    "content": [
        {"type": "thinking", "thinking": "", "signature": "sealed"},
        {"type": "text", "text": ANSWER},
    ],
    "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 90,
              "cache_creation_input_tokens": 0, "output_tokens": 7},
}  # fmt: skip
ANTHROPIC = {
    "request": {
        "model": "m", "system": SYSTEM, "max_tokens": 50, "temperature": 0.5,
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": id, "name": "weather", "input": json.loads(asked)}
                for id, asked in CALLS
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": RESULTS[id]}
                for id, _ in CALLS
            ]},
        ],
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
    },
    "response": MESSAGE,
}  # fmt: skip
ANTHROPIC_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None,
     "usage": {**MESSAGE["usage"], "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0,
     "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0,
     "delta": {"type": "signature_delta", "signature": "sealed"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": ANSWER}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
     "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]  # fmt: skip

RUN = "11111111-1111-7111-8111-111111111111"
POST = {
    "id": RUN, "trace_id": RUN, "dotted_order": f"20261001T000000000000Z{RUN}", "name": "ChatModel",
    "run_type": "llm", "start_time": "2026-10-01T00:00:00Z", "inputs": CHAT["request"],
    "extra": {"metadata": {"thread_id": "talk", "user_id": "ann"}},
}  # fmt: skip
PATCH = {
    "dotted_order": f"20261001T000000000000Z{RUN}", "trace_id": RUN,
    "end_time": "2026-10-01T00:00:02Z",
    "outputs": {**{key: one for key, one in CHAT_ANSWER.items() if key != "usage"},
                "usage_metadata": {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107,
                                   "input_token_details": {"cache_read": 90}}},
    "events": [{"name": "new_token", "time": "2026-10-01T00:00:01Z"}],
}  # fmt: skip

MLFLOW = {
    "info": {"trace_id": "tr-1", "state": "OK", "trace_metadata": {"mlflow.trace.user": "ann"},
             "assessments": [{"assessment_name": "good", "feedback": {"value": True},
                              "source": {"source_type": "HUMAN", "source_id": "bob"}}]},
    "data": {"spans": [
        {"trace_id": "AAAAAAAAAAAAAAAAAAAAAQ==", "span_id": "AAAAAAAAAAE=", "name": "Completions",
         "parent_span_id": None, "start_time_unix_nano": 1_790_000_000_000_000_000,
         "end_time_unix_nano": 1_790_000_001_000_000_000, "status": {"code": "STATUS_CODE_OK"},
         "attributes": {
             "mlflow.spanType": '"CHAT_MODEL"', "temperature": "0.5",
             "mlflow.spanInputs": json.dumps(CHAT["request"]),
             "mlflow.spanOutputs": json.dumps(CHAT_ANSWER),
             "mlflow.chat.tokenUsage": json.dumps({"input_tokens": 100, "output_tokens": 7,
                                                   "total_tokens": 107,
                                                   "cache_read_input_tokens": 90}),
             "mlflow.llm.cost": '{"total_cost": 0.25}',
         }},
        {"span_id": "AAAAAAAAAAI=", "parent_span_id": "AAAAAAAAAAE=", "name": "weather",
         "status": {"code": "STATUS_CODE_ERROR"}, "events": [
             {"name": "exception", "attributes": {"exception.message": "no such city"}}],
         "attributes": {"mlflow.spanType": '"TOOL"', "mlflow.spanInputs": '{"city": "X"}'}},
    ]},
}  # fmt: skip

LANGFUSE_BATCH = {"batch": [
    {"type": "generation-update", "timestamp": "2026-10-01T00:00:03Z",
     "body": {"id": "g", "traceId": "t", "output": CHAT_MESSAGES[2] | {"content": ANSWER,
              "tool_calls": None}, "endTime": "2026-10-01T00:00:02Z",
              "usage": {"input": 100, "output": 7, "total": 107, "unit": "TOKENS",
                        "totalCost": 0.25}}},
    {"type": "generation-create", "timestamp": "2026-10-01T00:00:01Z",
     "body": {"id": "g", "traceId": "t", "name": "chat", "model": "m",
              "startTime": "2026-10-01T00:00:00Z",
              "input": {"messages": CHAT_MESSAGES, "tools": [CHAT_TOOL]},
              "modelParameters": {"temperature": 0.5, "max_tokens": 50}}},
    {"type": "trace-create", "timestamp": "2026-10-01T00:00:01Z",
     "body": {"id": "t", "userId": "ann", "sessionId": "talk", "tags": ["x"]}},
    {"type": "score-create", "timestamp": "2026-10-01T00:00:09Z",
     "body": {"traceId": "t", "name": "good", "value": 1, "dataType": "BOOLEAN"}},
    {"type": "sdk-log", "timestamp": "2026-10-01T00:00:09Z", "body": {"log": "x"}},
], "metadata": {"sdk_name": "python"}}  # fmt: skip

LITELLM = {
    "id": "chatcmpl-1", "trace_id": "t", "call_type": "acompletion", "status": "success",
    "startTime": 1_790_000_000.5, "endTime": 1_790_000_001.5, "model": "m", "end_user": "ann",
    "messages": CHAT_MESSAGES, "model_parameters": {"temperature": 0.5, "max_tokens": 50,
                                                    "tools": [CHAT_TOOL]},
    "response": CHAT_ANSWER, "response_cost": 0.25, "cache_hit": None, "prompt_tokens": 100,
    "completion_tokens": 7, "total_tokens": 107, "request_tags": [],
}  # fmt: skip
SPEND_LOG = {
    "request_id": "chatcmpl-1", "call_type": "acompletion", "spend": 0.25, "session_id": "t",
    "startTime": "2026-10-01 00:00:00.5", "endTime": "2026-10-01 00:00:01.5", "model": "m",
    "end_user": "ann", "cache_hit": "True", "prompt_tokens": 100, "completion_tokens": 7,
    "total_tokens": 107, "messages": json.dumps(CHAT_MESSAGES), "response": json.dumps(CHAT_ANSWER),
    "proxy_server_request": "{}", "metadata": '{"user_api_key_alias": "k"}', "api_key": "hash",
}  # fmt: skip

UUID = "01942e26-910b-7ab1-a645-46bc4463a001"
TENSORZERO = {
    "id": UUID, "function_name": "talk", "variant_name": "m", "processing_time_ms": 413,
    "episode_id": "01942e26-51eb-7d12-82d5-c639332d11ff", "tags": {"k": "v"},
    "input": json.dumps({"system": SYSTEM, "messages": [
        {"role": "user", "content": [{"type": "text", "value": QUESTION}]},
        {"role": "assistant", "content": [
            {"type": "tool_call", "id": id, "name": "weather", "arguments": asked}
            for id, asked in CALLS]},
        {"role": "user", "content": [
            {"type": "tool_result", "id": id, "name": "weather", "result": RESULTS[id]}
            for id, _ in CALLS]},
    ]}),
    "output": json.dumps([{"type": "text", "text": ANSWER}]),
    "tool_params": json.dumps({"tools_available": [{"name": "weather", "parameters": SCHEMA}],
                               "tool_choice": "auto"}),
    "inference_params": '{"chat_completion": {"temperature": 0.5, "max_tokens": 50}}',
}  # fmt: skip

READABLE = {
    "name": "ChatCompletion", "kind": "SpanKind.INTERNAL", "parent_id": "0x" + "2" * 16,
    "context": {"trace_id": "0x" + "1" * 32, "span_id": "0x" + "1" * 16, "trace_state": "[]"},
    "start_time": "2026-10-01T00:00:00.123456Z", "end_time": "2026-10-01T00:00:01.5Z",
    "status": {"status_code": "OK"}, "events": [], "links": [],
    "resource": {"attributes": {"service.name": "shop"}, "schema_url": ""},
    "attributes": {
        "openinference.span.kind": "LLM", "llm.model_name": "m",
        "llm.invocation_parameters": '{"temperature": 0.5, "max_tokens": 50}',
        "llm.tools.0.tool.json_schema": json.dumps(CHAT_TOOL),
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": SYSTEM,
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.content": QUESTION,
        "llm.input_messages.2.message.role": "assistant",
        **{f"llm.input_messages.2.message.tool_calls.{at}.tool_call.{key}": one
           for at, (id, asked) in enumerate(CALLS)
           for key, one in (("id", id), ("function.name", "weather"),
                            ("function.arguments", asked))},
        **{f"llm.input_messages.{at}.message.{key}": one
           for at, (id, _) in enumerate(CALLS, 3)
           for key, one in (("role", "tool"), ("tool_call_id", id), ("content", RESULTS[id]))},
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": ANSWER, "llm.finish_reason": "stop",
        "llm.token_count.prompt": 100, "llm.token_count.completion": 7,
        "llm.token_count.total": 107, "llm.token_count.prompt_details.cache_read": 90,
    },
}  # fmt: skip
TABLE_ROW = {
    "name": "ChatCompletion", "span_kind": "LLM", "parent_id": "2" * 16, "status_code": "OK",
    "start_time": 1_790_812_800_123_456_000, "end_time": 1_790_812_801_500_000_000,
    "context.trace_id": "1" * 32, "context.span_id": "1" * 16,
    **{f"attributes.{key}": float(one) if isinstance(one, int) else one
       for key, one in READABLE["attributes"].items()},
}  # fmt: skip

BATCH_ASKED = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions",
               "body": CHAT["request"]}  # fmt: skip
BATCH_ANSWERED = {"id": "batch_req_1", "custom_id": "r-1", "error": None,
                  "response": {"status_code": 200, "request_id": "q", "body": CHAT_ANSWER},
                  }  # fmt: skip
STORED = {**CHAT_ANSWER, "messages": CHAT_MESSAGES, "tools": [CHAT_TOOL], "temperature": 0.5,
          "max_completion_tokens": 50, "metadata": {"k": "v"}}  # fmt: skip

SESSION: list[list[Any]] = [
    ["client.beta.sessions.create", {"id": "sesn_1", "agent": {
        "model": {"id": "m"}, "system": SYSTEM, "name": "helper",
        "tools": [{"type": "custom", "name": "weather", "input_schema": SCHEMA}]}}],
    ["client.beta.sessions.events.send", ["sesn_1", {"events": []}]],
    *(["client.beta.sessions.events.stream", {"processed_at": f"2026-10-01T00:00:{at:02}Z", **one}]
      for at, one in enumerate((
          {"type": "user.message", "content": [TEXT]},
          {"type": "span.model_request_start", "id": "s1"},
          *({"type": "agent.custom_tool_use", "id": id, "name": "weather",
             "input": json.loads(asked)} for id, asked in CALLS),
          {"type": "span.model_request_end", "id": "e1", "model_usage": {
              "input_tokens": 1, "cache_read_input_tokens": 9, "output_tokens": 4}},
          *({"type": "user.custom_tool_result", "id": f"r{id}", "custom_tool_use_id": id,
             "content": [{"type": "text", "text": RESULTS[id]}]} for id, _ in CALLS),
          {"type": "span.model_request_start", "id": "s2"},
          {"type": "agent.message", "id": "m2", "content": [{"type": "text", "text": ANSWER}]},
          {"type": "span.model_request_end", "id": "e2", "model_usage": {
              "input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 7}},
          {"type": "session.status_idle", "stop_reason": {"type": "end_turn"}},
      ))),
]  # fmt: skip

ROWS: dict[str, Any] = {
    "openai_chat": CHAT,
    "openai_responses": RESPONSES,
    "openai_responses streamed": {**RESPONSES, "response": RESPONSES_EVENTS},
    "anthropic": ANTHROPIC,
    "anthropic streamed": {**ANTHROPIC, "response": ANTHROPIC_EVENTS},
    "openai_stored": STORED,
    "langsmith": {"post": [POST], "patch": [PATCH]},
    "mlflow": MLFLOW,
    "langfuse_ingestion": LANGFUSE_BATCH,
    "litellm": LITELLM,
    "litellm spend log": SPEND_LOG,
    "tensorzero": TENSORZERO,
    "openinference": READABLE,
    "openinference table": TABLE_ROW,
    "anthropic_sessions": SESSION,
}
"""By format (and form): rows that tell the whole conversation."""
OTHERS: dict[str, list[Any]] = {
    "openai_batch": [BATCH_ASKED, BATCH_ANSWERED],
    "streams": [RESPONSES_EVENTS, ANTHROPIC_EVENTS],
    "langsmith": [POST, {"patch": [PATCH]}, {"run_id": RUN, "key": "good", "score": 1}],
    "tensorzero": [
        {"id": UUID, "target_id": UUID, "metric_name": "good", "value": True, "tags": {}},
        {"id": UUID, "inference_id": UUID, "value": '[{"type": "text", "text": "x"}]', "tags": {}},
        {"id": UUID, "target_id": UUID, "target_type": "episode", "value": "nice", "tags": {}},
        {**{key: one for key, one in TENSORZERO.items() if key != "tool_params"},
         "output": '{"raw": "{}", "parsed": null}', "output_schema": "{}"},
    ],
    "openai_stored": [{"object": "list", "data": [STORED, RESPONSE], "has_more": False}],
}  # fmt: skip
"""By format: rows that tell a part of it, or what was said about it."""
