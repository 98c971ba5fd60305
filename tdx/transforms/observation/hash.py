"""Hashes of entries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey
from tdx.transforms.observation.unary_transform import UnaryTransform


class Hash(UnaryTransform):
    """Write a hash of entries, usually of strings.

    Args:
        in_keys: Entries of the env's output to read.
        out_keys: Keys of their hashes.
        in_keys_inv: Entries of the env's input, which are found by their hashes. Default: no keys.
        out_keys_inv: Keys of the hashes that the policy writes; ``in_keys_inv`` by default.
        hash_fn: Function of an entry, and of the seed if there is one, that returns a tensor.
            ``None``: :meth:`reproducible_hash`.
        seed: Seed for the function.
        use_raw_nontensor: Pass entries that are not tensors as ``NonTensorData`` or
            ``NonTensorStack``.
        repertoire: Entries by their hashes, as nested tuples; every hash is added to it. Default:
            an empty one if there are ``in_keys_inv``, else none.

    Raises:
        ArgumentError: ``hash_fn`` is not a function or returns no tensor, or the numbers of keys
            differ.
        ChainError: A hash is unknown.

    Example:
        >>> from tensordict import TensorDict
        >>> from tdx import Hash
        >>> Hash(["text"], ["hash"])(TensorDict(text="north"))["hash"].shape
        torch.Size([32])
    """

    why_not_exported = "it computes hashes in Python"
    _is_verified = True

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey],
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        *,
        hash_fn: Callable[..., Tensor] | None = None,
        seed: Any | None = None,
        use_raw_nontensor: bool = False,
        repertoire: dict[Any, Any] | None = None,
    ) -> None:
        hash_fn = self.reproducible_hash if hash_fn is None else hash_fn
        super().__init__(
            in_keys,
            out_keys,
            in_keys_inv,
            out_keys_inv,
            fn=hash_fn,
            use_raw_nontensor=use_raw_nontensor,
        )
        self.seed = seed
        if repertoire is None and self.in_keys_inv:
            repertoire = {}
        self._repertoire = repertoire

    def _apply_transform(self, tensor: Any) -> Tensor:
        return self.call_hash_fn(self._plain(tensor))

    def _inv_apply_transform(self, tensor: Any) -> Any:
        return self.get_input_from_hash(tensor)

    def call_hash_fn(self, value: Any) -> Tensor:
        """Return the hash of a value, and add it to the repertoire if there is one."""
        seeds = () if self.seed is None else (self.seed,)
        hash_fn: Callable[..., Any] = self.fn
        result = hash_fn(value, *seeds)
        if not isinstance(result, Tensor):
            raise ArgumentError(
                f"hash_fn must return a tensor, got {type(result).__name__}",
                hint="for example lambda text: torch.tensor(len(text))",
            )
        if self._repertoire is not None:
            self._repertoire[self.hash_to_repertoire_key(result)] = copy(value)
        return result

    def get_input_from_hash(self, hash_tensor: Tensor) -> Any:
        """Return the value with this hash.

        Raises:
            ChainError: It is unknown, or the transform has no repertoire.
        """
        key = self.hash_to_repertoire_key(hash_tensor)
        if self._repertoire is None or key not in self._repertoire:
            raise ChainError(
                "no value with this hash is known",
                hint="pass repertoire={...} with the values by their hashes",
                where=Where(transform="Hash"),
            )
        return self._repertoire[key]

    @classmethod
    def hash_to_repertoire_key(cls, hash_tensor: Any) -> Any:
        """Return a hash as a number, or as nested tuples of numbers."""
        if isinstance(hash_tensor, Tensor):
            hash_tensor = hash_tensor.tolist()
        if isinstance(hash_tensor, list):
            return tuple(map(cls.hash_to_repertoire_key, hash_tensor))
        return hash_tensor

    @classmethod
    def reproducible_hash(cls, string: Any, seed: str | None = None) -> Tensor:
        """Return the SHA-256 of a string, uint8 ``[32]``; of a list, one for each element.

        Args:
            string: String. Other values are hashed by their ``str``, ``None`` as an empty string.
            seed: String to put before it.
        """
        if isinstance(string, list):
            return torch.stack([cls.reproducible_hash(part, seed) for part in string])
        text = ("" if seed is None else seed) + ("" if string is None else str(string))
        return torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
