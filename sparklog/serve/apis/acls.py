"""Handle requests about ACLs and SCRAM credentials, which return the permissions in the users file.

If the server does not have a users file, it responds like a broker without an authorizer. If the server has a users
file, a permission is returned as ACLs that allow the operations of the permission on a prefixed resource. A
user who may write to all topics gets the permissions of all users. Other users get only their own permissions. Clients
cannot change the users file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparklog.kafka.messages.message_schema import Fields
from sparklog.serve.authorized_operations import CLUSTER_CHANGE, PERMITTED, Operation
from sparklog.serve.codes import Code, CodeError, failure
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP, READ, TRANSACTION, WRITE, User

ANY, TOPIC, GROUP_RESOURCE, CLUSTER, TRANSACTIONAL_ID = range(1, 6)
"""Resource types. `ANY` also stands for any pattern type, operation and permission type."""
MATCH, LITERAL, PREFIXED = 2, 3, 4
"""Pattern types."""
ALLOW = 3
WILDCARD, CLUSTER_NAME, ANY_HOST = "*", "kafka-cluster", "*"
RESOURCES = {READ: TOPIC, WRITE: TOPIC, GROUP: GROUP_RESOURCE, TRANSACTION: TRANSACTIONAL_ID}
SCRAM_SHA_256 = 1
"""The mechanism of all credentials in a users file."""
READ_ONLY_FILE = CodeError(
    Code.UNSUPPORTED_VERSION,
    "users and their permissions are defined in the `--users` file of the server; edit this file",
)


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of an ACL.

    It includes the resources of a type whose names are equal to `name` or start with `name`.
    """

    kind: int
    name: str
    pattern: int

    def matches(self, fields: Fields) -> bool:
        """Return True if the resource filter of a request selects this resource."""
        name, pattern = fields["resourceNameFilter"], fields["patternTypeFilter"]
        if fields["resourceTypeFilter"] not in (ANY, self.kind) or pattern not in (ANY, MATCH, self.pattern):
            return False
        if name is None or name == self.name:
            return True
        return pattern == MATCH and (self.name == WILDCARD if self.pattern == LITERAL else name.startswith(self.name))


async def describe_acls(request: ServedRequest) -> Fields:
    fields, resources = request.fields, dict[Resource, list[Fields]]()
    if request.services.options.users is None:
        return _rejected(request)
    for user in _visible_users(request):
        for resource, operation in dict.fromkeys(_allowed(user, request.services.options.writable)):
            acl = {"principal": f"User:{user.name}", "host": ANY_HOST, "operation": operation, "permissionType": ALLOW}
            if resource.matches(fields) and _selects(fields, acl):
                resources.setdefault(resource, []).append(acl)
    return {
        "resources": [
            {
                "resourceType": resource.kind,
                "resourceName": resource.name,
                "patternType": resource.pattern,
                "acls": acls,
            }
            for resource, acls in resources.items()
        ]
    }


def _allowed(user: User, writable: bool) -> Iterator[tuple[Resource, int]]:
    """Yield the resources of a user with the operations that the user may perform on them."""
    for permission, prefixes in user.prefixes.items():
        for prefix in prefixes if permission != WRITE or writable else ():
            pattern = Resource(RESOURCES[permission], prefix or WILDCARD, PREFIXED if prefix else LITERAL)
            yield from ((pattern, operation) for operation in _numbers(PERMITTED[permission]))
            if permission == WRITE and not prefix:
                cluster = Resource(CLUSTER, CLUSTER_NAME, LITERAL)
                yield from ((cluster, operation) for operation in _numbers(CLUSTER_CHANGE))


def _numbers(operations: Operation) -> list[int]:
    """Return the number of each operation, which is the position of its bit."""
    return [operation.bit_length() - 1 for operation in Operation if operation & operations]


def _selects(fields: Fields, acl: Fields) -> bool:
    """Return True if the entry filter of a request selects an ACL."""
    return (
        fields["principalFilter"] in (None, acl["principal"])
        and fields["hostFilter"] in (None, acl["host"])
        and fields["operation"] in (ANY, acl["operation"])
        and fields["permissionType"] in (ANY, acl["permissionType"])
    )


async def create_acls(request: ServedRequest) -> Fields:
    return {"results": [_rejected(request) for _ in request.fields["creations"]]}


async def delete_acls(request: ServedRequest) -> Fields:
    return {"filterResults": [_rejected(request) for _ in request.fields["filters"]]}


def _rejected(request: ServedRequest) -> Fields:
    no_users = CodeError(Code.SECURITY_DISABLED, "No Authorizer is configured.")
    return failure(no_users if request.services.options.users is None else READ_ONLY_FILE)


# -- SCRAM credentials


async def describe_user_scram_credentials(request: ServedRequest) -> Fields:
    names = [user["name"] for user in request.fields["users"] or ()]
    users = {user.name: user for user in _visible_users(request)}

    def row(name: str) -> Fields:
        if names.count(name) > 1:
            error = CodeError(Code.DUPLICATE_RESOURCE, f"the request must list each user only once, found {name!r}")
        elif name in users:
            iterations = users[name].verifier.iterations
            return {"user": name, "credentialInfos": [{"mechanism": SCRAM_SHA_256, "iterations": iterations}]}
        else:
            error = CodeError(Code.RESOURCE_NOT_FOUND, f"no SCRAM credentials exist for user {name!r}")
        return {"user": name, **failure(error)}

    return {"errorMessage": "", "results": [row(name) for name in dict.fromkeys(names or users)]}


async def alter_user_scram_credentials(request: ServedRequest) -> Fields:
    fields = request.fields
    users = dict.fromkeys(row["name"] for row in (*fields["deletions"], *fields["upsertions"]))
    return {"results": [{"user": name, **failure(READ_ONLY_FILE)} for name in users]}


def _visible_users(request: ServedRequest) -> list[User]:
    """Return the users that the client may describe. If the client may write all topics, it may describe all users.
    Otherwise it may describe only itself.
    """
    users, own = request.services.options.users, request.client.user
    if users is None or own is None:
        return []
    return list(users.values()) if request.may(WRITE, "") else [own]
