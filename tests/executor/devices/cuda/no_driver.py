"""cuDNN without a GPU: it makes plans for a device with given properties.

The driver and the CUDA runtime that it loads are replaced by a library of empty functions. No plan is run.
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/utilities/deviceless-ahead-of-time-compilation.html
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from emulator import COMPILER

_DRIVER = """
#define NOTHING(name) extern "C" int name(void) { return 100; }
NOTHING(cuGetErrorString) NOTHING(cuModuleGetFunction) NOTHING(cuModuleLoadData) NOTHING(cuModuleUnload)
NOTHING(cuTensorMapEncodeIm2col) NOTHING(cuTensorMapEncodeTiled)
NOTHING(cuGetErrorName) NOTHING(cuCtxGetCurrent) NOTHING(cuCtxGetLimit) NOTHING(cuCtxPopCurrent)
NOTHING(cuCtxPushCurrent) NOTHING(cuStreamGetCtx) NOTHING(cuLinkCreate) NOTHING(cuLinkAddData) NOTHING(cuLinkComplete)
NOTHING(cuLinkDestroy) NOTHING(cuLaunchKernel) NOTHING(cuLaunchKernelEx) NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuDeviceGetCount) NOTHING(cuDeviceGet) NOTHING(cuLibraryLoadFromFile)
// Code that was compiled for a plan is loaded when the plan is made.
#define LOADED(name) extern "C" int name(void** made, ...) { *made = (void*)made; return 0; }
LOADED(cuLibraryLoadData) LOADED(cuLibraryGetKernel) LOADED(cuKernelGetFunction)
#define DONE(name) extern "C" int name(void) { return 0; }
DONE(cuLibraryUnload) DONE(cuKernelSetAttribute)
#define NUMBER(name) extern "C" int name(int* number, ...) { *number = 1; return 0; }
NUMBER(cuKernelGetAttribute) NUMBER(cuOccupancyMaxPotentialClusterSize)
extern "C" int cuDriverGetVersion(int* version) { *version = 12090; return 0; }
"""
# Attributes 75 and 76 are the compute capability, 16 the number of multiprocessors.
_RUNTIME = """
extern "C" int cudaGetDevice(int* device) { *device = 0; return 0; }
extern "C" int cudaDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == 75 ? MAJOR : attribute == 16 ? PROCESSORS : 0;
    return 0;
}
extern "C" const char* cudaGetErrorString(int) { return "no card"; }
"""

# By compute capability: of an A100, an H100 and a B200.
_COMMON = {
    "version": 1, "cudaDeviceId": 0, "driverVer": 12090, "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "smCountOrigin": 0, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
    "supportCoopLaunch": 1, "smClockRateKHz": 1700000, "memClockRateKHz": 2000000, "memoryBusWidth": 5120,
}  # fmt: skip
_CARDS = {
    "sm_80": ("A100", 800, 108, 166912, 80 << 30, 40 << 20),
    "sm_90": ("H100", 900, 132, 232448, 80 << 30, 50 << 20),
    "sm_100": ("B200", 1000, 148, 232448, 180 << 30, 126 << 20),
}


def load(folder: Path, architecture: str) -> None:
    """Have the process, which must not have loaded cuDNN, find the two libraries."""
    _, version, processors, *_ = _CARDS[architecture]
    for name, text in (("libcuda.so.1", _DRIVER), ("libcudart.so", _RUNTIME)):
        (folder / "text.cpp").write_text(text)
        facts = [f"-DMAJOR={version // 100}", f"-DPROCESSORS={processors}"]
        command = [str(COMPILER), *facts, "-shared", "-fPIC", f"-Wl,-soname,{name}", "text.cpp", "-o", name]
        subprocess.run(command, cwd=folder, check=True)
    ctypes.CDLL(str(folder / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
    os.environ["CUDNN_FRONTEND_CUDART_LIB_NAME"] = str(folder / "libcudart.so")


def properties(dnn: Any, architecture: str) -> Any:
    """Return the device properties that `pygraph` takes instead of a GPU."""
    name, version, processors, shared, memory, cache = _CARDS[architecture]
    described = _COMMON | {
        "deviceName": name, "deviceVer": version, "multiProcessorCount": processors, "totalGlobalMem": memory,
        "maxSharedMemoryPerBlockOptin": shared, "oversizedSharedMemoryPerBlock": shared, "l2CacheSize": cache,
    }  # fmt: skip
    return dnn.create_device_properties(json.dumps(described))
