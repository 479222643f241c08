"""Checkpoints on disk: find one by name, read its configuration, iterate over its tensors by Hugging Face names."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ssd_cluster.errors import CheckpointError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
EMBEDDED_TARGET = "smollm2-135m-instruct"
EMBEDDED_DRAFT = "smollm2-135m-draft"

INDEX = "model.safetensors.index.json"
_HASH_SAMPLES = 16
_HASH_SAMPLE_BYTES = 64 * 1024
Cut = Callable[[str, tuple[int, ...]], tuple[slice, ...] | None]
"""Which part of a tensor (name, shape) to read; None: the tensor is left out."""

_HUB_WORDS = ["*.json", "*.jinja", "tokenizer.model"]
_HUB_FILES = [*_HUB_WORDS, "*.safetensors"]


class Checkpoint(ABC):
    """One model on disk.

    Attributes:
        path: the folder or .gguf file.
        config: the model configuration in the form of Hugging Face's config.json.
        generation_config: generation_config.json, or an empty dict.
    """

    def __init__(self, path: Path, config: dict[str, Any], generation_config: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config

    @abstractmethod
    def names(self) -> list[str]:
        """Names of all tensors, without reading them."""

    @abstractmethod
    def tensors(self, cut: Cut | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) one at a time, on the CPU, in the stored dtype (GGUF: float32).

        With ``cut`` only the parts that it names; of safetensors no more than these is read.

        Raises:
            CheckpointError: a file is missing, truncated or unreadable.
        """

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits over the configuration and samples of every weight file (start, end and evenly between).

        Cheap on purpose: it tells models, dtypes and training runs apart, it is no protection against forgery.
        """
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode())
        for file in self.weight_files():
            size = file.stat().st_size
            digest.update(f"{file.name}:{size};".encode())
            with file.open("rb") as stream:
                for sample in range(_HASH_SAMPLES):
                    stream.seek(max(0, size - _HASH_SAMPLE_BYTES) * sample // (_HASH_SAMPLES - 1))
                    digest.update(stream.read(_HASH_SAMPLE_BYTES))
        return digest.hexdigest()[:16]


class SafetensorsCheckpoint(Checkpoint):
    """A Hugging Face folder: config.json and one model.safetensors or shards with an index."""

    def __init__(self, path: Path) -> None:
        config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        super().__init__(path, config, read_json(generation) if generation.exists() else {})
        self._shard_of = _shards(path)

    def names(self) -> list[str]:
        return list(self._shard_of)

    def weight_files(self) -> list[Path]:
        return sorted(set(self._shard_of.values()))

    def tensors(self, cut: Cut | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for file in self.weight_files():
            with _open_safetensors(file) as reader:
                for name in (name for name, shard in self._shard_of.items() if shard == file):
                    if cut is None:
                        yield name, reader.get_tensor(name)
                        continue
                    stored = reader.get_slice(name)
                    part = cut(name, tuple(stored.get_shape()))
                    if part is not None:
                        yield name, stored[part]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint.

    Raises:
        CheckpointError: the file is missing or holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing; a checkpoint is a folder with config.json, model.safetensors and the tokenizer files, "
            "or a .gguf file"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch the checkpoint again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; fetch the checkpoint again")
    return value


def _open_safetensors(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; fetch the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is truncated or damaged ({error}); delete it and fetch it again") from error


def _shards(path: Path) -> dict[str, Path]:
    """Tensor name -> file, checked against the header of every file."""
    single, index = path / "model.safetensors", path / INDEX
    if single.exists():
        return dict.fromkeys(_header_names(single), single)
    if not index.exists():
        raise CheckpointError(
            f"{path} holds neither model.safetensors nor {INDEX}; weights in other formats (.bin, .pth) are not read, "
            "convert them to safetensors"
        )
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch the checkpoint again")
    present = {path / file: set(_header_names(path / file)) for file in sorted(set(weight_map.values()))}
    for name, file in weight_map.items():
        if name not in present[path / file]:
            raise CheckpointError(f"{index} places {name} in {file}, which does not hold it; fetch it again")
    return {name: path / file for name, file in weight_map.items()}


def _header_names(file: Path) -> list[str]:
    with _open_safetensors(file) as reader:
        return list(reader.keys())


def expected_names(config: dict[str, Any]) -> Iterator[str]:
    """Names of the tensors that a model of this configuration must have.

    Raises:
        CheckpointError: the configuration lacks the number of layers.
    """
    family = config.get("model_type")
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int) or layers < 1:
        raise CheckpointError(f"num_hidden_layers in config.json must be a positive integer, not {layers!r}")
    yield "model.embed_tokens.weight"
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield from (f"{prefix}{norm}.weight" for norm in ("input_layernorm", "post_attention_layernorm"))
        yield from (f"{prefix}self_attn.{part}_proj.weight" for part in "qkvo")
        yield from (f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        if family == "qwen2" or config.get("attention_bias"):
            yield from (f"{prefix}self_attn.{part}_proj.bias" for part in ("qkv" if family == "qwen2" else "qkvo"))
        if config.get("mlp_bias"):
            yield from (f"{prefix}mlp.{part}_proj.bias" for part in ("gate", "up", "down"))
        if family == "qwen3":
            yield from (f"{prefix}self_attn.{part}_norm.weight" for part in "qk")
    yield "model.norm.weight"
    if not config.get("tie_word_embeddings", False):
        yield "lm_head.weight"


def _check(checkpoint: Checkpoint) -> None:
    """Refuse what the decoder cannot run, before any tensor is read."""
    family = checkpoint.config.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{checkpoint.path}: model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    missing = first_missing(expected_names(checkpoint.config), checkpoint.names())
    if missing is not None:
        raise CheckpointError(f"{checkpoint.path}: tensor {missing} is missing; fetch the checkpoint again")


def first_missing(expected: Iterable[str], present: Iterable[str]) -> str | None:
    """The first expected name that is not present, or None."""
    known = set(present)
    return next((name for name in expected if name not in known), None)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder or a .gguf file; checks family, file headers and that no tensor is missing.

    Raises:
        CheckpointError: says what is wrong and what to do.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        from ssd_cluster.model.gguf import GgufCheckpoint  # numpy readers, only needed for this format

        checkpoint: Checkpoint = GgufCheckpoint(path)
    else:
        checkpoint = SafetensorsCheckpoint(path)
    _check(checkpoint)
    return checkpoint


def _silent(message: str) -> None:
    """Progress that nobody asked for."""


def resolve_checkpoint(path: str, progress: Callable[[str], None] = _silent, *, weights: bool = True) -> Path:
    """Find a checkpoint: an embedded name, a local folder, a .gguf file, or a hub id ("owner/name").

    ``progress`` gets one line per slow step (download, conversion). Without ``weights`` those of a hub id are not
    fetched: its folder then has configuration and tokenizer, and cannot be opened.

    Raises:
        CheckpointError: nothing is found under this name, or a download fails; says what to do.
    """
    if path in (EMBEDDED_TARGET, EMBEDDED_DRAFT):
        from ssd_cluster.model import assets

        return assets.ensure_smollm2(progress) if path == EMBEDDED_TARGET else assets.ensure_draft(progress)
    local = Path(path).expanduser()
    if local.is_dir():
        return _folder_or_gguf(local)
    if local.is_file():
        if local.suffix != ".gguf":
            raise CheckpointError(f"{local} is a file but no .gguf; give the folder that holds config.json")
        return local
    if _is_hub_id(path):
        return _from_hub(path, _HUB_FILES if weights else _HUB_WORDS)
    raise CheckpointError(
        f"no model {path!r}: there is no such folder or .gguf file, and it is neither a hub id (owner/name) nor one of "
        f"the embedded models {EMBEDDED_TARGET}, {EMBEDDED_DRAFT}"
    )


def _folder_or_gguf(folder: Path) -> Path:
    """The folder itself, or the only .gguf file of a folder without config.json."""
    if (folder / "config.json").exists():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise CheckpointError(f"{folder} holds {len(files)} .gguf files; name one of them, for example {files[0]}")
    raise CheckpointError(f"{folder} holds no config.json and no .gguf file, so it is no checkpoint")


def _is_hub_id(path: str) -> bool:
    parts = path.split("/")
    return len(parts) == 2 and all(parts) and not path.startswith((".", "~")) and not path.endswith(".gguf")


def _from_hub(repo: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repo, allow_patterns=files))
    except GatedRepoError as error:
        raise CheckpointError(f"{repo} is gated: accept its terms on the hub, then run `hf auth login`") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(f"there is no folder {repo} here and no model {repo} on the hub") from error
    except Exception as error:  # the hub client raises what its transport raises
        raise CheckpointError(
            f"{repo} cannot be fetched from the hub ({type(error).__name__}); if there is no network, copy the model "
            "into a folder and give its path"
        ) from error
