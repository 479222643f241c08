"""Text and code that is at hand: what Python and Debian packages with permissive licences ship.

Code is taken function by function, as the answer to a request for it; prose (package descriptions, read-me files)
paragraph by paragraph. What states another licence, or none that can be read, is refused by name.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TypeVar

from ssd_cluster.distill.functions import NOT_LIBRARY, REQUESTS, function_head
from ssd_cluster.distill.licences import debian_licence, package_licence, permissive
from ssd_cluster.errors import ConfigError

_CODE_SHARE = 0.5
_FUNCTIONS_PER_FILE = 6
_SHORTEST, _LONGEST = 160, 4000  # characters of a text
_PROSE = ("readme", "news", "features", "faq", "overview", "tutorial", "introduction", "guide")
_DOCUMENTATION = Path("/usr/share/doc")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Text:
    """A request and an answer to it, with the package they come from."""

    source: str
    request: str
    answer: str


@dataclass(slots=True)
class Sources:
    """Files that may be used, by the package that ships them.

    Attributes:
        code: (package, Python file).
        prose: (package, text or a file that holds it).
        refused: package and the reason, one line each.
    """

    code: list[tuple[str, Path]]
    prose: list[tuple[str, Path | str]]
    refused: list[str]

    def texts(self, seed: int) -> Iterator[Text]:
        """Texts in an order that ``seed`` decides, code and prose mixed, until one of the two kinds runs out."""
        chooser = random.Random(seed)
        kinds = [self._code(random.Random(seed + 1)), self._prose(random.Random(seed + 2))]
        while True:
            kind = kinds[0] if chooser.random() < _CODE_SHARE else kinds[1]
            text = next(kind, None)
            if text is None:
                yield from kinds[0]
                yield from kinds[1]
                return
            yield text

    def _code(self, chooser: random.Random) -> Iterator[Text]:
        for package, path in _shuffled(self.code, chooser):
            functions = _functions(path)
            for head, whole in chooser.sample(functions, min(len(functions), _FUNCTIONS_PER_FILE)):
                yield Text(package, chooser.choice(REQUESTS).format(code=head), f"```python\n{whole}\n```")

    def _prose(self, chooser: random.Random) -> Iterator[Text]:
        for package, content in _shuffled(self.prose, chooser):
            for part in _paragraphs(_read(content) if isinstance(content, Path) else content):
                yield Text(package, f"Write a text about {package}.", part)


def find_sources(kinds: Sequence[str], folders: Sequence[str], progress: Callable[[str], None]) -> Sources:
    """Files of the named ``kinds`` ("library", "packages", "debian") and of ``folders``, which are taken as free.

    What is refused is named in one line of ``progress``.

    Raises:
        ConfigError: one of ``folders`` is not there.
    """
    found = Sources([], [], [])
    if "library" in kinds:
        root = Path(sysconfig.get_path("stdlib"))
        found.code += [("python", p) for p in _files(root, ".py") if not NOT_LIBRARY & set(p.relative_to(root).parts)]
    if "packages" in kinds:
        for package in sorted(distributions(), key=lambda d: d.metadata["Name"] or ""):
            _add_package(found, package)
    if "debian" in kinds and _DOCUMENTATION.is_dir():
        for folder in sorted(_DOCUMENTATION.iterdir()):
            _add_debian(found, folder)
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigError(f"score.folders: {folder} is not a folder", param="score.folders")
        found.code += [(folder.name, path) for path in _files(folder, ".py")]
        found.prose += [(folder.name, path) for path in _files(folder, ".md", ".rst", ".txt")]
    if found.refused:
        progress(f"score: refused {len(found.refused)} packages: {', '.join(found.refused)}")
    return found


def _add_package(found: Sources, package: Distribution) -> None:
    name, licence = package.metadata["Name"] or "unnamed", package_licence(package.metadata)
    if not permissive(licence):
        found.refused.append(_refusal(name, licence))
        return
    files = [file for file in package.files or () if file.suffix == ".py" and not NOT_LIBRARY & set(file.parts)]
    found.code += [(name, Path(str(package.locate_file(file)))) for file in sorted(files, key=str)]
    description = package.metadata.json.get("description", "")
    found.prose.append((name, str(description)))


def _add_debian(found: Sources, folder: Path) -> None:
    texts = [p for p in _files(folder, "", ".md", ".rst", ".txt") if p.name.lower().startswith(_PROSE)]
    if not texts:
        return
    licence = debian_licence(_read(folder / "copyright"))
    if permissive(licence):
        found.prose += [(folder.name, path) for path in texts]
    else:
        found.refused.append(_refusal(folder.name, licence))


def _refusal(name: str, licence: str) -> str:
    return f"{name} ({textwrap.shorten(licence, 60, placeholder=' ...') or 'no licence stated'})"


def _files(root: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in suffixes and path.is_file())


def _read(path: Path) -> str:
    """The text of a file; empty if it is not there or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _shuffled(items: Sequence[_T], chooser: random.Random) -> list[_T]:
    return chooser.sample(items, len(items))


def _functions(path: Path) -> list[tuple[str, str]]:
    """(head, whole) of every documented function of a file, without indentation."""
    source = _read(path)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    lines, found = source.splitlines(), []
    for node in ast.walk(tree):
        head = function_head(node, lines)
        if head is not None and isinstance(node, ast.FunctionDef):
            whole = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno])
            if len(whole) <= _LONGEST:
                found.append((head, whole))
    return found


def _paragraphs(text: str) -> Iterator[str]:
    """Runs of whole paragraphs between the shortest and the longest length; link targets and tables left out."""
    part = ""
    for paragraph in re.split(r"\n\s*\n", text):
        letters = sum(c.isalpha() or c.isspace() for c in paragraph)
        if not paragraph.strip() or letters < 0.75 * len(paragraph) or "](http" in paragraph:
            continue
        part = f"{part}\n\n{paragraph.strip()}" if part else paragraph.strip()
        if len(part) > _SHORTEST * 4:
            yield part[:_LONGEST]
            part = ""
    if len(part) >= _SHORTEST:
        yield part
