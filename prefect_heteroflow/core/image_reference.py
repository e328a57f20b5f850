"""What an image reference must look like, by the grammar of the container engines."""

from __future__ import annotations

import re

_ALPHANUMERIC = "[a-z0-9]+"
_COMPONENT = rf"{_ALPHANUMERIC}(?:(?:[._]|__|-+){_ALPHANUMERIC})*"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_REPOSITORY = re.compile(rf"(?:(?:{_DOMAIN})/)?{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[+._-][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_LONGEST_REPOSITORY = 255
_FORM = "[REGISTRY[:PORT]/]NAME[:TAG][@DIGEST], for example python:3.12-slim"


def image_reference_problem(reference: str) -> str | None:
    """Why an engine would refuse this image reference, in one sentence; `None` if it would not.

    It looks at the form alone; whether the image exists only a registry can tell.
    """
    cause = _cause(reference)
    if cause is None:
        return None
    return f"image {reference!r} cannot be parsed: {cause}. Allowed is {_FORM}."


def _cause(reference: str) -> str | None:
    if not reference:
        return "it is empty"
    if re.search(r"\s", reference):
        return "it contains white space"
    if "://" in reference:
        return "it starts with a scheme, which has no place in it"
    name, at, digest = reference.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return f"{digest!r} is no digest"
    # A colon before the last slash belongs to the registry's port.
    head, slash, tail = name.rpartition("/")
    tail, colon, tag = tail.partition(":")
    if colon and not _TAG.fullmatch(tag):
        return f"{tag!r} is no tag"
    repository = f"{head}{slash}{tail}"
    if _IMAGE_ID.fullmatch(repository):
        return "it is 64 hexadecimal digits, which is an image id; write sha256: before it"
    if len(repository) > _LONGEST_REPOSITORY:
        return f"its name is longer than {_LONGEST_REPOSITORY} characters"
    if _REPOSITORY.fullmatch(repository):
        return None
    if _REPOSITORY.fullmatch(repository.lower()):
        return "its name must be in lower case"
    return f"{repository!r} is no name of an image"
