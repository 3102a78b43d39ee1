"""Asks vLLM's own argument parser, in vLLM's own environment, whether it takes commands.

`PYTHON check_vllm.py`, started by `serving/engines/preset_check.py`: a list of {"arguments",
"environment"} comes as JSON on standard input, and what is wrong with each goes to standard output;
null = nothing. Standard library only, and vLLM by name only, as in `launch_vllm`.
"""

import argparse
import contextlib
import importlib
import io
import json
import sys
from typing import Any


def _wrong(parser: argparse.ArgumentParser, engine: Any, arguments: list[str]) -> str | None:
    """As far as no device is needed: names, types, choices, and what vLLM's own records refuse."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args(arguments)
            engine.from_cli_args(parsed)
            _known(parsed)
    except SystemExit:
        return " ".join(said.getvalue().rpartition("error: ")[2].split())
    except Exception as error:  # whatever it is, it is what stands in the way
        return f"{type(error).__name__}: {error}"
    return None


def _known(parsed: argparse.Namespace) -> None:
    """Names that the parser leaves to be found out as the engine starts."""
    transfer, quantised = parsed.kv_transfer_config, parsed.quantization
    if transfer is not None:
        factory = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.factory")
        if transfer.kv_connector not in factory.KVConnectorFactory._registry:
            raise ValueError(f"vLLM has no kv_connector {transfer.kv_connector!r}")
    if quantised is not None:
        methods = importlib.import_module("vllm.model_executor.layers.quantization")
        if quantised not in methods.QUANTIZATION_METHODS:
            raise ValueError(f"vLLM has no quantization {quantised!r}")


def _unknown(variables: dict[str, str], known: Any) -> str | None:
    strange = sorted(name for name in variables if name.startswith("VLLM_") and name not in known)
    return f"vLLM knows no {', '.join(strange)}" if strange else None


def main() -> None:
    asked = json.load(sys.stdin)
    found = sys.stdout
    sys.stdout = sys.stderr  # vLLM's modules may print
    arguments = importlib.import_module("vllm.entrypoints.launchers.cli_args")
    engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    known = importlib.import_module("vllm.envs").environment_variables
    parser = arguments.make_arg_parser(flexible())
    json.dump(
        [
            _wrong(parser, engine, one["arguments"]) or _unknown(one["environment"], known)
            for one in asked
        ],
        found,
    )


if __name__ == "__main__":
    main()
