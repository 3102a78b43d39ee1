#!/bin/sh
# Makes vLLM's own environment from its lock. Arguments: a Python 3.11, the folder to make, cpu or gpu.
# The stamp names lock and device: the same again does nothing, another starts afresh.
set -eu
python=$1 venv=$2 device=$3
case $device in
    cpu) lock=locks/vllm.txt ;;
    gpu) lock=locks/vllm-gpu.txt ;;
    *) echo "DEVICE is $device; it is cpu or gpu" >&2; exit 2 ;;
esac
stamp=$(printf '%s ' "$device"; cksum < "$lock")
[ "$(cat "$venv/.installed" 2>/dev/null)" != "$stamp" ] || exit 0
verb=install-vllm
. scripts/python311.sh
rm -f "$venv/.installed"
"$python" -m venv --clear "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check -qq"
if [ "$device" = cpu ]; then
    echo "vllm: installing torch for the CPU (once; minutes)" >&2
    $pip install --no-compile 'torch==2.13.0+cpu' 2>/dev/null || $pip install --no-compile 'torch==2.13.0'
fi
echo "vllm: installing the pinned set for the $device (once; minutes)" >&2
$pip install --no-compile --no-deps -r "$lock"
echo "$stamp" > "$venv/.installed"
echo "vllm: $venv is ready" >&2
