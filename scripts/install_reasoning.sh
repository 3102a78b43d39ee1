#!/bin/sh
# Brings reasoning-gym into the platform's environment, from the lock of what the platform has not. Argument: the venv.
# The stamp is the lock's checksum: the same again does nothing.
set -eu
venv=$1
stamp=$(cksum < locks/reasoning.txt)
[ "$(cat "$venv/.reasoning" 2>/dev/null)" != "$stamp" ] || exit 0
"$venv/bin/python" -m pip --disable-pip-version-check -q install --no-deps -r locks/reasoning.txt || {
    echo "reasoning-gym could not be installed: its pycosat is compiled, which needs a C compiler and Python's headers." >&2
    echo "Bring them with: apt-get install gcc python3.11-dev" >&2
    exit 1
}
echo "$stamp" > "$venv/.reasoning"
echo "reasoning-gym is ready in $venv" >&2
