"""Has the target write its texts once, by plain decoding, and keeps them in a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.pool.outcomes import record_missing
from ssd_cluster.bench.rules.plan import Prompt, prompts_of
from ssd_cluster.bench.spec import EngineSpec, default_cores
from ssd_cluster.bench.store import Record, Store
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.config import DType, ModelSettings, TargetSettings
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.types import Mode


def record(arguments: argparse.Namespace, temperatures: Sequence[float], progress: Callable[[str], None]) -> str:
    """Record what the file lacks; says what it holds then.

    Raises:
        ConfigError: the prompt file cannot be read, or the file holds texts of other settings.
        CheckpointError: the target is missing or broken.
        EngineStopped: its engine failed.
    """
    prompts = prompts_of(load_prompts(arguments.prompts, arguments.limit), arguments.seed)
    model = ModelSettings(
        path=arguments.target,
        dtype=DType(arguments.dtype),
        cores=arguments.target_cores or default_cores()[0],
    )
    spec = EngineSpec(target=TargetSettings(model=model, mode=Mode.AR, max_batch=arguments.record_batch))
    with LocalEngine(spec) as local, ThreadPoolExecutor(arguments.record_batch) as pool:
        names = ("target", "max_tokens", "seed", "top_p", "top_k", "raw", "ignore_eos")
        settings = {name: getattr(arguments, name) for name in names}
        settings |= {
            "benchmark": "pool outcomes",
            "model": local.info["model_hash"],
            "dtype": local.info["dtype"],
            "tokenizer": local.tokenizer.hash,
        }
        store = Store(arguments.record, settings)

        def write(prompt: Prompt, temperature: float) -> Record:
            params = SamplingParams(
                temperature=temperature,
                top_p=arguments.top_p,
                top_k=arguments.top_k,
                seed=prompt.seed,
                max_tokens=arguments.max_tokens,
                ignore_eos=arguments.ignore_eos,
            )
            ids = local.encode(prompt.text, arguments.raw)
            output = local.complete(ids, params).token_ids
            return {"temperature": temperature, "seed": prompt.seed, "prompt": ids, "output": list(output)}

        def start(prompt: Prompt, temperature: float) -> Future[Record]:
            return pool.submit(write, prompt, temperature)

        added = record_missing(prompts, temperatures, store, start, arguments.record_batch, progress)
    total = len(prompts) * len(temperatures)
    return f"{arguments.record}: {added} texts recorded now, {total} of this command in all"
