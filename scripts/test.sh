#!/bin/sh
# The suite in tiers: fast first, so that a plain mistake is told within minutes; then the slow tests
# in two lanes side by side, whole turns in one and the rest in the other. Argument: the venv's bin.
set -eu
bin=$1
"$bin/python" -m pytest -q -m "not slow"

rest=$(mktemp)
trap 'rm -f "$rest"' EXIT
"$bin/python" -m pytest -q -m slow --durations=15 --ignore tests/flows --ignore tests/app >"$rest" 2>&1 &
lane=$!
turns=0
"$bin/python" -m pytest -q -m slow --durations=15 tests/flows tests/app || turns=$?
others=0
wait "$lane" || others=$?
cat "$rest"
[ "$turns" -eq 0 ] && [ "$others" -eq 0 ]
