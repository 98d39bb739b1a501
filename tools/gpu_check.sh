#!/bin/sh
# Everything a GPU can say about this checkout, in one command and less than nine minutes:
#
#   tools/gpu_check.sh [--set truth|endurance|listeners|int8] [--name NAME] [--out FOLDER] [--emulation]
#
# Needs nvcc and a Python with torch, numpy, safetensors, tokenizers and huggingface_hub; nothing of
# ours is installed. Exit code 0: all steps passed; 1: one did not; 77: no GPU here.
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" tools/gpu_check.py "$@"
