"""The random state of the process: Python's, NumPy's and torch's, for the libraries that are imported."""

from __future__ import annotations

import random
import sys
from typing import Any


def capture() -> dict[str, Any]:
    """Return the random states of Python and of NumPy, torch and CUDA devices if they are in use."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, b"".join(n.to_bytes(4, "little") for n in numbers), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys, *rest]
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """Restore captured states; a library that is not imported here is skipped."""
    version, numbers, gauss = state["python"]
    words = tuple(int.from_bytes(numbers[at : at + 4], "little") for at in range(0, len(numbers), 4))
    random.setstate((version, words, gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.copy(), *rest))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"].cpu().clone())
        devices = state.get("cuda", [])
        if devices and torch.cuda.is_available() and torch.cuda.device_count() >= len(devices):
            torch.cuda.set_rng_state_all([one.cpu().clone() for one in devices])
