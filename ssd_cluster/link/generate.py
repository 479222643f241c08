"""Regenerates ``ssd_cluster/link/_pb`` from ``protos/``: ``python -m ssd_cluster.link.generate [--out FOLDER]``.

The generated module is moved out of the folder named after its protobuf package (``ssd_cluster/v1``): as Python
packages those names would clash with this package.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from ssd_cluster.errors import ConfigError, StartupError

PROTO = "ssd_cluster/v1/draft_link.proto"
GENERATED = ("draft_link_pb2.py", "draft_link_pb2.pyi")


def proto_root() -> Path:
    """The folder ``protos`` of a source checkout.

    Raises:
        ConfigError: this is an installed package, which ships generated code only.
    """
    root = Path(__file__).resolve().parents[2] / "protos"
    if not (root / PROTO).is_file():
        raise ConfigError(f"no {PROTO} below {root}: code is generated in a source checkout only")
    return root


def generate(out: Path) -> list[Path]:
    """Write the generated module and its type stub into ``out``; returns their paths.

    Raises:
        ConfigError: not a source checkout, or grpcio-tools is not installed.
        StartupError: protoc refused the file (its own message is on stderr).
    """
    try:
        from grpc_tools import protoc  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError("grpcio-tools is missing: pip install 'ssd-cluster[dev]'") from error
    root = proto_root()
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with tempfile.TemporaryDirectory() as folder:
        status = protoc.main(["protoc", f"-I{root}", f"--python_out={folder}", f"--pyi_out={folder}", PROTO])
        if status != 0:
            raise StartupError(f"protoc failed on {PROTO} with status {status}")
        for name in GENERATED:
            target = out / name
            shutil.copyfile(Path(folder) / Path(PROTO).parent / name, target)
            written.append(target)
    return written


def main() -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m ssd_cluster.link.generate", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "_pb", help="target folder")
    generate(parser.parse_args().out)


if __name__ == "__main__":
    main()
