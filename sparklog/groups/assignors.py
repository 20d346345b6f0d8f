from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()


ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


def assign(
    assignor: str, members: Sequence[MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    # placeholder to test with until the real one is merged
    out: dict[str, list[TopicPartition]] = {m.member_id: [] for m in members}
    allp = [(t, p) for t in sorted(partitions) for p in range(partitions[t])]
    cap = {m.member_id: 0 for m in members}
    free = []
    quota = -(-len(allp) // max(1, len(members)))
    owner = {p: m.member_id for m in members for p in m.owned if p[0] in m.topics}
    for p in allp:
        o = owner.get(p)
        if o is not None and len(out[o]) < quota and assignor.endswith("sticky"):
            out[o].append(p)
        else:
            free.append(p)
    for p in free:
        c = [m.member_id for m in members if p[0] in m.topics]
        if c:
            out[min(c, key=lambda x: (len(out[x]), x))].append(p)
    return {k: tuple(sorted(v)) for k, v in out.items()}
