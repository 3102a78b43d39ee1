#!/bin/sh
# Makes an environment of its own from a lock. Arguments: a Python 3.11, the folder to make, the lock's name.
# The stamp is the lock's checksum: the same again does nothing, another starts afresh.
set -eu
python=$1 venv=$2 name=$3
stamp=$(cksum < "locks/$name.txt")
[ "$(cat "$venv/.installed" 2>/dev/null)" != "$stamp" ] || exit 0
command -v "$python" >/dev/null 2>&1 || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || {
    echo "The $name environment needs Python 3.11 with its venv module; none is on the PATH." >&2
    echo "Bring it with: apt-get install python3.11 python3.11-venv    (or: make PYTHON=/path/to/python3.11 install-$name)" >&2
    exit 1
}
rm -f "$venv/.installed"
"$python" -m venv --clear "$venv"
echo "$name: installing the pinned set (once; a minute or more)" >&2
"$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-deps -r "locks/$name.txt"
echo "$stamp" > "$venv/.installed"
echo "$name: $venv is ready" >&2
