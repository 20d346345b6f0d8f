"""ApiVersions 0 to 3: the versions that are served. A newer one is answered in version 0, with the list.

Left out: features of a cluster.
"""

from __future__ import annotations

from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.apis.table import APIS
from sparklog.serve.codes import Code
from sparklog.serve.services import ServedRequest


async def api_versions(request: ServedRequest) -> Fields:
    return version_list(Code.NONE)


def version_list(code: Code) -> Fields:
    rows = [
        {"apiKey": api.key, "minVersion": api.lowest, "maxVersion": api.highest}
        for api in sorted(APIS.values(), key=lambda api: api.key)
    ]
    return {"errorCode": code, "apiKeys": rows}
