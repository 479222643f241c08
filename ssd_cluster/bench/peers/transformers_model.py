"""Our checkpoints as models of transformers, and answering prompts with its ``generate``."""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, StoppingCriteria, set_seed

from ssd_cluster.bench.handle import RequestRecord, RunRecord, Workload
from ssd_cluster.bench.peers.settings import Method, PeerSettings
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.device import resolve_dtype
from ssd_cluster.model.weights import HEAD_IDS
from ssd_cluster.text.tokenizer import Tokenizer

_HEAD = "lm_head.weight"


def load_model(path: str, dtype: torch.dtype) -> Any:
    """A checkpoint, folder or .gguf, as transformers' own model.

    A draft with a reduced head gets a whole one: ids that it does not know have rows of zeros, whose logit of 0 is far
    below the likely tokens'.

    Raises:
        CheckpointError: it is missing or broken, or transformers wants weights that it lacks.
    """
    checkpoint = open_checkpoint(resolve_checkpoint(path))
    entries = {name: value for name, value in checkpoint.config.items() if name != "torch_dtype"}
    config = AutoConfig.for_model(entries.pop("model_type"), **entries)
    state = dict(checkpoint.tensors())
    names = state.pop(HEAD_IDS, None)
    if names is not None and _HEAD in state:
        state[_HEAD] = widened(state[_HEAD], names, int(checkpoint.config["vocab_size"]))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    lacking = [name for name in model.load_state_dict(state, strict=False).missing_keys if name != _HEAD]
    if lacking or (_HEAD not in state and not config.tie_word_embeddings):
        raise CheckpointError(f"{path} lacks {', '.join(lacking) or _HEAD}, which transformers wants")
    return model.eval()


def widened(head: Tensor, names: Tensor, vocabulary: int) -> Tensor:
    """``[V_out, d]`` with the target id of each row -> ``[vocabulary, d]``, other rows zero."""
    whole = torch.zeros(vocabulary, head.shape[1], dtype=head.dtype)
    whole[names.long()] = head
    return whole


class _Seen(StoppingCriteria):  # type: ignore[misc,unused-ignore]
    """Stops nothing; notes when the first tokens were there, and how many."""

    def __init__(self, prompt: int, progress: Callable[[int], None]) -> None:
        self.at = 0.0
        self.tokens = 0
        self._prompt = prompt
        self._progress = progress

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if not self.tokens:
            self.at, self.tokens = time.perf_counter(), input_ids.shape[1] - self._prompt
        self._progress(input_ids.shape[1] - self._prompt)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class TransformersPeer:
    """A loaded model, ready to answer; one prompt at a time.

    Args:
        settings: model and method.
        progress: told the tokens of the current answer so far.

    Raises:
        CheckpointError: a model is missing or broken.
    """

    def __init__(self, settings: PeerSettings, progress: Callable[[int], None]) -> None:
        dtype = resolve_dtype(settings.dtype, torch.device("cpu"))
        self._settings = settings
        self._progress = progress
        self._tokenizer = Tokenizer.load(resolve_checkpoint(settings.target))
        self._model = load_model(settings.target, dtype)
        self._assistant = load_model(settings.draft, dtype) if settings.draft is not None else None
        if self._assistant is not None and settings.tokens is not None:
            chosen = self._assistant.generation_config
            chosen.num_assistant_tokens, chosen.num_assistant_tokens_schedule = settings.tokens, "constant"
            chosen.assistant_confidence_threshold = 0.0

    def run(self, workload: Workload) -> RunRecord:
        """Answer every prompt, one after the other; ``workload.batch`` must be 1.

        Raises:
            ValueError: a batch above 1, which assisted generation cannot do.
        """
        if workload.batch != 1:
            raise ValueError("transformers answers one prompt at a time here")
        requests = tuple(self._answer(workload, index) for index in range(len(workload.prompts)))
        return RunRecord(requests=requests, rounds=0, phase_s={})

    @torch.inference_mode()
    def _answer(self, workload: Workload, index: int) -> RequestRecord:
        prompt = workload.prompts[index]
        if workload.raw:
            ids = self._tokenizer.encode_prompt(prompt)
        else:
            ids = self._tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
        set_seed(workload.seed + index)
        seen = _Seen(len(ids), self._progress)
        given = torch.tensor([ids])
        submitted = time.perf_counter()
        output = self._model.generate(
            given,
            attention_mask=torch.ones_like(given),
            generation_config=self._generation(workload),
            stopping_criteria=[seen],
            assistant_model=self._assistant,
        )
        finished = time.perf_counter()
        tokens = output[0, len(ids) :].tolist()
        return RequestRecord(
            submitted_s=submitted,
            first_token_s=seen.at,
            first_tokens=max(1, seen.tokens),
            finished_s=finished,
            prompt_tokens=len(ids),
            completion_tokens=len(tokens),
            output_crc=zlib.crc32(array("q", tokens).tobytes()),
        )

    def _generation(self, workload: Workload) -> GenerationConfig:
        drawn = workload.temperature > 0
        more: dict[str, Any] = {}
        if drawn:
            more = {"temperature": workload.temperature, "top_p": workload.top_p, "top_k": workload.top_k}
        if self._settings.method is Method.LOOKUP:
            more["prompt_lookup_num_tokens"] = self._settings.tokens
        stops = sorted(self._tokenizer.eos_ids)
        return GenerationConfig(
            max_new_tokens=workload.max_tokens,
            do_sample=drawn,
            eos_token_id=None if workload.ignore_eos else stops,
            pad_token_id=stops[0] if stops else 0,
            **more,
        )
