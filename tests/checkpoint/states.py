"""States as hypothesis draws them, and whether two are the same in value, type and order."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowrl.checkpoint import Pickled

DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
    ">i4", ">f8", "U3", "S4", "M8[ns]", "m8[s]",
]  # fmt: skip
INTS = st.integers() | st.integers(-(2**130), 2**130)
KEYS = (
    st.text(max_size=5)
    | INTS
    | st.booleans()
    | st.none()
    | st.binary(max_size=3)
    | st.tuples(st.text(max_size=2), INTS)
)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    array = draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
    how = draw(st.sampled_from(["as it is", "Fortran", "strided"]))
    if how == "Fortran":
        return np.asfortranarray(array) if array.ndim else array
    return array[::2] if how == "strided" and array.ndim else array


SCALARS = st.sampled_from(DTYPES).flatmap(lambda name: hnp.from_dtype(np.dtype(name)))
LEAVES = (
    st.none() | st.booleans() | INTS | st.floats() | st.text() | st.binary() | arrays() | SCALARS
    | st.binary().map(Pickled)
)  # fmt: skip
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, NaN to NaN, -0.0 to -0.0 only, with the same types, dtypes and memory orders."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return (
            [*map(repr, one)] == [*map(repr, other)]
            and all(same(a, b) for a, b in zip(one, other, strict=True))
            and all(same(a, b) for a, b in zip(one.values(), other.values(), strict=True))
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.dtype.str == other.dtype.str and one.shape == other.shape
        only_fortran = one.flags.f_contiguous and not one.flags.c_contiguous
        return alike and one.tobytes() == other.tobytes() and (other.flags.f_contiguous or not only_fortran)
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return repr(one) == repr(other)
