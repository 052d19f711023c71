"""Weights travel whole and exact, in pieces of a bounded size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.weight_buckets import Bucket, fill_buckets

MIB = 2**20


def tensors(*shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"w{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}


def unpacked(buckets: list[Bucket]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for bucket in buckets for name, tensor in bucket.parameters()}


def kept(weights: dict[str, torch.Tensor], bucket_mb: int, dtype: str = "float32") -> list[Bucket]:
    """The buckets as a slow receiver would see them: each copied before the next is asked for."""
    return [Bucket(b.layout, np.array(b.as_array().data)) for b in fill_buckets(weights.items(), bucket_mb, dtype)]


def test_parameters_come_out_exact_in_their_order() -> None:
    weights = tensors((3, 5), (7,), (), (2, 3, 4), (400, 900))
    out = unpacked(kept(weights, 1))
    assert list(out) == list(weights)
    assert all(torch.equal(out[name], tensor) for name, tensor in weights.items())


def test_a_bucket_holds_no_more_than_its_size() -> None:
    buckets = kept(tensors(*[(100, 1000)] * 6), 1)  # 400,000 bytes each: two fit, a third does not
    assert [len(b.layout) for b in buckets] == [2, 2, 2]
    assert all(len(b.data) <= MIB for b in buckets)


def test_a_parameter_larger_than_a_bucket_travels_alone() -> None:
    buckets = kept(tensors((10,), (600, 1000), (10,)), 1)
    assert [[e.name for e in b.layout] for b in buckets] == [["w0"], ["w1"], ["w2"]]


def test_bfloat16_halves_the_bytes_and_rounds_to_nearest() -> None:
    weights = tensors((256, 256))
    (wide,), (narrow,) = kept(weights, 1), kept(weights, 1, "bfloat16")
    assert len(narrow.data) * 2 == len(wide.data)
    out = unpacked([narrow])["w0"]
    assert out.dtype == torch.bfloat16
    # 8 significant bits: the nearest neighbour is within half a step of 2^-7 of the power of two below
    step = 2.0 ** (torch.frexp(weights["w0"].abs())[1] - 1 - 7)
    assert bool(((out.float() - weights["w0"]).abs() <= step / 2).all())


def test_the_sender_keeps_one_buffer_for_all_buckets() -> None:
    buckets = fill_buckets(tensors(*[(100, 1000)] * 6).items(), 1, "float32")
    assert (
        len({bucket.data.untyped_storage().data_ptr() for bucket in buckets if isinstance(bucket.data, torch.Tensor)})
        == 1
    )


@pytest.mark.filterwarnings("error:.*not writable")
def test_a_receiver_reads_shared_memory_in_place() -> None:
    (bucket,) = kept(tensors((5, 5)), 1)
    assert isinstance(bucket.data, np.ndarray)
    bucket.data.flags.writeable = False  # as arrays come out of Ray's object store
    ((_, tensor),) = bucket.parameters()
    assert tensor.data_ptr() == bucket.data.ctypes.data
