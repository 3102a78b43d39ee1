#!/bin/sh
# Sourced by what makes an environment: leaves a Python 3.11 in $python, or says how to bring one. $verb: the verb.
command -v "$python" >/dev/null 2>&1 || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || {
    echo "This needs Python 3.11 with its venv module; none is on the PATH." >&2
    echo "Bring it with: apt-get install python3.11 python3.11-venv    (or: make PYTHON=/path/to/python3.11 $verb)" >&2
    exit 1
}
