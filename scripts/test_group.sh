#!/bin/sh
# One group of slow tests; what it says is told in one piece. Arguments: the venv's bin, what pytest gets.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
failed=0
# shellcheck disable=SC2086  # several arguments
"$1/python" -m pytest -q -m slow --durations=12 $2 >"$said" 2>&1 || failed=$?
{ echo "== $2"; cat "$said"; }
exit "$failed"
