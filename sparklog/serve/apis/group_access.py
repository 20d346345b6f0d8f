"""The coordinator of a request about a group, and the reasons why it has none."""

from __future__ import annotations

from sparklog.serve.codes import Code
from sparklog.serve.coordinator import Coordinator
from sparklog.serve.group_members import GroupError
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP


def coordinator_of(request: ServedRequest, group: str, *, reading: bool = False) -> Coordinator:
    """Return the coordinator. `GroupError` for a group without a name, and where groups have no journal.

    The same where they have one that cannot be written, except for `reading`.
    """
    if not group:
        raise GroupError(Code.INVALID_GROUP_ID)
    coordinator = request.services.coordinator
    if coordinator is None or not (reading or coordinator.root.store.writable) or not request.may(GROUP, group):
        raise GroupError(Code.GROUP_AUTHORIZATION_FAILED)
    return coordinator
