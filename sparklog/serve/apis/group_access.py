"""The coordinator of a request about a group, and the reasons why it has none."""

from __future__ import annotations

from sparklog.serve.codes import Code
from sparklog.serve.coordinator import Coordinator
from sparklog.serve.group_members import GroupError
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP


def coordinator_of(request: ServedRequest, group: str) -> Coordinator:
    """Return the coordinator. `GroupError` for a group without a name, and where groups have no journal."""
    if not group:
        raise GroupError(Code.INVALID_GROUP_ID)
    if not request.may(GROUP, group):
        raise GroupError(Code.GROUP_AUTHORIZATION_FAILED)
    if request.services.coordinator is None:
        raise GroupError(Code.GROUP_AUTHORIZATION_FAILED)
    return request.services.coordinator
