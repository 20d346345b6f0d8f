"""The coordinator of a request about a group, the reasons why it has none, and the codes of what fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

from sparklog.errors import BadRequest, SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.coordinator import Coordinator
from sparklog.serve.group_members import GroupMembers
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP

FAILURES = (CodeError, SparklogError)


def check_group(request: ServedRequest, group: str) -> None:
    """Raise `CodeError` for a group without a name, and for one that the client may not use."""
    if not group:
        raise CodeError(Code.INVALID_GROUP_ID)
    if not request.may(GROUP, group):
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED)


def coordinator_of(request: ServedRequest, group: str, *, reading: bool = False) -> Coordinator:
    """Return the coordinator. `CodeError` as `check_group`, and where groups have no journal.

    The same where they have one that cannot be written, except for `reading`.
    """
    check_group(request, group)
    coordinator = request.services.coordinator
    if coordinator is None or not (reading or coordinator.root.store.writable):
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED)
    return coordinator


def members_of(request: ServedRequest) -> GroupMembers:
    """Return the members of the group that a request names. Raises as `coordinator_of`."""
    group = request.fields["groupId"]
    return coordinator_of(request, group).members(group)


def group_code(error: Exception) -> Code:
    """Return the code for one of `FAILURES`: what the store could not do is tried again."""
    if isinstance(error, CodeError):
        return error.code
    return Code.INVALID_GROUP_ID if isinstance(error, BadRequest) else Code.COORDINATOR_NOT_AVAILABLE


def with_code(handler: Callable[[ServedRequest], Awaitable[Fields]]) -> Callable[[ServedRequest], Awaitable[Fields]]:
    """Answer a request that fails with the code alone."""

    @wraps(handler)
    async def answer(request: ServedRequest) -> Fields:
        try:
            return await handler(request)
        except FAILURES as error:
            return {"errorCode": group_code(error)}

    return answer
