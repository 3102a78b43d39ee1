"""The harnesses, by kind; each is imported when it is first wanted."""

from importlib import import_module
from typing import cast

from environments.harnesses.contract import Harness, HarnessConfig

HARNESSES = {
    "single": "environments.harnesses.single:OneAnswer",
    "tools": "environments.harnesses.tools:ToolLoop",
    "conversation": "environments.harnesses.conversation:Talk",
    "correcting": "environments.harnesses.correcting:Correction",
    "recursive": "environments.harnesses.recursive:Recursion",
    "compacting": "environments.harnesses.compacting:Compaction",
    "program": "environments.harnesses.program:ProgramHarness",
    "mcp": "environments.harnesses.mcp:McpHarness",
}
"""Kind → module:class; the class takes the configuration of its kind."""


def harness_for(config: HarnessConfig) -> Harness:
    module, _, name = HARNESSES[config.kind].partition(":")
    return cast(Harness, getattr(import_module(module), name)(config))
