"""Trace formats: one file each, and its line in FORMATS. The first that knows a row reads it."""

from storage.formats import chat_rows, langfuse, openai_chat, otlp, sharegpt
from storage.formats.parsed import Format

FORMATS: dict[str, Format] = {
    "otlp": Format(otlp.recognise, otlp.read),
    "langfuse": Format(langfuse.recognise, langfuse.read),
    "openai_chat": Format(openai_chat.recognise, openai_chat.read),
    "sharegpt": Format(sharegpt.recognise, sharegpt.read),
    "chat_rows": Format(chat_rows.recognise, chat_rows.read),
}
