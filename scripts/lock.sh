#!/bin/sh
# Compiles locks/*.in into locks/*.txt with uv. torch and its GPU libraries stay out: pip chooses that build.
set -eu
command -v uv >/dev/null 2>&1 || { echo "uv is missing. Bring it with: pip install uv" >&2; exit 1; }
uv pip compile locks/platform.in --python-version 3.11 --no-header --no-annotate --quiet \
    | grep -vE '^(nvidia-|cuda-|torch==|triton==)' > locks/platform.txt
