"""What an exception of a remote process says: its cause, its last line, and whether a GPU broke rather than the program."""

from __future__ import annotations

from ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)

LOST = (RayActorError, ObjectLostError, OutOfMemoryError, ActorPlacementGroupRemoved)
"""What Ray raises when a process, its node or what it returned is gone."""

DEVICE_FAILURE = "cuda error"
"""How CUDA's own failures read: "CUDA error: uncorrectable ECC error encountered" in PyTorch, "CUDA Error: ..." in vLLM."""


def cause(error: BaseException) -> BaseException:
    """What was raised: Ray's own exception holds it, with a remote traceback where the message should be."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def last_line(error: BaseException | None) -> str:
    """What was raised, without a remote traceback before it or the advice of Ray and CUDA behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = [line for line in lines if DEVICE_FAILURE in line.lower()] or lines
    return told[-1].split(" Some common causes", 1)[0]


def is_device_failure(error: BaseException, *, memory: bool = False) -> bool:
    """Whether a GPU failed under a process: another process, or the same one started again, may do what this one could not.

    After such an error CUDA answers nothing more in that process, so it must be ended.

    Args:
        error: what was raised, or Ray's exception around it.
        memory: whether a GPU without room counts. For a model that is trained it does not: the next try would find no more.
    """
    import torch

    raised = cause(error)
    if isinstance(raised, torch.OutOfMemoryError):
        return memory
    if isinstance(raised, torch.AcceleratorError) or type(raised).__name__ == "EngineDeadError":  # vLLM's own
        return True
    # a constructor's error arrives as text alone
    return isinstance(raised, (RuntimeError, RayActorError)) and DEVICE_FAILURE in str(raised).lower()


def loss(error: BaseException) -> tuple[str, str]:
    """The event of a lost process and its reason: ``left`` with its node, ``hung``, or ``died``, as its GPU may have."""
    text = str(error)
    if isinstance(error, ActorUnavailableError) or "node has died" in text or "node was terminated" in text:
        return "left", "its node does not answer"
    if isinstance(error, OutOfMemoryError):
        return "died", "killed by Ray: its node was out of memory"
    if isinstance(error, GetTimeoutError):
        return "hung", "no answer"
    if is_device_failure(error, memory=True):
        return "died", f"its GPU failed: {last_line(cause(error))}"
    detail = text.split("Worker exit detail: ", 1)[-1] if "Worker exit detail: " in text else last_line(error)
    return "died", detail.split(". ", 1)[0][:200]
