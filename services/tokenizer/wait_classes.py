"""What a client waits for when a turn has ended with calls, as an engine may know it: no names."""

from services.identity import digest_fields


def wait_class(namespace: str | None, name: str) -> str:
    """The class of waits for one tool."""
    fields = ("namespace", (namespace or "").encode()), ("tool", name.encode())
    return digest_fields(*fields, size=16).hex()
