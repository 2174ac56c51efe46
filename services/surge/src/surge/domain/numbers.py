"""Numbers that a model has learnt: taken out for a snapshot, and put back."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]  # Any: of numbers and of cells


class Numbers:
    """Something whose numbers can be taken out and put back.

    `PARTS` names the attributes that hold them: arrays, integers and floats.
    """

    PARTS: ClassVar[tuple[str, ...]]

    def take_out(self) -> Arrays:
        """The numbers by the names of their attributes; arrays are not copied."""
        return {part: np.asarray(getattr(self, part)) for part in self.PARTS}

    def put_back(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Hold copies of these numbers."""
        for part in self.PARTS:
            setattr(self, part, arrays[part].copy() if arrays[part].ndim else arrays[part].item())
