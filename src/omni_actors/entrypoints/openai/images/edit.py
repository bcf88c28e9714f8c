"""``POST /v1/images/edits``: pictures and a prompt in, pictures out; as a form or as JSON."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omni_actors.entrypoints.http import Call, Reply, until_deadline
from omni_actors.entrypoints.openai.bodies import JsonBody, bring_media, read_json, reject_early_by_head
from omni_actors.entrypoints.openai.fields import convert, decode, list_fields
from omni_actors.entrypoints.openai.forms import read_files
from omni_actors.entrypoints.openai.images.create import answer, image_request, named_like
from omni_actors.entrypoints.openai.images.facts import EDIT
from omni_actors.entrypoints.openai.images.schemas import MAX_INPUTS, EditForm, EditRequest, ImageRequest
from omni_actors.entrypoints.services import Services
from omni_actors.media.questions import How
from omni_actors.media.service.client import MediaService
from omni_actors.media.service.uploads import Upload
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import MediaRef

_NEEDS = (EDIT, ("text", "image"), ("image",))
_ANY = re.compile(b"")
_FILES = {"image": MAX_INPUTS, "mask": 1, "mask_image": 1}
"""Files of a form by field; ``mask_image`` is vLLM-Omni's name of the mask."""


class _File(NamedTuple):
    """A file of a form."""

    upload: Upload
    name: str | None
    content_type: str | None

    async def decode(self, how: How) -> MediaRef:
        return await self.upload.decode(modality="image", content_type=self.content_type, filename=self.name, how=how)


@dataclass(frozen=True, slots=True)
class FormPictures:
    """The pictures of a form: files, then those that it names by URL; and the mask."""

    media: MediaService
    files: Sequence[_File]
    urls: Sequence[str]
    mask: _File | None

    @property
    def count(self) -> int:
        """The number of pictures to edit."""
        return len(self.files) + len(self.urls)

    async def decode(self, longest_s: float | None) -> list[MediaRef]:
        """Decode the pictures in order, and behind them the mask, which must have the size of the first one."""
        made: list[MediaRef] = []
        try:
            for file in self.files:
                made.append(await file.decode(How(alpha=True)))
            for place, url in enumerate(self.urls):
                made.append(await self.media.fetch(url, modality="image", how=How(alpha=True), param=f"url[{place}]"))
            if self.mask is not None:
                made.append(await self.mask.decode(How(alpha=True, mask_of=(made[0].width, made[0].height))))
        except BaseException:
            await self.media.discard(made)
            raise
        return made


@dataclass(frozen=True, slots=True)
class JsonPictures:
    """The pictures of a JSON body, and perhaps a mask behind them."""

    media: MediaService
    body: JsonBody
    has_mask: bool

    @property
    def count(self) -> int:
        """The number of pictures to edit."""
        return len(self.body.modalities) - self.has_mask

    async def decode(self, longest_s: float | None) -> list[MediaRef]:
        """Decode and fetch the pictures in order, and behind them the mask."""
        made = await self.body.decode(longest_s)
        if self.has_mask and (made[0].width, made[0].height) != (made[-1].width, made[-1].height):
            await self.media.discard(made)
            raise invalid_request(
                f"The mask has {made[-1].width}x{made[-1].height} pixels, and its picture {made[0].width}x"
                f"{made[0].height}.",
                "mask",
                "invalid_value",
            )
        return made


async def edit(services: Services, call: Call) -> Reply:
    """Edit pictures as a prompt says. Everything else about a request is checked before a picture is decoded or
    fetched."""
    services.task(EDIT, inputs=("text", "image"), outputs=("image",))
    services.media_process()
    body: ImageRequest
    pictures: FormPictures | JsonPictures
    if call.content_type == "multipart/form-data":
        body, pictures = await _read_form(services, call)
        masked = pictures.mask is not None
    elif call.content_type in ("application/json", ""):
        body, pictures = await _read_json(services, call)
        masked = pictures.has_mask
    else:
        raise invalid_request("The body is a form (multipart/form-data) with pictures, or JSON with 'images'.")
    services.model(body.model)
    request, wanted = image_request(services, call, body, EDIT, pictures=pictures.count, mask=masked)
    with named_like(body):
        await bring_media(services, call, request, body.timeout, pictures.decode)
    return await answer(services, call, body, request, wanted)


async def _read_form(services: Services, call: Call) -> tuple[EditForm, FormPictures]:
    """Return the fields and the pictures of a form, which are freed when the call is over."""
    if not call.body.received:
        reject_early_by_head(services, call, _NEEDS)
    media = services.media_process()

    async def take(field: str, pieces: AsyncIterator[bytes], name: str | None, content_type: str | None) -> _File:
        with until_deadline(call.context):
            upload = await call.enter(media.upload(pieces, param="mask" if field == "mask_image" else field))
        return _File(upload, name, content_type)

    content_type = call.headers[b"content-type"].decode("latin-1")
    fields, files = await read_files(call.body, content_type, _FILES, take, list_fields(EditForm))
    body = convert(fields, EditForm)
    masks = [*files.get("mask", ()), *files.get("mask_image", ())]
    if len(masks) > 1:
        raise invalid_request("'mask' and 'mask_image' are the same field: give one.", "mask_image", "invalid_value")
    found = FormPictures(media, files.get("image", []), body.url or [], masks[0] if masks else None)
    if not found.count:
        raise invalid_request(
            "An edit needs a picture: a file in field 'image'.", "image", "missing_required_parameter"
        )
    if found.count > MAX_INPUTS:
        raise invalid_request(f"A request edits at most {MAX_INPUTS} pictures.", "url", "invalid_value")
    for place, url in enumerate(found.urls):
        media.check_url(url, f"url[{place}]")
    return body, found


async def _read_json(services: Services, call: Call) -> tuple[EditRequest, JsonPictures]:
    """Return the fields and the pictures of a JSON body, which are freed when the call is over."""
    read = await read_json(services, call, _NEEDS, _ANY, ("image",), "images")
    body = decode(read.json, EditRequest)
    found = JsonPictures(services.media_process(), read, body.mask is not None)
    given = body.images or []
    if not given or found.count != len(given):
        message = "An edit needs pictures: 'images' is a list of {\"image_url\": URL}."
        raise invalid_request(message, "images", "missing_required_parameter")
    if len(given) > MAX_INPUTS:
        raise invalid_request(f"A request edits at most {MAX_INPUTS} pictures.", "images", "invalid_value")
    return body, found
