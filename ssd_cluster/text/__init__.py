"""Tokenizer, incremental detokenizer and stop strings."""

from ssd_cluster.text.detokenizer import IncrementalDetokenizer
from ssd_cluster.text.stops import StopMatcher
from ssd_cluster.text.tokenizer import Tokenizer, compare, remarks

__all__ = ["IncrementalDetokenizer", "StopMatcher", "Tokenizer", "compare", "remarks"]
