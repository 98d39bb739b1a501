#!/bin/sh
# Run every check of this checkout that needs a GPU, one set of steps at a time (the plan is in
# docs/gpu-setup.md):
#
#   tools/gpu_check.sh [--set first|why|changed|listeners|reliability|more] [--seconds N] [--name NAME]
#                      [--out FOLDER] [--commit COMMIT] [--emulation | --toy]
#
# It needs nvcc and a Python with torch, numpy, ninja, safetensors, tokenizers and huggingface_hub, but
# not an installation of this package. The exit code is 0 if no step failed (the result marks steps that
# were refused, skipped, short of their goal or out of time), 1 if one failed or timed out, 77 without a
# GPU.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" tools/gpu_check/run.py "$@"
