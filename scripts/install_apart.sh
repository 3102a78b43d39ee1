#!/bin/sh
# Makes an environment of its own from a lock. Arguments: a Python 3.11, the folder to make, the lock's name, and what
# plain pip brings first (a torch whose build fits the machine), if anything.
# The stamp is the lock's checksum: the same again does nothing, another starts afresh. Nothing is compiled ahead:
# what little of it is imported is compiled then.
set -eu
python=$1 venv=$2 name=$3 first=${4:-}
stamp=$(cksum < "locks/$name.txt")
[ "$(cat "$venv/.installed" 2>/dev/null)" != "$stamp" ] || exit 0
verb="install-$name"
. scripts/python311.sh
rm -f "$venv/.installed"
"$python" -m venv --clear "$venv"
echo "$name: installing the pinned set (once; a minute or more)" >&2
[ -z "$first" ] || "$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-compile "$first"
"$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-compile --no-deps -r "locks/$name.txt"
echo "$stamp" > "$venv/.installed"
echo "$name: $venv is ready" >&2
