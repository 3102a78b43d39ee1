#!/bin/sh
# The suite in tiers, fast first, so that a plain mistake is told within a minute. Argument: the venv's bin.
set -eu
bin=$1
"$bin/python" -m pytest -q -m "not slow"
"$bin/python" -m pytest -q -m "slow"
