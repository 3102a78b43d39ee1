#!/bin/sh
# The suite in tiers: fast first, so that a plain mistake is told within minutes; then the slow tests, three
# groups at a time, the longest first: they wait for servers to start, so that two would leave a core idle. A group
# shares its servers and models, all of them one promoted home. vLLM's environment is brought meanwhile; without it
# the suite fails. So are those of two extras; without one its tests are skipped, and so are those of verifiers where
# nobody called `make install-verifiers`: it brings a hundred packages.
# Arguments: the venv's bin, a Python 3.11, vLLM's environment.
set -eu
bin=$1 python=$2 vllm=$3
# Hundreds of processes import the same modules: compiled once, whatever the surroundings say.
unset PYTHONDONTWRITEBYTECODE
FLYWHEEL_TEST_SHARED=$(mktemp -d)
export FLYWHEEL_TEST_SHARED
trap 'rm -rf "$FLYWHEEL_TEST_SHARED"' EXIT
sh scripts/install_vllm.sh "$python" "$vllm" cpu &
installing=$!
sh scripts/install_reasoning.sh "${bin%/bin}" || echo "the tests of reasoning-gym's generators are left out" >&2
(
    for name in agent solid; do
        sh scripts/install_apart.sh "$python" ".venv-$name" "$name" || echo "the tests of $name are left out" >&2
    done
) &
extras=$!
fast=0
OMP_NUM_THREADS=1 "$bin/python" -m pytest -q -n 2 --dist loadfile -m "not slow" || fast=$?
wait "$installing"
wait "$extras"
[ "$fast" -eq 0 ] || exit "$fast"
export FLYWHEEL_TEST_VLLM=1

groups='tests/serving/engines
tests/flows --ignore tests/flows/test_deployments.py --ignore tests/flows/test_postgres.py
tests --ignore tests/examples --ignore tests/serving --ignore tests/app --ignore tests/browser --ignore tests/flows
tests/serving --ignore tests/serving/engines
tests/app tests/browser
tests/flows/test_deployments.py tests/flows/test_postgres.py
tests/examples'
echo "$groups" | xargs -P 3 -I{} sh scripts/test_group.sh "$bin" "{}"
