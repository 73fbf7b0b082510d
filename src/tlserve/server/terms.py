"""What a request says outside of its body: who asks, how urgently, until when, and with whom it shares cached KV."""

from __future__ import annotations

from attrs import frozen
from werkzeug.datastructures import Headers

from tlserve.openai.headers import CACHE_SALT, PRIORITY, TIMEOUT, parse_cache_salt, parse_priority, parse_timeout
from tlserve.server.deadline import Deadline
from tlserve.server.keys import Tenant


@frozen(kw_only=True)
class Terms:
    """The terms of one request.

    Attributes:
        tenant: who asks.
        priority: higher goes first.
        cache_salt: only requests with the same salt share cached KV; no two tenants have the same.
        deadline: when the client's patience ends.
    """

    tenant: Tenant
    priority: int
    cache_salt: str
    deadline: Deadline

    @classmethod
    def of(cls, headers: Headers, tenant: Tenant) -> Terms:
        """Read them from a request that has just come in.

        Raises:
            ApiError: 400 for a header that is out of range.
        """
        salt = parse_cache_salt(headers.get(CACHE_SALT))
        return cls(
            tenant=tenant,
            priority=parse_priority(headers.get(PRIORITY)),
            cache_salt=f"{tenant.name} {salt}" if tenant.name or salt else "",  # Neither part can hold a space.
            deadline=Deadline.after(parse_timeout(headers.get(TIMEOUT))),
        )
