"""The harness's scripted upstream, its streams as vLLM's: the prompt's token ids in the first
chunk, and none in the last, which has no token.

    python benchmarks/gateway_upstream.py HARNESS PORT
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def loaded(harness: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gateway_bench", harness)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    harness = loaded(Path(sys.argv[1]))
    dumps = harness.dumps

    def as_vllm(said: Any) -> bytes:
        if said.get("object") == "chat.completion.chunk" and said["choices"]:
            choice = said["choices"][0]
            if "token_ids" in choice and "role" in choice["delta"]:
                said = {**said, "prompt_token_ids": list(range(420))}
            elif not choice["delta"]:
                choice.pop("token_ids", None)
        packed: bytes = dumps(said)
        return packed

    harness.dumps = as_vllm
    sys.argv = [sys.argv[1], "upstream", "--port", sys.argv[2]]
    harness.main()


if __name__ == "__main__":
    main()
