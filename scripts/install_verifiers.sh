#!/bin/sh
# Makes the environment of the verifiers package from its lock. Arguments: a Python 3.11 and the folder to make.
# The stamp is the lock's checksum: the same again does nothing, another starts afresh.
set -eu
python=$1 venv=$2
stamp=$(cksum < locks/verifiers.txt)
[ "$(cat "$venv/.installed" 2>/dev/null)" != "$stamp" ] || exit 0
command -v "$python" >/dev/null 2>&1 || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || {
    echo "The verifiers environment needs Python 3.11 with its venv module; none is on the PATH." >&2
    echo "Bring it with: apt-get install python3.11 python3.11-venv    (or: make PYTHON=/path/to/python3.11 install-verifiers)" >&2
    exit 1
}
rm -f "$venv/.installed"
"$python" -m venv --clear "$venv"
echo "verifiers: installing the pinned set (once; minutes)" >&2
"$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-compile --no-deps -r locks/verifiers.txt
echo "$stamp" > "$venv/.installed"
echo "verifiers: $venv is ready" >&2
