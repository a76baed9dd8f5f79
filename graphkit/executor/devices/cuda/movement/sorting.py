"""A stable sort of integer keys with their original positions.

It is a radix sort with eight bits per pass, beginning with the lowest (Knuth, TAOCP 3, 5.2.5). Each block processes a
chunk of the keys. In each pass, a first launch counts the digits of every chunk. A second launch computes, for each
digit of a chunk, the number of keys that come before it, and moves the keys; within a warp, keys are ranked by
comparing digits. A pass reads keys twice, and writes keys and positions once. Counts do not depend on the order of
threads, so the result is the same every time. If one block can sort all keys, a single launch does.
"""

from __future__ import annotations

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, Launch, Scratch, Source, source_of
from graphkit.executor.devices.cuda.text.joining import WARP, scanned
from graphkit.named_tuples import NamedTuple

# Bits of a digit. There is one thread for each value of a digit.
_BITS = 8
_WARPS = THREADS // WARP
# The largest number of chunks, because each block reads the counts of all chunks. With fewer chunks, a chunk has at
# most _LEAST keys.
_MOST_CHUNKS, _LEAST = 256, 4 * THREADS
_ALIGNMENT = 256
# The largest number of keys that a single block sorts.
ALONE = 1024


class Sorted(NamedTuple):
    """The result of a sort. Equal keys are in the order of their original positions.

    Attributes:
        keys: The sorted keys, in scratch memory.
        places: Their original positions, in scratch memory.
        launches: The launches that sort.
        scratch_bytes: Bytes of scratch memory that are in use, from 0 on.
    """

    keys: Scratch
    places: Scratch
    launches: tuple[Launch, ...]
    scratch_bytes: int


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment of pieces of scratch memory."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def sort(count: int, bound: int, begin: int) -> Sorted:
    """Return the sort of keys in scratch memory.

    Args:
        count: Number of keys, from 1 to 2^31 - 1.
        bound: Keys, of type `gk_u32`, are below this number.
        begin: Offset of the keys in scratch memory, a multiple of 16. The memory after them is used, too.
    """
    size = aligned(count * 4)
    if count <= ALONE:
        keys, places = Scratch(begin + size), Scratch(begin + 2 * size)
        sizes = np.uint32(count), np.uint32(1 << (count - 1).bit_length())
        return Sorted(keys, places, (Launch(_ALL, 1, (Scratch(begin), keys, places, *sizes)),), begin + 3 * size)
    return _by_digits(count, bound, begin)


def _by_digits(count: int, bound: int, begin: int) -> Sorted:
    chunks = min(-(-count // _LEAST), _MOST_CHUNKS)
    length = -(-count // chunks)
    chunks = -(-count // length)
    size = aligned(count * 4)
    keys = [Scratch(begin), Scratch(begin + size)]
    places = [Scratch(begin + 2 * size), Scratch(begin + 3 * size)]
    counts = Scratch(begin + 4 * size)
    launches = []
    passes = max(-(-(bound - 1).bit_length() // _BITS), 1)
    sizes = np.uint32(count), np.uint32(length)
    for number in range(passes):
        shift = np.uint32(number * _BITS)
        launches.append(Launch(_COUNT, chunks, (keys[0], counts, *sizes, shift)))
        given = (keys[0], places[0]) if number else (keys[0],)
        to = keys[1], places[1]
        launches.append(Launch(_PLACE[number > 0], chunks, (*given, *to, counts, *sizes, shift)))
        keys.reverse()
        places.reverse()
    end = counts.offset + aligned(chunks * THREADS * 4)
    return Sorted(keys[0], places[0], tuple(launches), end)


# Lines that sort pairs of `keys` (of type K) and `spots` in shared memory (bitonic sort, Batcher 1968). The number of
# pairs is `padded`, a power of two.
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
    """Return the source that moves keys in a pass. moved: True after the first pass: positions are read from memory."""
    lines = [
        "typedef gk_u32 A;",
        f"__shared__ gk_u32 next[{THREADS}];",
        # For each warp and digit: the number of keys, then the position of the first of them.
        f"__shared__ gk_u32 of_warp[{_WARPS}][{THREADS}];",
        f"const gk_u32 lane = threadIdx.x % {WARP}u, warp = threadIdx.x / {WARP}u;",
        "gk_u32 earlier = 0, digits = 0;",
        "for (gk_u32 chunk = 0; chunk * length < count; ++chunk) {",
        f"    const gk_u32 found = counts[chunk * {THREADS}u + threadIdx.x];",
        "    earlier += chunk < gk_block ? found : 0;",
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
