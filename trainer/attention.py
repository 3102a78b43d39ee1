"""Attention over a trie of samples: each node's tokens see its ancestors' and, causally, their own.

Enters a packed layout, leaves what `use_attention` puts into a model's layers. No mask over the
whole micro-batch exists, and nothing is computed that no token sees. Without a tree it is plain
causal attention.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from trainer.packing import Node, Packed


class Branch(NamedTuple):
    path: tuple[int, ...]
    """Indices of the node's ancestors, root first, and the node itself."""
    mask: torch.Tensor | None
    """[own, path] what is seen. None = the node is a root: causal."""


@dataclass(frozen=True)
class Tree:
    sizes: list[int]
    """Tokens of each node, as laid out."""
    branches: list[Branch]


def tree_of(packed: Packed, device: torch.device) -> Tree:
    sizes = [node.size for node in packed.nodes]
    return Tree(
        sizes, [_branch(node, index, sizes, device) for index, node in enumerate(packed.nodes)]
    )


def _branch(node: Node, index: int, sizes: list[int], device: torch.device) -> Branch:
    path = (*node.ancestors, index)
    if not node.ancestors:
        return Branch(path, None)
    above = sum(sizes[ancestor] for ancestor in node.ancestors)
    # Of truth values: it fits whatever number format the scores are in.
    mask = torch.ones(node.size, above + node.size, dtype=torch.bool, device=device).tril(above)
    return Branch(path, mask)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    tree: Tree | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface. query [1, heads, n, width], key and value [1, fewer
    heads, n, width]; the answer is [1, n, heads, width]."""
    # Of a model that sees, the part that does is handed the tree too.
    causal = getattr(module, "is_causal", True)
    if tree is None or not causal:
        tree = Tree([query.shape[2]], [Branch((0,), None)])
    queries, keys, values = (torch.split(each, tree.sizes, dim=2) for each in (query, key, value))
    found = []
    for own, (path, mask) in zip(queries, tree.branches, strict=True):
        out = scaled_dot_product_attention(
            own,
            _along(keys, path),
            _along(values, path),
            attn_mask=mask,
            is_causal=mask is None and causal,
            scale=scaling,
            enable_gqa=True,
        )
        found.append(out.transpose(1, 2))
    return torch.cat(found, dim=1), None


def _along(parts: tuple[torch.Tensor, ...], path: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([parts[index] for index in path], dim=2) if len(path) > 1 else parts[path[0]]
