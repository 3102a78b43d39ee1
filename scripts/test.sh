#!/bin/sh
# The suite in tiers: fast first, so that a plain mistake is told within minutes; then the slow tests
# in two lanes side by side, of about the same length. Argument: the venv's bin.
set -eu
bin=$1
"$bin/python" -m pytest -q -m "not slow"

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
