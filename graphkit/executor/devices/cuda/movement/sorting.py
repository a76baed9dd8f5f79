"""Numbers in order, with where they stood: what brings together updates of the same element.

A radix sort of eight bits a pass, from the lowest on, which is stable (Knuth, TAOCP 3, 5.2.5). A block goes over a
stretch of the keys. Of each pass a first launch counts the digits of every stretch; a second adds up, for the digits of
its own stretch, how many keys go before them, and moves these, ranked within a warp by comparing digits. A pass reads
keys twice, and writes them and their places once. What is counted does not depend on an order: the result has the same
bits every time. What one block can sort is sorted by one launch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Launch, Scratch, Source, source_of
from graphkit.executor.devices.cuda.text.joining import WARP, scanned

# A digit is of eight bits: one value for each thread.
_BITS = 8
_WARPS = THREADS // WARP
# Stretches at most; each of them reads what all have counted. Keys of one at least, as long as there are fewer.
_MOST_STRETCHES, _LEAST = 256, 4 * THREADS
_ALIGNMENT = 256
# Keys that a block sorts alone.
ALONE = 1024


class Sorted(NamedTuple):
    """Where sorted keys lie in scratch memory, and the places at which they stood; what sorts them; bytes used so far.

    Equal keys stand in the order of their places.
    """

    keys: Scratch
    places: Scratch
    launches: tuple[Launch, ...]
    scratch_bytes: int


def aligned(nbytes: int) -> int:
    """Bytes of scratch memory behind which another piece may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def sort(count: int, bound: int, begin: int) -> Sorted:
    """The sort of `count` keys, `gk_u32` below `bound`, which lie in scratch memory from `begin` on, a multiple of 16.

    count: from 1 to 2^31 - 1. Working memory is taken behind the keys.
    """
    size = aligned(count * 4)
    if count <= ALONE:
        keys, places = Scratch(begin + size), Scratch(begin + 2 * size)
        sizes = np.uint32(count), np.uint32(1 << (count - 1).bit_length())
        return Sorted(keys, places, (Launch(_ALL, 1, (Scratch(begin), keys, places, *sizes)),), begin + 3 * size)
    return _by_digits(count, bound, begin)


def _by_digits(count: int, bound: int, begin: int) -> Sorted:
    stretches = min(-(-count // _LEAST), _MOST_STRETCHES)
    length = -(-count // stretches)
    stretches = -(-count // length)
    size = aligned(count * 4)
    keys = [Scratch(begin), Scratch(begin + size)]
    places = [Scratch(begin + 2 * size), Scratch(begin + 3 * size)]
    counts = Scratch(begin + 4 * size)
    launches = []
    passes = max(-(-(bound - 1).bit_length() // _BITS), 1)
    sizes = np.uint32(count), np.uint32(length)
    for number in range(passes):
        shift = np.uint32(number * _BITS)
        launches.append(Launch(_COUNT, stretches, (keys[0], counts, *sizes, shift)))
        given = (keys[0], places[0]) if number else (keys[0],)
        to = keys[1], places[1]
        launches.append(Launch(_PLACE[number > 0], stretches, (*given, *to, counts, *sizes, shift)))
        keys.reverse()
        places.reverse()
    end = counts.offset + aligned(stretches * THREADS * 4)
    return Sorted(keys[0], places[0], tuple(launches), end)


# Sorts `padded` pairs, a power of two, of `keys`, numbers of type K, and `spots`, in shared memory (Batcher 1968).
BITONIC = [
    "for (gk_u32 span = 2; span <= padded; span *= 2) {",
    "    for (gk_u32 far = span / 2; far > 0; far /= 2) {",
    f"        for (gk_u32 t = threadIdx.x; t < padded / 2; t += {THREADS}u) {{",
    "            const gk_u32 a = 2 * t - (t & (far - 1)), b = a + far;",
    "            const bool later = keys[a] > keys[b] || (keys[a] == keys[b] && spots[a] > spots[b]);",
    "            if (later == ((a & span) == 0)) {",
    "                const K key = keys[a];",
    "                const gk_u32 spot = spots[a];",
    "                keys[a] = keys[b];",
    "                spots[a] = spots[b];",
    "                keys[b] = key;",
    "                spots[b] = spot;",
    "            }",
    "        }",
    "        __syncthreads();",
    "    }",
    "}",
]


def _all() -> Source:
    lines = [
        "typedef gk_u32 K;",
        f"__shared__ K keys[{ALONE}];",
        f"__shared__ gk_u32 spots[{ALONE}];",
        f"for (gk_u32 t = threadIdx.x; t < padded; t += {THREADS}u) {{",
        "    keys[t] = t < count ? given[t] : ~(K)0;",
        "    spots[t] = t;",
        "}",
        "__syncthreads();",
        *BITONIC,
        f"for (gk_u32 t = threadIdx.x; t < count; t += {THREADS}u) {{",
        "    new_keys[t] = keys[t];",
        "    new_places[t] = spots[t];",
        "}",
    ]
    parameters = ["const gk_u32* given", "gk_u32* new_keys", "gk_u32* new_places", "gk_u32 count", "gk_u32 padded"]
    return source_of("sort_all", parameters, lines)


def _count() -> Source:
    lines = [
        f"__shared__ gk_u32 found[{THREADS}];",
        "found[threadIdx.x] = 0;",
        "__syncthreads();",
        "const gk_u32 begin = gk_block * length, end = begin + length < count ? begin + length : count;",
        f"for (gk_u32 j = begin + threadIdx.x; j < end; j += {THREADS}u) {{",
        "    atomicAdd(&found[keys[j] >> shift & 255u], 1u);",
        "}",
        "__syncthreads();",
        f"counts[gk_block * {THREADS}u + threadIdx.x] = found[threadIdx.x];",
    ]
    parameters = ["const gk_u32* keys", "gk_u32* counts", "gk_u32 count", "gk_u32 length", "gk_u32 shift"]
    return source_of("sort_count", parameters, lines)


def _place(moved: bool) -> Source:
    """moved: whether keys have been moved before, and their places are to be read."""
    lines = [
        "typedef gk_u32 A;",
        f"__shared__ gk_u32 next[{THREADS}];",
        # Of each warp and digit: how many keys, then where the first of them goes.
        f"__shared__ gk_u32 of_warp[{_WARPS}][{THREADS}];",
        f"const gk_u32 lane = threadIdx.x % {WARP}u, warp = threadIdx.x / {WARP}u;",
        "gk_u32 earlier = 0, digits = 0;",
        "for (gk_u32 stretch = 0; stretch * length < count; ++stretch) {",
        f"    const gk_u32 found = counts[stretch * {THREADS}u + threadIdx.x];",
        "    earlier += stretch < gk_block ? found : 0;",
        "    digits += found;",
        "}",
        *scanned("digits", "a + b"),
        "next[threadIdx.x] = earlier + (threadIdx.x == 0 ? 0 : digits_before);",
        "const gk_u32 begin = gk_block * length, end = begin + length < count ? begin + length : count;",
        f"for (gk_u32 first = begin; first < end; first += {THREADS}u) {{",
        "    const gk_u32 j = first + threadIdx.x;",
        "    const gk_u32 key = j < end ? keys[j] : 0;",
        "    const gk_u32 digit = j < end ? key >> shift & 255u : 256u;",
        f"    for (int w = 0; w < {_WARPS}; ++w) {{",
        "        of_warp[w][threadIdx.x] = 0;",
        "    }",
        "    __syncthreads();",
        "    const gk_u32 peers = __match_any_sync(0xffffffffu, digit);",
        "    const gk_u32 rank = __popc(peers & ((1u << lane) - 1u));",
        "    if (j < end && rank == 0) {",
        "        of_warp[warp][digit] = __popc(peers);",
        "    }",
        "    __syncthreads();",
        "    gk_u32 to = next[threadIdx.x];",
        f"    for (int w = 0; w < {_WARPS}; ++w) {{",
        "        const gk_u32 found = of_warp[w][threadIdx.x];",
        "        of_warp[w][threadIdx.x] = to;",
        "        to += found;",
        "    }",
        "    next[threadIdx.x] = to;",
        "    __syncthreads();",
        "    if (j < end) {",
        "        const gk_u32 at = of_warp[warp][digit] + rank;",
        "        new_keys[at] = key;",
        f"        new_places[at] = {'places[j]' if moved else 'j'};",
        "    }",
        "    __syncthreads();",
        "}",
    ]
    given = ["const gk_u32* keys", "const gk_u32* places"] if moved else ["const gk_u32* keys"]
    parameters = [
        *given, "gk_u32* new_keys", "gk_u32* new_places", "const gk_u32* counts",
        "gk_u32 count", "gk_u32 length", "gk_u32 shift",
    ]  # fmt: skip
    return source_of("sort_place", parameters, lines)


_ALL, _COUNT, _PLACE = _all(), _count(), (_place(False), _place(True))
