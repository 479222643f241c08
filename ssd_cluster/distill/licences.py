"""Which installed texts may be trained on: those whose packages state a permissive licence, readably."""

from __future__ import annotations

import re
from importlib.metadata import PackageMetadata

_PERMISSIVE = (
    r"0bsd|apache.*|blueoak.*|(modified |new |simplified |revised )?(3-clause )?bsd.*|boost.*|bsl-1.*|cc0.*|expat.*|"
    r"hpnd|isc.*|llvm-exception|(the )?mit.*|ncsa|psf.*|public-domain|python( software foundation.*|-2.0.*)?|"
    r"unlicense.*|w3c|zlib.*"
)
_LONGEST = 80  # a longer entry is the text of a licence, not its name


def permissive(expression: str) -> bool:
    """Whether every licence named in an SPDX-like expression is a permissive one; False for an empty one."""
    names = [name.strip() for name in re.split(r"\b(?:and|or|with)\b|[()/,;|]", expression.lower())]
    names = [name for name in names if name]
    return bool(names) and all(re.fullmatch(_PERMISSIVE, name) for name in names)


def package_licence(metadata: PackageMetadata) -> str:
    """What a Python package states: its licence expression, else its classifiers, else a short licence field."""
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    approved = [c.rpartition("::")[2].strip() for c in metadata.get_all("Classifier") or [] if c.startswith("License")]
    named = [name for name in approved if name != "OSI Approved"]
    if named:
        return " and ".join(named)
    field = metadata["License"].strip() if "License" in metadata else ""
    return field if len(field) <= _LONGEST else ""


def debian_licence(copyright_text: str) -> str:
    """The licences of a Debian package from a machine-readable copyright file; empty if it is not one."""
    if not re.search(r"^Format:.*copyright-format", copyright_text, re.MULTILINE):
        return ""
    return " and ".join(dict.fromkeys(re.findall(r"^License:[ \t]*(\S.*)$", copyright_text, re.MULTILINE)))
