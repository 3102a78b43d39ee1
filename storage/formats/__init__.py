"""Trace formats: one file each, and its line in FORMATS. The first that knows a row reads it; the
commonest stands first. A file is loaded when a row is first shown to it."""

from storage.formats.parsed import Format, of_file

FORMATS: dict[str, Format] = {
    "openai_chat": of_file("openai_chat", quick=True),
    "otlp": of_file("otlp"),
    "langfuse": of_file("langfuse"),
    "streams": of_file("streams", whole=True),
    "openai_batch": of_file("openai_batch"),
    "openai_stored": of_file("openai_stored"),
    "mlflow": of_file("mlflow"),
    "langsmith": of_file("langsmith"),
    "langfuse_ingestion": of_file("langfuse_ingestion"),
    "litellm": of_file("litellm"),
    "tensorzero": of_file("tensorzero"),
    "openinference": of_file("openinference"),
    "anthropic_sessions": of_file("anthropic_sessions", whole=True),
    "openai_responses": of_file("openai_responses"),
    "anthropic": of_file("anthropic"),
    "inspect": of_file("inspect_log"),
    "atif": of_file("atif"),
    "swe_agent": of_file("swe_agent"),
    "mini_swe": of_file("mini_swe", whole=True),
    "openhands": of_file("openhands", whole=True),
    "claude_code": of_file("claude_code", whole=True),
    "opencode": of_file("opencode", whole=True),
    "tau_bench": of_file("tau_bench"),
    "verifiers": of_file("verifiers"),
    "preference": of_file("preference"),
    "sharegpt": of_file("sharegpt"),
    "chat_rows": of_file("chat_rows", whole=True),
    "alpaca": of_file("alpaca"),
    "spoken": of_file("spoken"),
}
