#!/bin/sh
# Makes the virtual environment from the pinned locks. Arguments: a Python 3.11 and the folder to make.
set -eu
python=$1 venv=$2
command -v "$python" >/dev/null 2>&1 || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || {
    echo "flywheel needs Python 3.11 with its venv module; none is on the PATH." >&2
    echo "Bring it with: apt-get install python3.11 python3.11-venv    (or: make PYTHON=/path/to/python3.11 setup)" >&2
    exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || {
    echo "python's venv module is missing. Bring it with: apt-get install python3.11-venv" >&2
    exit 1
}
pip="$venv/bin/python -m pip --disable-pip-version-check -q"
# torch first and by plain pip, so that the build fits the machine; all else is pinned, so nothing needs resolving.
echo "installing torch (once; minutes)" >&2
$pip install "$(grep -E '^torch==' locks/platform.in)"
echo "installing the pinned set (once; minutes)" >&2
$pip install --no-deps -r locks/platform.txt
$pip install --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
touch "$venv/.installed"
