"""One small input of each format of agents and data sets, in the shape of the real files."""

from typing import Any

CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
    {"role": "assistant", "content": "done"},
]

SWE_TEXT = {
    "environment": "main",
    "trajectory": [
        {"action": "ls -a\n", "observation": "a.py", "response": "look\n```\nls -a\n```",
         "thought": "look", "state": '{"open_file": "n/a"}', "execution_time": 0.5},
        {"action": "submit", "observation": "", "response": "end\n```\nsubmit\n```",
         "thought": "end", "state": "{}"},
    ],
    "history": [
        {"role": "system", "content": "s", "agent": "main"},
        {"role": "user", "content": "a demonstration", "agent": "main", "is_demo": True},
        {"role": "user", "content": "fix it", "agent": "main"},
        {"role": "assistant", "content": "look\n```\nls -a\n```", "thought": "look",
         "action": "ls -a\n", "agent": "main"},
        {"role": "user", "content": "a.py", "agent": "main"},
    ],
    "info": {"exit_status": "submitted", "submission": "diff", "edited_files30": "f",
             "model_stats": {"instance_cost": 0.5, "tokens_sent": 10, "tokens_received": 2,
                             "api_calls": 2}},
    "replay_config": {"agent": {"model": {"name": "gpt-4o", "temperature": 0.0}},
                      "problem_statement": {"id": "repo-i1"}},
}  # fmt: skip
SWE_CALLS = {
    "history": [
        {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": "fix", "agent": "main", "message_type": "observation"},
        {"role": "assistant", "content": "look", "thought": "look", "action": "ls", "agent": "main",
         "tool_calls": [CALL], "message_type": "action"},
        {"role": "tool", "content": "a.py", "agent": "main", "tool_call_ids": ["c1"]},
    ],
}  # fmt: skip

RESPONSE = {
    "id": "r1", "created": 1780680347, "model": "deepseek-chat", "object": "chat.completion",
    "choices": [{"finish_reason": "tool_calls", "index": 0, "message": {"content": "look"}}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107,
              "prompt_tokens_details": {"cached_tokens": 90}},
}  # fmt: skip
MINI = {
    "info": {"model_stats": {"instance_cost": 0.25, "api_calls": 1}, "mini_version": "2.2.7",
             "exit_status": "Submitted", "submission": "diff",
             "config": {"model": {"model_name": "deepseek/deepseek-chat",
                                  "model_kwargs": {"temperature": 0.0, "drop_params": True}}}},
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "fix"},
        {"role": "assistant", "content": "look", "tool_calls": [CALL], "function_call": None,
         "extra": {"actions": [{"command": "ls"}], "response": RESPONSE, "cost": 0.25,
                   "timestamp": 1780680349.5}},
        {"role": "tool", "tool_call_id": "c1", "content": "<returncode>0</returncode>",
         "extra": {"raw_output": "a.py", "returncode": 0, "timestamp": 1780680350.5,
                   "exception_info": ""}},
        {"role": "exit", "content": "diff",
         "extra": {"exit_status": "Submitted", "submission": "diff"}},
    ],
    "trajectory_format": "mini-swe-agent-1.1",
    "instance_id": "repo-1",
}  # fmt: skip
MINI_BARE = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "fix"},
    {"role": "assistant", "content": "look\n\n```bash\nls\n```"},
    {"role": "user", "content": "<returncode>0</returncode>\n<output>\na.py\n</output>"},
    {"role": "assistant", "content": "end\n\n```bash\necho COMPLETE\n```"},
]

HANDS_CALL = {
    "function_name": "execute_bash", "tool_call_id": "t1", "total_calls_in_response": 1,
    "model_response": {
        **RESPONSE,
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": {
            "role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "t1", "type": "function",
                 "function": {"name": "execute_bash", "arguments": '{"command": "ls"}'}}]}}],
    },
}  # fmt: skip
HANDS = [
    {"id": 0, "timestamp": "2025-01-27T22:44:56.9", "source": "user", "message": "go",
     "action": "message", "args": {"content": "go", "image_urls": None}},
    {"id": 1, "timestamp": "2025-01-27T22:44:57", "source": "environment", "message": "",
     "observation": "agent_state_changed", "content": "", "extras": {"agent_state": "running"}},
    {"id": 3, "timestamp": "2025-01-27T22:45:13", "source": "agent", "message": "Running",
     "action": "run", "tool_call_metadata": HANDS_CALL,
     "args": {"command": "ls", "thought": "I look.", "hidden": False}},
    {"id": 4, "timestamp": "2025-01-27T22:45:14", "source": "agent", "message": "ran", "cause": 3,
     "observation": "run", "tool_call_metadata": HANDS_CALL, "content": "a.py",
     "extras": {"command": "ls"}, "success": True},
]  # fmt: skip
HANDS_OUTPUT = {
    "issue": {"number": 5}, "instruction": "fix", "git_patch": "diff", "success": True,
    "error": None, "metrics": {"accumulated_cost": 0.25, "costs": [0.25]},
    "history": [
        {"action": "message", "content": "fix", "wait_for_response": False},
        {"action": "run", "command": "ls", "thought": "I look."},
        {"observation": "run", "command": "ls", "content": "a.py", "exit_code": 0},
    ],
}  # fmt: skip

ATIF = {
    "schema_version": "ATIF-v1.7", "session_id": "s1",
    "agent": {"name": "terminus-2", "version": "2.0", "model_name": "gpt-4o", "extra": {"p": 1},
              "tool_definitions": [{"type": "function", "function": {"name": "bash"}}]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "you act"},
        {"step_id": 2, "source": "user", "message": "go"},
        {"step_id": 3, "source": "agent", "message": "look", "model_name": "gpt-4o-1",
         "reasoning_content": "hm", "timestamp": "2026-01-31T10:00:00Z",
         "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"c": "ls"}}],
         "observation": {"results": [{"source_call_id": "c1", "content": "a.py"}]},
         "metrics": {"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 90,
                     "cost_usd": 0.25, "prompt_token_ids": [1, 2], "completion_token_ids": [3],
                     "logprobs": [-0.5]}},
        {"step_id": 4, "source": "system", "message": "handed on",
         "observation": {"results": [{"subagent_trajectory_ref": [
             {"session_id": "s1-summarization-1-summary", "trajectory_path": "t.json"}]}]},
         "extra": {"context_management": {"type": "compaction", "boundary": "replace"}}},
    ],
    "final_metrics": {"total_prompt_tokens": 100, "total_completion_tokens": 7},
    "continued_trajectory_ref": "trajectory.cont-1.json",
}  # fmt: skip
ATIF_CONTINUED = {
    "schema_version": "ATIF-v1.7", "session_id": "s1",
    "agent": {"name": "terminus-2", "version": "2.0", "extra": {"continuation_index": 1}},
    "steps": [
        {"step_id": 1, "source": "user", "message": "go", "is_copied_context": True},
        {"step_id": 2, "source": "agent", "message": "look", "is_copied_context": True},
        {"step_id": 3, "source": "user", "message": "what was found: a.py"},
        {"step_id": 4, "source": "agent", "message": "done", "timestamp": "2026-01-31T10:01:00Z",
         "metrics": {"prompt_tokens": 50, "completion_tokens": 3}},
    ],
    "final_metrics": {"total_prompt_tokens": 150, "total_completion_tokens": 10},
}  # fmt: skip
ATIF_SUMMARY = {
    "schema_version": "ATIF-v1.7", "session_id": "s1-summarization-1-summary",
    "agent": {"name": "terminus-2", "version": "2.0"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "sum up"},
        {"step_id": 2, "source": "agent", "message": "a.py", "timestamp": "2026-01-31T10:00:30Z"},
    ],
}  # fmt: skip

TAU = {
    "task_id": 3, "reward": 0.0, "trial": 1, "traj": TALK,
    "info": {"task": {"user_id": "mia"}, "user_cost": 0.002,
             "reward_info": {"reward": 0.0, "info": {"r_actions": 0.0}}},
}  # fmt: skip
VERIFIERS = {
    "id": 0, "prompt": TALK[:2], "completion": TALK[2:], "task": "default", "answer": "A",
    "generation_ms": 97.5, "info": {"game": "x"}, "reward": 0.5, "success": 1.0,
}  # fmt: skip
FEW_SHOT = {"messages_display": "user: hi\nassistant: None\ntool: 42\nassistant: it is\n42"}
HERMES = {
    "example": '```\nSYSTEM: functions <tools>[{"name": "f"}]</tools>\nUSER: go\nASSISTANT:\n'
    '<tool_call>\n{"arguments": {"x": 1}, "name": "f"}\n</tool_call>\n```\n'
}  # fmt: skip
ALPACA = {"instruction": "Sum.", "input": "1 2", "output": "3", "system": "", "history": []}
DPO = {
    "conversations": [{"from": "human", "value": "hi"}],
    "chosen": {"from": "gpt", "value": "good"},
    "rejected": {"from": "gpt", "value": "bad"},
}

MODEL_EVENT = {
    "event": "model", "uuid": "m1", "span_id": "sp2", "timestamp": "2025-10-06T10:15:45+00:00",
    "completed": "2025-10-06T10:15:46+00:00", "model": "openai/gpt", "working_start": 0.1,
    "input": [], "input_refs": [[0, 2]], "tool_choice": "auto", "config": {"temperature": 0.5},
    "tools": [{"name": "bash", "description": "attachment://d1", "parameters": {}}],
    "output": {"model": "gpt-1", "completion": "", "time": 1.0, "choices": [{
        "stop_reason": "tool_calls", "message": {"id": "a1", "role": "assistant", "content": "",
        "source": "generate", "tool_calls": [{"id": "c1", "function": "bash",
        "arguments": {"cmd": "ls"}, "type": "function"}]}}],
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 105,
                  "input_tokens_cache_read": 90}},
}  # fmt: skip
SAMPLE = {
    "id": 1, "epoch": 1, "uuid": "u1", "input": "attachment://h1", "target": "A",
    "messages": [{"role": "user", "content": "attachment://h1", "source": "input"}],
    "output": {}, "scores": {"match": {"value": "C", "answer": "A"}, "loss": {"value": "NaN"}},
    "store": {"k": 1}, "total_time": 1.5, "model_usage": {"openai/gpt": {"input_tokens": 10}},
    "attachments": {"h1": "the long question", "d1": "runs a command"},
    "message_pool": [{"role": "system", "content": "s"},
                     {"role": "user", "content": "attachment://h1", "id": "q"}],
    "events": [
        {"event": "sample_init", "timestamp": "2025-10-06T10:15:44+00:00"},
        {"event": "span_begin", "id": "sp1", "span_id": "sp1", "type": "solver", "name": "solve",
         "timestamp": "2025-10-06T10:15:44+00:00"},
        {"event": "span_begin", "id": "sp2", "span_id": "sp2", "parent_id": "sp1",
         "type": "agent", "name": "helper", "timestamp": "2025-10-06T10:15:44+00:00"},
        MODEL_EVENT,
        {"event": "tool", "uuid": "t1", "span_id": "sp2", "id": "c1", "function": "bash",
         "arguments": {"cmd": "ls"}, "result": "", "events": [],
         "error": {"type": "timeout", "message": "too slow"},
         "timestamp": "2025-10-06T10:15:46+00:00", "completed": "2025-10-06T10:15:47+00:00"},
        {"event": "sandbox", "span_id": "sp2", "action": "exec", "cmd": "ls",
         "timestamp": "2025-10-06T10:15:46+00:00"},
        {"event": "span_end", "id": "sp2", "timestamp": "2025-10-06T10:15:48+00:00"},
        {"event": "span_begin", "id": "sp3", "span_id": "sp3", "type": "scorer", "name": "match",
         "timestamp": "2025-10-06T10:15:48+00:00"},
        {**MODEL_EVENT, "uuid": "m2", "span_id": "sp3", "input_refs": [],
         "input": [{"role": "user", "content": "is A right?"}],
         "timestamp": "2025-10-06T10:15:48+00:00"},
    ],
}  # fmt: skip
INSPECT = {
    "version": 2, "status": "success", "eval": {"task": "quiz", "model": "openai/gpt",
    "run_id": "r1", "task_id": "t1"}, "plan": {"steps": []}, "results": {"scores": []},
    "stats": {"started_at": "x"}, "samples": [SAMPLE],
}  # fmt: skip


def event(uuid: str, above: str | None, **more: Any) -> dict[str, Any]:
    """One of Claude Code's."""
    return {
        "uuid": uuid, "parentUuid": above, "sessionId": "cc1", "slug": "calm-sea",
        "isSidechain": False, "cwd": "/w", "version": "2.0", "timestamp":
        f"2026-01-31T10:00:{int(uuid.strip('abcdefgh')):02d}Z", **more,
    }  # fmt: skip


def user(uuid: str, above: str | None, content: Any, **more: Any) -> dict[str, Any]:
    return event(uuid, above, type="user", message={"role": "user", "content": content}, **more)


def assistant(uuid: str, above: str, id: str, content: Any, stop: str | None = "end_turn",
              **more: Any) -> dict[str, Any]:  # fmt: skip
    message = {
        "id": id, "model": "claude", "type": "message", "role": "assistant", "content": content,
        "stop_reason": stop, "usage": {"input_tokens": 10, "output_tokens": 5,
                                       "cache_read_input_tokens": 90},
    }  # fmt: skip
    return event(uuid, above, type="assistant", message=message, **more)


TASK = {"type": "tool_use", "id": "tu1", "name": "Task",
        "input": {"prompt": "Explore.", "subagent_type": "Explore"}}  # fmt: skip
CLAUDE = [
    {"type": "summary", "summary": "Talk", "leafUuid": "a5"},
    user("a1", None, "go"),
    assistant("a2", "a1", "m1", [{"type": "text", "text": "I ask."}], None),
    assistant("a3", "a2", "m1", [TASK], "tool_use"),
    user("a4", "a3", [{"type": "tool_result", "tool_use_id": "tu1", "content": "three folders"}],
         toolUseResult={"agentId": "x1", "status": "completed"}),
    assistant("a5", "a4", "m2", [{"type": "text", "text": "Three."}]),
]  # fmt: skip
CLAUDE_SIDE = [
    user("b1", None, "Explore.", isSidechain=True),
    assistant("b2", "b1", "m3", [{"type": "text", "text": "three folders"}], isSidechain=True),
]


def told(type: str, **properties: Any) -> list[Any]:
    """One of opencode's events."""
    return ["event", {"event": {"type": type, "properties": properties}}]


def part(id: str, message: str, type: str, session: str = "s1", **more: Any) -> list[Any]:
    held = {"id": id, "messageID": message, "sessionID": session, "type": type, **more}
    return told("message.part.updated", part=held, time=1)


def message(id: str, role: str, created: int, session: str = "s1", **more: Any) -> list[Any]:
    info = {"id": id, "role": role, "sessionID": session, "time": {"created": created}, **more}
    return told("message.updated", info=info)


TOKENS = {"total": 105, "input": 10, "output": 5, "reasoning": 0, "cache": {"read": 90, "write": 0}}
NONE = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
AT = 1776898338000
OPENCODE = [
    told("session.created", info={"id": "s1", "title": "T", "time": {"created": AT}}),
    ["chat.message", {"sessionID": "s1"}, {"message": {"id": "u1", "role": "user",
     "sessionID": "s1", "time": {"created": AT}}, "parts": [
         {"id": "p0", "messageID": "u1", "sessionID": "s1", "type": "text", "text": "go"}]}],
    message("a1", "assistant", AT + 1, modelID="pickle", tokens=NONE, cost=0),
    ["tool.definition", {"toolID": "task"}, {"description": "asks", "parameters": {"def": {
        "type": "object", "shape": {"prompt": {"def": {"type": "string"}, "description": "what"},
        "kind": {"def": {"type": "optional", "innerType": {"def": {"type": "enum",
                 "entries": {"a": "a"}}}}}}}}}],
    ["experimental.chat.system.transform", {"sessionID": "s1", "model": {"id": "pickle"}},
     {"system": ["be kind"]}],
    part("p1", "a1", "step-start"),
    part("p2", "a1", "reasoning", text=""),
    told("message.part.delta", partID="p2", delta="h"),
    part("p2", "a1", "reasoning", text="hm", metadata={"anthropic": {"signature": "sig"}}),
    part("p3", "a1", "tool", tool="task", callID="c1", state={"status": "pending", "input": {}}),
    told("session.created", info={"id": "s2", "parentID": "s1", "title": "Sub",
                                  "time": {"created": AT + 2}}),
    message("u2", "user", AT + 3, "s2"),
    part("p4", "u2", "text", "s2", text="Explore."),
    message("a2", "assistant", AT + 4, "s2", modelID="pickle", tokens=TOKENS, cost=0.5,
            finish="stop"),
    part("p5", "a2", "text", "s2", text="three folders"),
    part("p3", "a1", "tool", tool="task", callID="c1", state={
        "status": "completed", "input": {"prompt": "Explore."}, "output": "three folders",
        "metadata": {"sessionId": "s2"}, "time": {"start": AT + 2, "end": AT + 5}}),
    part("p6", "a1", "step-finish", reason="tool-calls", tokens=TOKENS, cost=0.25),
    message("a1", "assistant", AT + 1, modelID="pickle", tokens=TOKENS, cost=0.25,
            finish="tool-calls", time={"created": AT + 1, "completed": AT + 6}),
]  # fmt: skip

SEEDS: dict[str, Any] = {
    "swe_text": SWE_TEXT, "swe_calls": SWE_CALLS, "mini": MINI, "mini_bare": MINI_BARE,
    "hands": HANDS, "hands_output": HANDS_OUTPUT, "atif": ATIF, "atif_continued": ATIF_CONTINUED,
    "tau": TAU, "verifiers": VERIFIERS, "few_shot": FEW_SHOT, "hermes": HERMES, "alpaca": ALPACA,
    "dpo": DPO, "inspect": INSPECT, "claude": CLAUDE, "claude_side": CLAUDE_SIDE,
    "opencode": OPENCODE,
}  # fmt: skip
