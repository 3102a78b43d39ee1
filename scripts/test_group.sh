#!/bin/sh
# One group of slow tests; what it says is told in one piece. Arguments: the venv's bin, what pytest gets.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
failed=0
# Two groups share two cores: threads that wait for each other would cost both.
export OMP_NUM_THREADS=1 FLYWHEEL_THREADS=1
# shellcheck disable=SC2086  # several arguments
"$1/python" -m pytest -q -m "slow and not soak" --durations=12 $2 >"$said" 2>&1 || failed=$?
{ echo "== $2"; cat "$said"; }
exit "$failed"
