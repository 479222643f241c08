"""A draft whose forwards are real and whose tokens are right with a given probability. Benchmarks only.

It separates what the machinery makes of a draft from how good a draft is: plain decoding is recorded first, then
drafted tokens and guesses are replaced by what was recorded, or by something else.
"""
