#!/bin/sh
# What a GPU can say about this checkout, a set of steps at a time (docs/gpu-setup.md has the plan):
#
#   tools/gpu_check.sh [--set first|why|changed|listeners|reliability|more] [--seconds N] [--name NAME]
#                      [--out FOLDER] [--commit COMMIT] [--emulation | --toy]
#
# Needs nvcc and a Python with torch, numpy, safetensors, tokenizers and huggingface_hub; nothing of
# ours is installed. Exit code 0: no step failed (what was refused, skipped, short of its goal or had
# no time says so); 1: one failed or timed out; 77: no GPU here.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" tools/gpu_check/run.py "$@"
