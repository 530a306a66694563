"""Pieces of the kernels that search BM25: fixed-point scores, the heap of the best passages, and vector instructions.

Scores are integers, which are summed exactly in any order, so every way of searching gives the same hits. The heap
holds keys: the score, followed by the inverted passage number in the low bits. The greater of two keys is the better:
the higher score, and for equal scores the lower number. The worst key is at the top.

numba cannot generate the vector instructions of stream search from loops, so they are written as LLVM operations. Each
becomes a few instructions if the processor has 512-bit vectors, and more otherwise. Bounds are not checked.

Letters of shapes: Q queries, K hits per query, C rows of the code table.
"""

# ruff: noqa: ARG001  (an intrinsic gets the types of its arguments; the code that it generates gets their values)

from collections.abc import Callable
from typing import Any, Final

import numba as nb
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from ralm.errors import CorpusError

FRACTION_BITS: Final = 20
"""Binary places of a fixed-point score: finer than Lucene's float32 for any score above 1."""
UNIT: Final = 2.0**-FRACTION_BITS
"""The score of one point, unless a query is so long that its scores would overflow."""
NUMBER_BITS: Final = 31
MAX_SCORE: Final = (1 << NUMBER_BITS) - 1
"""The highest score and the highest passage number that a key can hold."""
MAX_PASSAGES: Final = MAX_SCORE + 1
"""The most passages that an index for BM25 can have, those that were removed and not merged away yet included."""
LANES: Final = 16
"""Passages that are bounded at a time."""
MARKS: Final = 64
"""Blocks that are compared with the threshold at a time."""
_I1, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, to code that does not hold Python's lock.

    The code is cached on disk. If neither the installation nor the user's cache folder can be written, every process
    compiles it again.
    """
    try:
        return nb.njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return nb.njit(nogil=True)(function)


@kernel
def fill_points(weight: float, impact_C: NDArray[np.float64], unit: float, points_C: NDArray[np.int32]) -> None:
    """Write what one occurrence of a query term of this weight adds, for each code.

    It is at least 1, since a passage with the term is a hit; 0 if the impact is 0, which no posting has. `unit` must be
    a power of two, so that dividing by it is exact.
    """
    for code in range(len(impact_C)):
        points_C[code] = max(1, np.rint(weight * impact_C[code] / unit)) if impact_C[code] > 0 else 0


def check_passage_count(passages: int) -> None:
    """Raise CorpusError if an index for BM25 cannot have so many passages."""
    if passages > MAX_PASSAGES:
        raise CorpusError(
            f"an index for BM25 can have at most {MAX_PASSAGES:,} passages, but this one would have {passages:,}, or "
            "more; make several indexes, or longer passages."
        )


@kernel
def offer(heap: NDArray[np.int64], found: int, score: int, passage: int) -> int:
    """Add a passage to the heap if it is among the best; returns how many the heap then holds."""
    key = np.int64(score) << NUMBER_BITS | (MAX_SCORE - passage)
    if found < len(heap):
        _sift_up(heap, found, key)
        return found + 1
    if key > heap[0]:
        _sift_down(heap, found, key)
    return found


@kernel
def worst_score(heap: NDArray[np.int64], found: int) -> int:
    """The lowest score in the heap if it is full, else 0."""
    return int(heap[0] >> NUMBER_BITS) if found == len(heap) else 0


@kernel
def passage_of(key: int) -> int:
    """The passage number of a key."""
    return MAX_SCORE - (key & MAX_SCORE)


@kernel
def drain_heaps(
    heaps_QK: NDArray[np.int64],
    found_Q: NDArray[np.int64],
    numbers_QK: NDArray[np.int64],
    scores_QK: NDArray[np.float32],
    unit_Q: NDArray[np.float64],
) -> None:
    """Move the content of each query's heap to the start of its rows of `numbers_QK` and `scores_QK`, best first.

    Scores are multiplied by the query's unit. The rest of each row is left unchanged.
    """
    for query in range(len(found_Q)):
        heap = heaps_QK[query]
        for last in range(found_Q[query] - 1, -1, -1):
            key = heap[0]
            _sift_down(heap, last + 1, heap[last])
            numbers_QK[query, last] = passage_of(key)
            scores_QK[query, last] = (key >> NUMBER_BITS) * unit_Q[query]


@kernel
def _sift_up(heap: NDArray[np.int64], place: int, key: int) -> None:
    """Add a key at `place` and let it rise to its position."""
    while place > 0 and heap[(place - 1) // 2] > key:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = key


@kernel
def _sift_down(heap: NDArray[np.int64], size: int, key: int) -> None:
    """Replace the top with a key and let it sink to its position among the first `size`."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = key


@intrinsic
def tighten(
    _typing: Any, bounds: Any, rare: Any, common: Any, first: Any, threshold: Any
) -> tuple[Any, Callable[..., Any]]:
    """Lower 64 uint16 `bounds` from `first` on to the sums of `rare` and `common`; returns which of them then reach
    `threshold`, as the bits of a uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, bound = arguments[3:]
        pointers = [_vector_at(context, builder, signature.args[i], arguments[i], place, MARKS) for i in range(3)]
        old, more, most = (_load(builder, pointer, 16) for pointer in pointers)
        total = builder.add(more, most)
        new = builder.select(builder.icmp_unsigned("<", old, total), old, total)
        builder.store(new, pointers[0]).align = 2
        return builder.bitcast(builder.icmp_unsigned(">=", new, _splat(builder, bound, MARKS)), _I64)

    return types.uint64(bounds, rare, common, types.int64, types.uint16), generate


@intrinsic
def highest(_typing: Any, values: Any, first: Any) -> tuple[Any, Callable[..., Any]]:
    """The highest of 16 int32 from `first` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, first = arguments
        pointer = _vector_at(context, builder, signature.args[0], values, first, LANES)
        vector = _load(builder, pointer, 32)
        name = f"llvm.vector.reduce.smax.v{LANES}i32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, [vector.type]), name)
        return builder.call(reduce, [vector])

    return types.int32(values, types.int64), generate


@intrinsic
def bound_lanes(
    _typing: Any,
    scores: Any,
    first: Any,
    bits: Any,
    lanes: Any,
    words: Any,
    times: Any,
    count: Any,
    maxima: Any,
    present: Any,
    block: Any,
    threshold: Any,
) -> tuple[Any, Callable[..., Any]]:
    """Bound the 16 passages of a block; returns which of them reach `threshold`, as the bits of a uint64.

    A passage's bound, in steps of `1 << bits`, is its score from `first` on (int32, rounded up), plus, for each of
    `count` terms that it has, the term's maximum in the block times its count in the query. The bits of term i are in
    `present` (uint64, 64 passages each) from `words[i]` (int64) on, its bytes in `maxima` (uint8, 16 passages each)
    from four times that on; it occurs `times[i]` (int32) times in the query. The bounds are written to `lanes` (int32).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, begin, shift, _, _, _, terms, _, _, place, bound = arguments
        kinds = signature.args
        vector = ir.VectorType(_I32, LANES)

        def data(i: int) -> Any:
            return context.make_array(kinds[i])(context, builder, arguments[i]).data

        wide = builder.trunc(shift, _I32)
        up = builder.sub(builder.shl(_I32(1), wide), _I32(1))
        sums = _load(builder, _vector_at(context, builder, kinds[0], arguments[0], begin, LANES), 32)
        sums = builder.ashr(builder.add(sums, _splat(builder, up, LANES)), _splat(builder, wide, LANES))
        total = cgutils.alloca_once_value(builder, sums)
        word = builder.lshr(place, _I64(2))
        within = builder.shl(builder.and_(place, _I64(3)), _I64(4))
        with cgutils.for_range(builder, terms) as loop:
            offset = builder.load(builder.gep(data(4), [loop.index]))
            byte = builder.load(builder.gep(data(7), [builder.add(builder.shl(offset, _I64(2)), place)]))
            most = builder.mul(builder.zext(byte, _I32), builder.load(builder.gep(data(5), [loop.index])))
            mask = builder.lshr(builder.load(builder.gep(data(8), [builder.add(offset, word)])), within)
            chosen = builder.bitcast(builder.trunc(mask, _I16), ir.VectorType(_I1, LANES))
            more = builder.select(chosen, _splat(builder, most, LANES), ir.Constant(vector, None))
            builder.store(builder.add(builder.load(total), more), total)
        result = builder.load(total)
        kept = _vector_at(context, builder, kinds[3], arguments[3], _I64(0), LANES)
        builder.store(result, kept).align = 4
        reached = builder.icmp_signed(">=", result, _splat(builder, builder.trunc(bound, _I32), LANES))
        return builder.zext(builder.bitcast(reached, _I16), _I64)

    integer = types.int64
    returned = types.uint64(scores, integer, integer, lanes, words, times, integer, maxima, present, integer, integer)
    return returned, generate


@intrinsic
def lowest_bit(_typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    """The position of the lowest set bit of a uint64 that is not 0, as an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _I1(1))

    return types.int64(types.uint64), generate


@intrinsic
def count_bits(_typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    """How many bits of a uint64 are set, as an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def _vector_at(context: Any, builder: Any, array_type: Any, array: Any, first: Any, width: int) -> Any:
    """A pointer to `width` elements of an array from `first` on, as one vector."""
    data = context.make_array(array_type)(context, builder, array).data
    element = context.get_value_type(array_type.dtype)
    return builder.bitcast(builder.gep(data, [first]), ir.VectorType(element, width).as_pointer())


def _load(builder: Any, pointer: Any, bits: int) -> Any:
    """Load a vector that is aligned to its elements of this many bits."""
    loaded = builder.load(pointer)
    loaded.align = bits // 8
    return loaded


def _splat(builder: Any, value: Any, width: int) -> Any:
    """A vector with one value `width` times."""
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    single = builder.insert_element(undefined, value, _I32(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_I32, width), None))
