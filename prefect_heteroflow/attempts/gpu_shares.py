"""Which attempt of this worker uses which GPU of the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prefect_heteroflow.core.resources import Gpu, Resources


class GpuShares:
    """Gives each attempt the GPUs that fewest others use, the smallest that are large enough."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, ...]] = {}

    def take(self, owner: str, gpus: Sequence[Gpu], resources: Resources) -> tuple[Gpu, ...]:
        """GPUs for one attempt; the same owner asking again gives back what it had.

        Args:
            owner: Who uses them.
            gpus: All GPUs of the node.
            resources: How many, and how large at least.
        """
        self.give_back(owner)
        if resources.gpu_count == 0:
            return ()
        uses = Counter(uuid for taken in self._taken.values() for uuid in taken)
        least_mb = resources.gpu_memory_mb or 0
        fitting = [gpu for gpu in gpus if gpu.memory_mb >= least_mb and gpu.healthy is not False]
        fitting.sort(key=lambda gpu: (uses[gpu.uuid], gpu.memory_mb, gpu.uuid))
        chosen = tuple(fitting[: resources.gpu_count])
        self._taken[owner] = tuple(gpu.uuid for gpu in chosen)
        return chosen

    def in_use(self, *, but_for: str) -> set[str]:
        """Uuids of the GPUs that others than this owner use."""
        others = (taken for owner, taken in self._taken.items() if owner != but_for)
        return {uuid for taken in others for uuid in taken}

    def give_back(self, owner: str) -> None:
        """Nothing is used by that owner any more."""
        self._taken.pop(owner, None)
