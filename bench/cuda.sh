#!/usr/bin/env bash
# All that has to be seen on an NVIDIA card: kernels and operators against the processor's, their memory accesses under
# compute-sanitizer where it is installed, a training whose file passes `verify`, two processes where there are two cards,
# rates, and networks beside PyTorch and ONNX Runtime (with CUDA, which it installs). Needs a driver, g++ and a Python
# (PYTHON, default python3).
#
#     bench/cuda.sh [cuda12|cuda13] [FOLDER FOR FIGURES]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=${1:-cuda12}
figures=${2:-bench/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
# shellcheck disable=SC1091
source "$work/venv/bin/activate"
# Either CuPy has NVRTC of its own release.
pip install --quiet ".[mpi,images,tables,text,curves,$extra]" pytest pytest-xdist
graphkit doctor
export GRAPHKIT_CACHE=$work/cache

pytest tests/executor/devices/cuda tests/models/test_zoo_on_a_card.py
# Kernels and programs on the card, where they are else on the processor and on the stand-in.
export GRAPHKIT_TEST_CARD=1
pytest -m "full or not full" tests/executor/devices/cuda
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 python -m pytest -n 0 tests/executor/devices/cuda/test_card_*.py
    done
else
    echo "compute-sanitizer is not installed: accesses are not checked on the card" >&2
fi
unset GRAPHKIT_TEST_CARD
# Digits as the processor learns them, and files of what was learned; on two cards by NCCL and by way of the host.
graphkit build lenet --dataset digits -o "$work/net.json"
learned=(graphkit train "$work/net.json" --data digits --epochs 10)
for device in cpu cuda; do
    "${learned[@]}" --device "$device" -o "$work/$device"
    graphkit export "$work/$device" -o "$work/$device.onnx"
    graphkit verify "$work/$device.onnx"
done
if [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ]; then
    for nccl in 0 1; do
        GRAPHKIT_NCCL=$nccl mpiexec -n 2 "${learned[@]}" --device cuda --kvstore dist_sync -o "$work/nccl$nccl"
        graphkit export "$work/nccl$nccl" -o "$work/nccl$nccl.onnx"
        graphkit verify "$work/nccl$nccl.onnx"
    done
else
    echo "there are no two cards: sums among cards are not tried" >&2
fi
python bench/card.py --record "$figures/card.json" | tee "$figures/card.md"
# Both distributions have one module.
pip uninstall --quiet --yes onnxruntime
pip install --quiet torch onnxruntime-gpu
python bench/card_networks.py --record "$figures/card-networks"
python bench/card_networks.py --precision bf16 --record "$figures/card-networks-bf16"
