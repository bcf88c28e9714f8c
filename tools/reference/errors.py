"""The page of the error codes: which the source gives, with which HTTP status, and what they mean."""

from __future__ import annotations

from tools.reference.error_sources import codes
from tools.reference.markdown import Undocumented, documented, page, table

from omni_actors.protocol.error_codes import ERROR_CODES

INTRODUCTION = """\
An error is JSON in OpenAI's form, whatever goes wrong:

```json
{
  "error": {
    "message": "Missing required field 'messages'.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "missing_required_parameter"
  }
}
```

`param` names the field of the request that is wrong, and is null otherwise. `code` is one of this table, or null. A
failure before the first output is an HTTP status; a failure in a stream is an event with the same object, after which
the response ends abnormally. In Python, `OmniError.info` has the same fields. Statuses 429 and 503 come with the header
`Retry-After`, in seconds, where the server knows when a new attempt is worth while.

Errors of a deployment that cannot start, and of commands, have no HTTP status that a client would see; the table shows
the status of the error object."""


def make() -> str:
    """Return the page.

    Raises:
        Undocumented: The source has a code that the table of meanings lacks, or the table has one that is not used.
    """
    found = codes()
    if found.keys() != ERROR_CODES.keys():
        missing, unused = found.keys() - ERROR_CODES.keys(), ERROR_CODES.keys() - found.keys()
        raise Undocumented(
            f"error codes without a meaning: {sorted(missing)}; meanings of unused codes: {sorted(unused)}"
        )
    rows = [
        (f"`{code}`", ", ".join(map(str, sorted(found[code]))), documented(code, meaning))
        for code, meaning in ERROR_CODES.items()
    ]
    return page("Error codes", INTRODUCTION, table(("code", "status", "meaning"), rows))
