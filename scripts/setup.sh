#!/bin/sh
# Makes the virtual environment from the pinned locks. Arguments: a Python 3.11 and the folder to make.
set -eu
python=$1 venv=$2
verb=setup
. scripts/python311.sh
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
    echo "python's venv module is missing. Bring it with: apt-get install python3.11-venv" >&2
    exit 1
}
pip="$venv/bin/python -m pip --disable-pip-version-check -q"
# torch first and by plain pip, so that the build fits the machine; all else is pinned, so nothing needs resolving.
echo "installing torch (once; minutes)" >&2
$pip install --no-compile "$(grep -E '^torch==' locks/platform.in)"
echo "installing the pinned set (once; minutes)" >&2
$pip install --no-compile --no-deps -r locks/platform.txt
# pip compiles one file after the other; this takes all cores. Templates that are no Python stay as they are, and so does
# what hardly anybody imports, a quarter of all: it is compiled when somebody does.
seldom='/(tests|geodata|transformers/models/(?!auto|llama)[^/]+)/'
"$venv/bin/python" -m compileall -q -j 0 -x "$seldom" "$venv/lib" >/dev/null 2>&1 || true
$pip install --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
touch "$venv/.installed"
