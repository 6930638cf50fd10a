"""What a surface of the fuzzer is."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from fuzz.tables import Rows

Case = Callable[[], tuple[Rows, bool]]


class Surface(ABC):
    """One kind of input."""

    name: str

    @abstractmethod
    def draw(self, draw: random.Random) -> Case:
        """A case: reads the damaged input; its rows, and whether they must be those of the undamaged one."""

    @abstractmethod
    def expected(self) -> Rows:
        """The rows of the input that was damaged last."""

    def close(self) -> None:
        """Stop what was started."""
        replay = self.__dict__.get("replay")
        if replay is not None:
            replay.close()
