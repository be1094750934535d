"""Who sends a request: from its headers to a caller."""

from __future__ import annotations

from starlette.datastructures import Headers

from services.gateway.errors import AuthenticationError
from services.gateway.tenants.caller import DEFAULT, Caller
from services.gateway.tenants.key_ring import KeyRing


def authenticate(headers: Headers, keys: KeyRing) -> Caller:
    """The owner of the key in ``Authorization: Bearer`` or ``x-api-key``. Raises AuthenticationError.

    Where no keys are configured everybody is the same caller, whatever a client sends.
    """
    if not keys.is_required:
        return DEFAULT
    given = {text for value in headers.getlist("authorization") if (text := _bearer(value))}
    given |= {text for value in headers.getlist("x-api-key") if (text := value.strip())}
    if not given:
        raise AuthenticationError("No API key was sent; put it into 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
    if len(given) > 1:
        raise AuthenticationError("Different API keys were sent; send one.")
    caller = keys.caller(given.pop())
    if caller is None:
        raise AuthenticationError("The API key is not known or was revoked.")
    return caller


def _bearer(value: str) -> str:
    """The credentials of that scheme, else nothing: another scheme is somebody else's, such as a proxy's."""
    scheme, _, credentials = value.strip().partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else ""
