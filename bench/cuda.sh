#!/usr/bin/env bash
# Run all checks that need an NVIDIA GPU, or only the named parts:
#
#     tests      kernels, operators and programs, compared with the CPU; failures are listed in FOLDER/card-*.xml
#     sanitizer  memory accesses of the kernels under compute-sanitizer, if it is installed
#     training   training on digits, compared with the CPU, and saved files; with two processes if there are two GPUs
#     rates      kernels compared with a copy, matrix products with CuPy, the host's share of a step
#     networks   inference and training compared with PyTorch and ONNX Runtime with CUDA, which it installs
#
# A failure does not stop the rest; all failures are listed at the end. Needs a driver, g++ and a Python (PYTHON, default
# python3). With INSTALLED=1 nothing is installed: the active environment must contain graphkit and the other engines.
#
#     bench/cuda.sh [cuda12|cuda13] [FOLDER FOR FIGURES] [PART...]
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
extra=${1:-cuda12}
figures=${2:-bench/results}
parts=("${@:3}")
[ ${#parts[@]} -gt 0 ] || parts=(tests sanitizer training rates networks)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()

# Does one thing, and remembers it where it fails.
try() {
    printf '\n==> %s\n' "$*"
    "$@" || failed+=("$*")
}

tests() {
    # With each processor core a worker of its own; a name is written as soon as its test is done.
    try pytest -v --junitxml "$figures/card-zoo.xml" tests/models/test_zoo_on_a_card.py
    # Kernels and programs on the card, where they are else on the processor and on the stand-in.
    GRAPHKIT_TEST_CARD=1 try pytest -v -m "full or not full" --junitxml "$figures/card-tests.xml" tests/executor/devices/cuda
}

sanitizer() {
    if ! command -v compute-sanitizer >/dev/null; then
        echo "compute-sanitizer is not installed: accesses are not checked on the card" >&2
        return
    fi
    local tool
    for tool in memcheck racecheck; do
        GRAPHKIT_TEST_CARD=1 try compute-sanitizer --tool "$tool" --error-exitcode 1 \
            python -m pytest -n 0 tests/executor/devices/cuda/test_card_*.py
    done
}

verified() {
    try graphkit export "$work/$1" -o "$work/$1.onnx"
    try graphkit verify "$work/$1.onnx"
}

training() {
    local device nccl
    try graphkit build lenet --data digits -o "$work/net.json"
    local learned=(graphkit train "$work/net.json" --data digits --epochs 10)
    for device in cpu cuda; do
        try "${learned[@]}" --device "$device" -o "$work/$device"
        verified "$device"
    done
    if [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ]; then
        echo "there are no two cards: sums among cards are not tried" >&2
        return
    fi
    for nccl in 0 1; do
        GRAPHKIT_NCCL=$nccl try mpiexec -n 2 "${learned[@]}" --device cuda --kvstore dist_sync -o "$work/nccl$nccl"
        verified "nccl$nccl"
    done
}

rates() {
    try python bench/card.py --record "$figures/card.json"
    try python bench/card_host.py --record "$figures/card-host.json"
}

networks() {
    if [ -z "${INSTALLED:-}" ]; then
        # Both distributions have one module.
        pip uninstall --quiet --yes onnxruntime
        try pip install --quiet torch onnxruntime-gpu
    fi
    try python bench/card_networks.py --record "$figures/card-networks"
    try python bench/card_networks.py --precision bf16 --record "$figures/card-networks-bf16"
}

for part in "${parts[@]}"; do
    case $part in
        tests | sanitizer | training | rates | networks) ;;
        *) echo "there is no part '$part': tests, sanitizer, training, rates or networks" >&2 && exit 2 ;;
    esac
done
if [ -z "${INSTALLED:-}" ]; then
    "${PYTHON:-python3}" -m venv "$work/venv" || exit 1
    # shellcheck disable=SC1091
    source "$work/venv/bin/activate"
    # Either CuPy has NVRTC of its own release.
    pip install --quiet ".[mpi,images,tables,text,curves,$extra]" pytest pytest-xdist || exit 1
fi
graphkit doctor || exit 1
export GRAPHKIT_CACHE=$work/cache
for part in "${parts[@]}"; do
    "$part"
done
if [ ${#failed[@]} -gt 0 ]; then
    printf '\nfailed:\n'
    printf '    %s\n' "${failed[@]}"
    exit 1
fi
