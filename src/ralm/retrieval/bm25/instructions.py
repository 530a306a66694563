"""Vector instructions of the kernels that search BM25.

numba cannot generate them from loops, so they are written as LLVM operations. Each becomes a few instructions if the
processor has 512-bit vectors, and more otherwise. Bounds are not checked.
"""

# ruff: noqa: ARG001  (an intrinsic gets the types of its arguments; the code that it generates gets their values)

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

# Private: numba's intrinsics and builder; compiling fails.
from numba.core import cgutils
from numba.extending import intrinsic

from ralm.retrieval.bm25.kernels import LANES, MARKS

_I1, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))


@intrinsic
def tighten(
    _typing: Any, bounds: Any, rare: Any, common: Any, first: Any, threshold: Any
) -> tuple[Any, Callable[..., Any]]:
    """Lower 64 uint16 `bounds` from `first` on to `rare` + `common`; return which then reach `threshold`, as bits."""

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
def find_sums(_typing: Any, rare: Any, common: Any, first: Any, threshold: Any) -> tuple[Any, Callable[..., Any]]:
    """Return which of 64 sums of two uint16 arrays from `first` on reach `threshold`, as the bits of a uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, bound = arguments[2:]
        pointers = [_vector_at(context, builder, signature.args[i], arguments[i], place, MARKS) for i in range(2)]
        total = builder.add(*(_load(builder, pointer, 16) for pointer in pointers))
        return builder.bitcast(builder.icmp_unsigned(">=", total, _splat(builder, bound, MARKS)), _I64)

    return types.uint64(rare, common, types.int64, types.uint16), generate


@intrinsic
def highest(_typing: Any, values: Any, first: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the highest of 16 int32 from `first` on."""

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
    """Bound the 16 passages of a block; return which of them reach `threshold`, as the bits of a uint64.

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
    """Return the position of the lowest set bit of a uint64 that is not 0, as an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _I1(1))

    return types.int64(types.uint64), generate


@intrinsic
def count_bits(_typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    """Return how many bits of a uint64 are set, as an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def _vector_at(context: Any, builder: Any, array_type: Any, array: Any, first: Any, width: int) -> Any:
    """Return a pointer to `width` elements of an array from `first` on, as one vector."""
    data = context.make_array(array_type)(context, builder, array).data
    element = context.get_value_type(array_type.dtype)
    return builder.bitcast(builder.gep(data, [first]), ir.VectorType(element, width).as_pointer())


def _load(builder: Any, pointer: Any, bits: int) -> Any:
    """Load a vector that is aligned to its elements of this many bits."""
    loaded = builder.load(pointer)
    loaded.align = bits // 8
    return loaded


def _splat(builder: Any, value: Any, width: int) -> Any:
    """Return a vector with one value `width` times."""
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    single = builder.insert_element(undefined, value, _I32(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_I32, width), None))
