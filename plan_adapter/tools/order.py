"""`OrderGuard`: checks that a change kept the order of the earlier items, and restores that order."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Place: TypeAlias = tuple[Hashable, int]
"""The key of an item, and how many items with the same key come before it."""


class OrderGuard(Generic[T]):
    """Compares the order of items with a baseline. Only items that are in both count: adding or removing an item moves no other."""

    def __init__(self, baseline: Iterable[T], *, key: Callable[[T], Hashable] = lambda item: item) -> None:  # pyright: ignore[reportArgumentType]  # without a key, the items are hashable
        """Keep the order of `baseline`. Items are the same if their `key` is; by default an item is its own key."""
        self._key = key
        self._rank = {place: rank for rank, place in enumerate(self._places(baseline))}

    def check(self, now: Sequence[T]) -> list[T]:
        """Return the fewest items of `now` that moved: all others still come in the order of the baseline. Empty if it was kept."""
        common = self._common(now)
        kept = _longest_increasing([rank for _, rank in common])
        return [now[at] for at, rank in common if rank not in kept]

    def restored(self, now: Sequence[T]) -> list[T]:
        """Return `now` with the common items back in the order of the baseline. All other items stay where they are."""
        common, items = self._common(now), list(now)
        by_rank = sorted(common, key=lambda pair: pair[1])
        for (to, _), (at, _) in zip(common, by_rank, strict=True):
            items[to] = now[at]
        return items

    def _common(self, now: Sequence[T]) -> list[tuple[int, int]]:
        """Return (position in `now`, rank in the baseline) of every common item."""
        return [(at, self._rank[place]) for at, place in enumerate(self._places(now)) if place in self._rank]

    def _places(self, items: Iterable[T]) -> list[Place]:
        seen, places = Counter[Hashable](), list[Place]()
        for item in items:
            key = self._key(item)
            places.append((key, seen[key]))
            seen[key] += 1
        return places


def _longest_increasing(ranks: Iterable[int]) -> frozenset[int]:
    """Return the longest increasing subsequence of different `ranks`."""
    ends, chains = list[int](), list[tuple[int, ...]]()
    for rank in ranks:
        at = bisect_left(ends, rank)
        ends[at : at + 1] = [rank]
        chains[at : at + 1] = [((*chains[at - 1], rank) if at else (rank,))]
    return frozenset(chains[-1]) if chains else frozenset()
