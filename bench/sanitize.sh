#!/usr/bin/env bash
# Runs the native code under sanitizers: the extension, with tests/executor/devices/cpu and the tests of the engine, under
# AddressSanitizer and UndefinedBehaviorSanitizer; the dependency engine and the helpers that share loops, in programs of
# their own, under ThreadSanitizer. The card's kernels, which the tests run on the processor, under AddressSanitizer and
# UndefinedBehaviorSanitizer.
#
#     bench/sanitize.sh [address|thread|card] [pytest arguments]
#
# Needs g++ and a Python (PYTHON, default python3) that has graphkit's build and test dependencies. Builds into
# build/sanitize, again only what changed, and leaves the installed graphkit alone.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$root/build/sanitize
native=$root/graphkit/executor/native
compiler=${CXX:-g++}
mkdir -p "$work"

address() {
    local python site libraries
    python=${PYTHON:-python3}
    # An environment of its own, which finds everything but graphkit where the given Python finds it.
    "$python" -m venv --without-pip --clear "$work/venv"
    site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import sys; print("\n".join(p for p in sys.path if "-packages" in p))' >"$site/base.pth"
    "$python" -m pip --python "$work/venv/bin/python" install "$root" --quiet --no-deps --no-build-isolation \
        --force-reinstall -C build-dir="$work/extension" -C install.strip=false \
        -C cmake.define.GRAPHKIT_SANITIZE=address,undefined -C cmake.define.CMAKE_CXX_COMPILER="$compiler"
    # The runtime has to come before the interpreter, and the C++ library before it resolves what it intercepts.
    libraries="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
    libraries="$libraries $("$compiler" -print-file-name=libstdc++.so)"
    # Python never frees some of its memory; its small-object allocator would hide errors in the rest.
    # Reports go past pytest, which takes what is printed: a process that is aborted never gives it back.
    rm -f "$work"/report.*
    cd "$work" && LD_PRELOAD=$libraries PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 \
        ASAN_OPTIONS=detect_leaks=0:strict_init_order=1:log_path="$work/report" \
        UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:log_path="$work/report" \
        "$work/venv/bin/python" -m pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider -q \
        --deselect tests/executor/devices/cpu/test_module.py::test_stub_lists_what_the_module_has \
        "${@:-$root/tests/executor/devices/cpu}" "$root"/tests/executor/run/test_engine*.py || { cat "$work"/report.* >&2 && return 1; }
}

thread() {
    local stress
    for stress in engine_stress pool_stress; do
        "$compiler" -std=c++20 -O1 -g -fsanitize=thread -Wall -Wextra -I "$native" \
            "$root/tests/executor/devices/cpu/$stress.cpp" "$native"/runtime/{engine,variable,threads,pool}.cpp \
            -pthread -o "$work/$stress"
        TSAN_OPTIONS=halt_on_error=1 "$work/$stress" 10
    done
}

card() {
    local python libraries
    python=${PYTHON:-python3}
    libraries="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
    libraries="$libraries $("$compiler" -print-file-name=libstdc++.so)"
    rm -f "$work"/report.*
    # Floats outside of an integer's range have no specified result, as in numpy.
    cd "$work" && LD_PRELOAD=$libraries PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 \
        GRAPHKIT_TEST_KERNEL_FLAGS="-fsanitize=address,undefined -fno-sanitize=float-cast-overflow" \
        ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:log_path="$work/report" \
        UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:log_path="$work/report" \
        "$python" -m pytest -c "$root/pyproject.toml" --rootdir "$root" -p no:cacheprovider -q \
        "${@:-$root/tests/executor/devices/cuda}" -k "not compiles_for_cards" || { cat "$work"/report.* >&2 && return 1; }
}

case ${1:-all} in
card) shift && card "$@" ;;
address) shift && address "$@" ;;
thread) thread ;;
all) thread && address && card ;;
*) echo "usage: bench/sanitize.sh [address|thread|card] [pytest arguments]" >&2 && exit 2 ;;
esac
echo "sanitizers: nothing found"
