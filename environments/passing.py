"""How often a model passes within k tries, and in all of k tries.

Enter, for each problem, how many attempts were graded and how many passed. Leave unbiased
estimates over problems. Invariant: a problem with fewer than k graded attempts says nothing of k
and is left out, never counted as failed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Tried(NamedTuple):
    """One problem's attempts."""

    graded: int
    passed: int


class AtK(NamedTuple):
    k: int
    any: float | None
    """pass@k: the share of problems that at least one of k attempts passes."""
    all: float | None
    """pass^k: the share that all of k attempts pass."""
    problems: int
    """That had k graded attempts; 0 = nothing is known of this k."""


def pass_at(n: int, c: int, k: int) -> float:
    """pass@k of one problem, of which `c` of `n` attempts passed: 1 - C(n-c, k) / C(n, k).

    The share of the subsets of k attempts that hold a passing one, so the estimate is unbiased
    where 1 - (1 - c/n)^k is not. Chen et al., "Evaluating Large Language Models Trained on Code"
    (2021), equation 1.
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_all(n: int, c: int, k: int) -> float:
    """pass^k of one problem: C(c, k) / C(n, k), the share of subsets of k that all pass. Yao et
    al., "tau-bench" (2024), section 3.2."""
    return math.comb(c, k) / math.comb(n, k)


def passing(tried: Sequence[Tried], k: int) -> AtK:
    """Both over the problems that have k graded attempts."""
    known = [one for one in tried if one.graded >= k]
    if not known:
        return AtK(k, None, None, 0)
    some = math.fsum(pass_at(one.graded, one.passed, k) for one in known)
    every = math.fsum(pass_all(one.graded, one.passed, k) for one in known)
    return AtK(k, some / len(known), every / len(known), len(known))
