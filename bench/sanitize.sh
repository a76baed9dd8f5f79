#!/usr/bin/env bash
# Runs the native code under sanitizers.
#
#     bench/sanitize.sh [address|thread|card|all|sample] [pytest arguments]
#
# address  The extension under AddressSanitizer and UndefinedBehaviorSanitizer: tests/executor/devices/cpu and the tests
#          of the engine.
# thread   Under ThreadSanitizer: the dependency engine and the helpers that share loops, in programs of their own; then
#          the extension, with tests whose kernels run on several threads.
# card     The GPU kernels, which the tests run on the processor, under AddressSanitizer and UndefinedBehaviorSanitizer.
# all      These three. The default.
# sample   These three with every n-th test only (SAMPLE, default below), in a bounded time: what .ci/run can afford.
#
# Needs g++ and a Python (PYTHON, default python3) that has graphkit's test dependencies. Builds into build/sanitize,
# again only what changed, and leaves the installed graphkit alone. Prints the processor time of each part.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$root/build/sanitize
native=$root/graphkit/executor/native
compiler=${CXX:-g++}
python=${PYTHON:-python3}
# Besides the baseline, one vector instruction set is enough: AVX-512 differs from AVX2 only in its intrinsics, not in
# its loops. For races between threads, the baseline is enough.
address_isas=${ISAS:-baseline;avx2}
thread_isas=${ISAS:-baseline}
every=1
stress_seconds=10
mkdir -p "$work"

part() {
    local TIMEFORMAT="<== $1: %U s user, %S s sys, %R s wall"
    printf '==> %s\n' "$1"
    shift
    time "$@"
}

# build NAME SANITIZERS ISAS: installs the extension into an environment of its own, work/NAME, which finds everything but
# graphkit where the given Python finds it.
build() {
    local name=$1 sanitizers=$2 isas=$3 site isolation=()
    "$python" -m venv --without-pip --clear "$work/$name"
    site=$("$work/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import sys; print("\n".join(p for p in sys.path if "-packages" in p))' >"$site/base.pth"
    # Without isolation the paths of headers stay the same, so that a second build compiles only what changed.
    if "$python" -c "import scikit_build_core, nanobind, importlib.metadata as m; m.version('onednn-devel-cpu-gomp')" 2>/dev/null; then
        isolation=(--no-build-isolation)
    fi
    "$python" -m pip --python "$work/$name/bin/python" install "$root" --quiet --no-deps "${isolation[@]}" \
        --force-reinstall -C build-dir="$work/$name-build" -C install.strip=false \
        -C cmake.define.GRAPHKIT_SANITIZE="$sanitizers" -C cmake.define.GRAPHKIT_ISAS="$isas" \
        -C cmake.define.CMAKE_CXX_COMPILER="$compiler"
}

# The libraries that have to be loaded before the interpreter: a sanitizer's, and the C++ library, which it intercepts.
preloaded() {
    local library
    for library in "$@" libstdc++.so; do
        printf '%s ' "$("$compiler" -print-file-name="$library")"
    done
}

# tests PYTHON ARGUMENTS...: pytest, with the sanitizer's reports printed if it fails. Reports go past pytest, which
# captures what is printed: a process that is aborted never returns it. A report of a fault fails the run even if the
# test passes. A build under sanitizers has no stub.
tests() {
    local interpreter=$1 status=0
    shift
    rm -f "$work"/report*
    (cd "$work" && PYTHONPATH=$root/bench PYTHONDONTWRITEBYTECODE=1 "$interpreter" -m pytest -c "$root/pyproject.toml" \
        --rootdir "$root" -p no:cacheprovider -p every_nth --every "$every" -q -rfE \
        --deselect tests/executor/devices/cpu/test_module.py::test_stub_lists_what_the_module_has "$@") || status=$?
    if grep -qsE 'ERROR: |runtime error: |WARNING: ThreadSanitizer' "$work"/report*; then
        status=1
    fi
    [ "$status" -eq 0 ] || cat "$work"/report* >&2 || true
    return "$status"
}

address_tests() {
    # Python never frees some of its memory; its small-object allocator would hide errors in the rest.
    LD_PRELOAD=$(preloaded libasan.so libubsan.so) PYTHONMALLOC=malloc \
        ASAN_OPTIONS=detect_leaks=0:strict_init_order=1:log_path="$work/report" \
        UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:log_path="$work/report-undefined" \
        tests "$work/address/bin/python" "${@:-$root/tests/executor/devices/cpu}" "$root"/tests/executor/run/test_engine*.py
}

address() {
    part "build with AddressSanitizer and UndefinedBehaviorSanitizer" build address address,undefined "$address_isas"
    part "tests under AddressSanitizer and UndefinedBehaviorSanitizer" address_tests "$@"
}

stress() {
    local program
    for program in engine_stress pool_stress; do
        "$compiler" -std=c++20 -O1 -g -fsanitize=thread -Wall -Wextra -I "$native" \
            "$root/tests/executor/devices/cpu/$program.cpp" "$native"/runtime/{engine,variable,threads,pool}.cpp \
            -pthread -o "$work/$program"
        TSAN_OPTIONS=halt_on_error=1 "$work/$program" "$stress_seconds"
    done
}

thread_tests() {
    # Python, numpy and oneDNN are not instrumented: what they write is not seen, and what they call is not judged.
    # The processes that a test forks inherit the runtime.
    LD_PRELOAD=$(preloaded libtsan.so) \
        TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0:report_signal_unsafe=0:log_path="$work/report" \
        tests "$work/thread/bin/python" \
        "${@:-$root/tests/executor/devices/cpu}" "$root"/tests/executor/run/test_engine*.py
}

thread() {
    part "programs under ThreadSanitizer" stress
    part "build with ThreadSanitizer" build thread thread "$thread_isas"
    part "tests under ThreadSanitizer" thread_tests "$@"
}

card_tests() {
    # Floats outside of an integer's range have no specified result, as in numpy. NVRTC looks for its other library by
    # a path of its own, which the sanitizer's dlopen does not see.
    local nvrtc
    nvrtc=$("$python" -c 'import importlib.util as u; s = u.find_spec("nvidia"); print(*(s and s.submodule_search_locations or []))')
    LD_LIBRARY_PATH=$nvrtc/cuda_nvrtc/lib:${LD_LIBRARY_PATH:-} LD_PRELOAD=$(preloaded libasan.so libubsan.so) PYTHONMALLOC=malloc \
        GRAPHKIT_TEST_KERNEL_FLAGS="-fsanitize=address,undefined -fno-sanitize=float-cast-overflow" \
        ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:log_path="$work/report" \
        UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:log_path="$work/report-undefined" \
        tests "$python" "${@:-$root/tests/executor/devices/cuda}" -k "not compiles_for_cards"
}

card() {
    part "GPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer" card_tests "$@"
}

case ${1:-all} in
card) shift && card "$@" ;;
address) shift && address "$@" ;;
thread) shift && thread "$@" ;;
all) thread && address && card ;;
sample)
    stress_seconds=5
    every=${SAMPLE:-40}
    address
    thread
    card
    ;;
*) echo "usage: bench/sanitize.sh [address|thread|card|all|sample] [pytest arguments]" >&2 && exit 2 ;;
esac
echo "sanitizers: nothing found"
