"""FlashInfer's paged attention by its documentation, in torch, so that what is planned for it runs without CUDA."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


class TorchPagedWrapper:
    """The part of ``flashinfer.BatchPrefillWithPagedKVCacheWrapper`` (0.7.4, layout NHD) that the backend uses."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        indices = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(t.dtype == torch.int32 and t.device.type == "cpu" for t in indices)
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        assert num_qo_heads % num_kv_heads == 0
        self._shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self._dtypes = (q_data_type, kv_data_type)
        self._causal = causal
        self._rows = qo_indptr.tolist()
        bounds = paged_kv_indptr.tolist()
        self._pages = [paged_kv_indices[a:b].long() for a, b in itertools.pairwise(bounds)]
        self._lengths = [
            (len(pages) - 1) * page_size + last
            for pages, last in zip(self._pages, paged_kv_last_page_len.tolist(), strict=True)
        ]

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, return_lse: bool):
        H, G, D, size = self._shape
        assert (q.dtype, paged_kv_cache[0].dtype) == self._dtypes
        assert q.shape == (self._rows[-1], H, D)
        assert q.is_contiguous()
        assert all(cache.shape[1:] == (size, G, D) for cache in paged_kv_cache)
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
        for i, (pages, length) in enumerate(zip(self._pages, self._lengths, strict=True)):
            start, stop = self._rows[i], self._rows[i + 1]
            keys, values = (
                cache[pages].flatten(0, 1)[:length].repeat_interleave(H // G, 1) for cache in paged_kv_cache
            )
            scores = torch.einsum("rhd,lhd->rhl", q[start:stop].float(), keys.float()) * D**-0.5
            if self._causal:
                last = torch.arange(length - (stop - start), length)
                scores.masked_fill_((torch.arange(length) > last[:, None])[:, None], -math.inf)
            out[start:stop] = torch.einsum("rhl,lhd->rhd", scores.softmax(-1), values.float()).to(q.dtype)
            lse[start:stop] = scores.logsumexp(-1) / math.log(2)
        return (out, lse) if return_lse else out
