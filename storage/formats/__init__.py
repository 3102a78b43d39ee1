"""Trace formats: one file each, and its line in FORMATS. The first that knows a row reads it."""

from storage.formats import (
    alpaca,
    anthropic,
    atif,
    chat_rows,
    inspect_log,
    langfuse,
    mini_swe,
    openai_chat,
    openai_responses,
    openhands,
    otlp,
    preference,
    sharegpt,
    spoken,
    streams,
    swe_agent,
    tau_bench,
    verifiers,
)
from storage.formats.parsed import Format

FORMATS: dict[str, Format] = {
    "otlp": Format(otlp.recognise, otlp.read),
    "langfuse": Format(langfuse.recognise, langfuse.read),
    "streams": Format(streams.recognise, streams.read, whole=True),
    "openai_chat": Format(openai_chat.recognise, openai_chat.read),
    "openai_responses": Format(openai_responses.recognise, openai_responses.read),
    "anthropic": Format(anthropic.recognise, anthropic.read),
    "inspect": Format(inspect_log.recognise, inspect_log.read),
    "atif": Format(atif.recognise, atif.read),
    "swe_agent": Format(swe_agent.recognise, swe_agent.read),
    "mini_swe": Format(mini_swe.recognise, mini_swe.read, whole=True),
    "openhands": Format(openhands.recognise, openhands.read, whole=True),
    "tau_bench": Format(tau_bench.recognise, tau_bench.read),
    "verifiers": Format(verifiers.recognise, verifiers.read),
    "preference": Format(preference.recognise, preference.read),
    "sharegpt": Format(sharegpt.recognise, sharegpt.read),
    "chat_rows": Format(chat_rows.recognise, chat_rows.read),
    "alpaca": Format(alpaca.recognise, alpaca.read),
    "spoken": Format(spoken.recognise, spoken.read),
}
