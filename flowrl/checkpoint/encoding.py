"""A state as JSON and arrays, and back: each value returns with the type, the order and the bits that it had."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.errors import CheckpointError

# Nested dicts, lists and tuples of None, bool, int, float, str, bytes, np.ndarray, np.generic and Pickled.
State = Any
Array = npt.NDArray[Any]

MAX_DEPTH = 100  # of a state; what refers to itself is found by it
MAX_ITEM_BYTES = 2**20  # of one entry of an array: that of an empty array, too, is allocated by NumPy
PLAIN_INTS = 2**63  # integers beyond it are written in hexadecimal: Python limits the digits of a decimal
# What safetensors holds as it is, in all versions that are allowed; other arrays are stored as their bytes.
NATIVE = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "bool",
    "float16",
    "float32",
    "float64",
}
KINDS = "biufcSUmM"  # of dtypes: all but objects, records and void


@dataclass(frozen=True)
class Pickled:
    """A pickle inside a state: it is kept in a file of its own, and comes back without its bytes unless trusted.

    payload: the pickle. None says that there is one which was not read, because nobody said that it may be.
    """

    payload: bytes | None


@dataclass
class Encoded:
    """A state as it goes to disk: a tree that JSON can say, arrays by name, and pickles, if any, end to end."""

    tree: Any = None
    arrays: dict[str, Array] = field(default_factory=dict)
    pickles: bytearray | None = None


def encode(state: State) -> Encoded:
    """The state as a tree for JSON, with its arrays apart.

    Raises:
        CheckpointError: a value has no place in a checkpoint, or contains itself; names where in the state it is.
    """
    encoder = _Encoder()
    encoder.out.tree = encoder.encode(state, "state", 0)
    return encoder.out


class _Encoder:
    def __init__(self) -> None:
        self.out = Encoded()
        self._of: dict[type, Callable[[Any, str, int], Any]] = {
            int: lambda value, *_: value if abs(value) < PLAIN_INTS else {"int": hex(value)},
            float: lambda value, *_: value if math.isfinite(value) else {"float": repr(value)},
            bytes: lambda value, path, _: {"bytes": self._kept(np.frombuffer(value, np.uint8), path)},
            list: self._list,
            tuple: lambda value, path, depth: {"tuple": self._list(value, path, depth)},
            dict: self._dict,
            np.ndarray: self._array,
            np.memmap: self._array,
            Pickled: self._pickled,
        }

    def encode(self, value: Any, path: str, depth: int) -> Any:
        if value is None or type(value) in (bool, str):
            return value
        if depth > MAX_DEPTH:
            raise CheckpointError(
                f"{path[:80]}… is nested more than {MAX_DEPTH} deep, or contains itself: no checkpoint holds that"
            )
        if isinstance(value, np.generic):
            return _scalar(value, path)
        known = self._of.get(type(value))
        if known is None:
            raise CheckpointError(
                f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which has no place in a checkpoint; "
                "dict, list, tuple, None, bool, int, float, str, bytes and NumPy arrays and scalars have: let "
                "get_state return those"
            )
        return known(value, path, depth)

    def _list(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
        return [self.encode(entry, f"{path}[{index}]", depth + 1) for index, entry in enumerate(value)]

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        parts = [(key, self.encode(entry, f"{path}[{key!r}]", depth + 1)) for key, entry in value.items()]
        if all(type(key) is str for key in value):
            return {"map": dict(parts)}
        return {"pairs": [[self.encode(key, f"a key of {path}", depth + 1), entry] for key, entry in parts]}

    def _array(self, value: Array, path: str, depth: int) -> Any:
        dtype = value.dtype
        _check_dtype(dtype, path)
        in_order = value.flags.f_contiguous and not value.flags.c_contiguous
        plain = np.asarray(value.T if in_order else value)
        said: dict[str, Any] = {"order": "F"} if in_order else {}
        if dtype.isnative and dtype.name in NATIVE:
            return {"array": self._kept(plain, path), **said}
        said |= {"dtype": dtype.str, "shape": list(plain.shape)}
        return {"array": self._kept(np.frombuffer(plain.tobytes(), np.uint8), path), **said}

    def _kept(self, array: Array, path: str) -> str:
        name = f"{len(self.out.arrays)} {path.removeprefix('state')[:120]}"
        self.out.arrays[name] = np.ascontiguousarray(array).reshape(array.shape)  # it makes (1,) of ()
        return name

    def _pickled(self, value: Pickled, path: str, depth: int) -> Any:
        if value.payload is None:  # withheld when it was read
            return {"pickle": None}
        if self.out.pickles is None:
            self.out.pickles = bytearray()
        start = len(self.out.pickles)
        self.out.pickles += value.payload
        return {"pickle": [start, len(self.out.pickles)]}


def _check_dtype(dtype: np.dtype[Any], path: str) -> None:
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise CheckpointError(
            f"{path} is an array of {dtype}, which has no place in a checkpoint: arrays of numbers, dates and "
            "fixed-length strings have; keep each field of records as an array of its own, and objects as a list"
        )
    if dtype.itemsize > MAX_ITEM_BYTES:
        raise CheckpointError(
            f"{path} is an array of {dtype}, with {dtype.itemsize:,} bytes an entry; a checkpoint holds at most "
            f"{MAX_ITEM_BYTES:,}: keep long strings in a list"
        )


def _scalar(value: np.generic, path: str) -> Any:
    if isinstance(value, np.str_):
        return {"scalar": "U", "text": str(value)}
    if isinstance(value, np.bytes_):
        return {"scalar": "S", "hex": bytes(value).hex()}
    _check_dtype(value.dtype, path)
    return {"scalar": value.dtype.str, "hex": value.tobytes().hex()}


def decode(tree: Any, arrays: dict[str, Array], pickles: bytes | None) -> State:
    """The state that `encode` was given. pickles: None leaves each Pickled without its bytes.

    Each array is taken out of `arrays`, so that a tree that names one a million times takes no memory for it.

    Raises:
        Exception: the tree is none that `encode` made, of whatever type.
    """
    return _Decoder(arrays, pickles).decode(tree, 0)


class _Decoder:
    def __init__(self, arrays: dict[str, Array], pickles: bytes | None):
        self._arrays, self._pickles = arrays, pickles
        self._read = 0  # of the pickles

    def decode(self, tree: Any, depth: int) -> Any:
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        if depth > 3 * MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(tree, list):
            return [self.decode(entry, depth + 1) for entry in tree]
        kind, value = next(iter(tree.items()))
        if kind == "map":
            return {key: self.decode(entry, depth + 1) for key, entry in value.items()}
        if kind == "pairs":
            return {self.decode(key, depth + 1): self.decode(entry, depth + 1) for key, entry in value}
        if kind == "tuple":
            return tuple(self.decode(value, depth))
        return self._leaf(kind, value, tree)

    def _leaf(self, kind: str, value: Any, tree: Mapping[str, Any]) -> Any:
        if kind == "array":
            return self._array(self._arrays.pop(value), tree)
        if kind == "bytes":
            return self._arrays.pop(value).tobytes()
        if kind == "int":
            return int(value, 16)
        if kind == "float":
            return float(value)
        if kind == "scalar":
            return _scalar_from(value, tree)
        if kind == "pickle":
            return Pickled(None if value is None else self._pickle(*value))
        raise ValueError(f"it has an unknown kind of value, {kind!r}")

    def _pickle(self, start: int, stop: int) -> bytes | None:
        if start != self._read or stop < start:
            raise ValueError("its pickles are not one behind the other")
        self._read = stop
        if self._pickles is None:
            return None
        if stop > len(self._pickles):
            raise ValueError("its pickles are longer than their file")
        return self._pickles[start:stop]

    def _array(self, stored: Array, said: Mapping[str, Any]) -> Array:
        if "dtype" in said:
            dtype, shape = _dtype_from(said["dtype"]), tuple(said["shape"])
            if any(type(length) is not int or length < 0 for length in shape):
                raise ValueError(f"an array has the shape {shape}")
            if math.prod(shape) * dtype.itemsize != stored.nbytes:
                raise ValueError(f"an array of {dtype} and shape {shape} has {stored.nbytes} bytes")
            stored = np.empty(shape, dtype) if 0 in shape else np.frombuffer(stored.tobytes(), dtype).reshape(shape)
        array = stored if stored.flags.writeable else stored.copy()
        return array.T if said.get("order") == "F" else array


def _dtype_from(text: Any) -> np.dtype[Any]:
    if not isinstance(text, str) or text[1:2] not in KINDS:
        raise ValueError(f"an array has the unknown dtype {text!r}")
    dtype = np.dtype(text)
    if dtype.kind not in KINDS or not 0 < dtype.itemsize <= MAX_ITEM_BYTES:
        raise ValueError(f"an array has the dtype {text!r}")
    return dtype


def _scalar_from(kind: Any, said: Mapping[str, Any]) -> np.generic:
    if kind == "U":
        return np.str_(said["text"])
    content = bytes.fromhex(said["hex"])
    if kind == "S":
        return np.bytes_(content)
    [value] = np.frombuffer(content, _dtype_from(kind))
    return value
