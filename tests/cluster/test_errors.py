"""What is read out of the exceptions of remote processes."""

from __future__ import annotations

import pytest
import torch
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from cluster.errors import cause, is_device_failure, last_line, loss

ECC = "CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


class EngineDeadError(Exception):
    """Named as vLLM's."""


def remote(error: Exception) -> Exception:
    """As it comes out of ``ray.get``."""
    return RayTaskError("generate", "Traceback of another machine", error).as_instanceof_cause()


def test_the_cause_is_what_was_raised_however_often_it_was_passed_on():
    error = KeyError("x")
    assert cause(remote(error)) is error
    assert cause(RayTaskError("outer", "", RayTaskError("inner", "", error))) is error  # type: ignore[arg-type]
    assert cause(error) is error


def test_the_last_line_is_the_message_without_traceback_and_advice():
    assert last_line(ValueError("Traceback:\n  File x\nValueError: no such model\n\n")) == "ValueError: no such model"
    assert last_line(OSError("the worker died. Some common causes include: memory")) == "the worker died."
    assert last_line(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"),
        RuntimeError("CUDA Error: out of memory at csrc/cumem_allocator.cpp:139"),
        EngineDeadError("EngineCore encountered an issue"),
    ],
)
def test_a_failed_gpu_is_a_device_failure_here_and_from_afar(error: Exception):
    assert is_device_failure(error)
    assert is_device_failure(remote(error))


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes cannot be multiplied"), ValueError("CUDA error"), KeyError("x")]
)
def test_a_mistake_is_no_device_failure(error: Exception):
    assert not is_device_failure(remote(error), memory=True)


def test_a_gpu_without_room_counts_only_where_that_is_asked_for():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert not is_device_failure(remote(error))
    assert is_device_failure(remote(error), memory=True)


def test_a_loss_has_an_event_and_one_line():
    assert loss(remote(torch.AcceleratorError(ECC))) == (
        "died",
        "its GPU failed: CUDA error: uncorrectable ECC error encountered",
    )
    assert loss(GetTimeoutError("Get timed out")) == ("hung", "no answer")
    assert loss(ActorDiedError())[0] == "died"
