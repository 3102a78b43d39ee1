#!/bin/sh
# The suite in tiers: fast first, so that a plain mistake is told within minutes; then the slow tests
# in two lanes side by side, of about the same length. vLLM's environment is brought meanwhile; without
# it the suite fails. Arguments: the venv's bin, a Python 3.11, vLLM's environment.
set -eu
bin=$1 python=$2 vllm=$3
sh scripts/install_vllm.sh "$python" "$vllm" cpu &
installing=$!
fast=0
"$bin/python" -m pytest -q -m "not slow" || fast=$?
wait "$installing"
[ "$fast" -eq 0 ] || exit "$fast"
export FLYWHEEL_TEST_VLLM=1

rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
long="tests/app tests/flows/test_faults.py tests/flows/test_kills.py"
"$bin/python" -m pytest -q -m slow --durations=15 $(printf -- '--ignore %s ' $long) >"$rest" 2>&1 &
lane=$!
turns=0
"$bin/python" -m pytest -q -m slow --durations=15 $long || turns=$?
others=0
wait "$lane" || others=$?
cat "$rest"
[ "$turns" -eq 0 ] && [ "$others" -eq 0 ]
