"""Trace formats: one file each, and its line in FORMATS. The first that knows a row reads it."""

from storage.formats import (
    chat_rows,
    langfuse,
    mini_swe,
    openai_chat,
    openhands,
    otlp,
    sharegpt,
    swe_agent,
)
from storage.formats.parsed import Format

FORMATS: dict[str, Format] = {
    "otlp": Format(otlp.recognise, otlp.read),
    "langfuse": Format(langfuse.recognise, langfuse.read),
    "openai_chat": Format(openai_chat.recognise, openai_chat.read),
    "swe_agent": Format(swe_agent.recognise, swe_agent.read),
    "mini_swe": Format(mini_swe.recognise, mini_swe.read, whole=True),
    "openhands": Format(openhands.recognise, openhands.read, whole=True),
    "sharegpt": Format(sharegpt.recognise, sharegpt.read),
    "chat_rows": Format(chat_rows.recognise, chat_rows.read),
}
