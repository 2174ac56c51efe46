"""A cosmic-ray operator of our own: leave out a statement that has an effect.

cosmic-ray replaces operators, keywords, numbers, decorators and exceptions. A call that is missing is the mistake that
loses data (`sync()` before a rename, the mark of a published row), so it is tried as well.
"""

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Keyword

Position = tuple[int, int]
Node = Any
"""A node of parso's tree, whose attributes depend on its `type`: parso's own types do not say them."""


class RemoveStatement(Operator):  # type: ignore[misc]  # cosmic-ray has no types
    """Replace a call, a change of an attribute or item, a deletion, a `raise` or a bare `return` with `pass`."""

    def mutation_positions(self, node: Node) -> Iterator[tuple[Position, Position]]:
        """Yield the position of `node` if it is such a statement."""
        if _has_effect(node):
            yield (node.start_pos, node.end_pos)

    def mutate(self, node: Node, index: int) -> Node:
        """Return the `pass` that replaces `node`."""
        assert index == 0
        replacement = Keyword("pass", node.start_pos, node.get_first_leaf().prefix)
        replacement.parent = node.parent
        return replacement

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return one example of each kind of statement."""
        return (
            Example("f(x)\n", "pass\n"),
            Example("await a.f(x)\n", "pass\n"),
            Example("a.b = 1\n", "pass\n"),
            Example("a += 1\n", "pass\n"),
            Example("del a[1]\n", "pass\n"),
            Example("raise E(1)\n", "pass\n"),
            Example("def f():\n  if x: return\n  return 1\n", "def f():\n  if x: pass\n  return 1\n"),
        )


def _has_effect(node: Node) -> bool:
    if node.parent is None or node.parent.type != "simple_stmt":
        return False
    match node.type:
        case "atom_expr":
            return bool(node.children[-1].type == "trailer" and node.children[-1].children[0].value == "(")
        case "expr_stmt":
            target = node.children[0]
            if node.children[1].type == "annassign":
                return False
            augmented = getattr(node.children[1], "value", "=") != "="
            return augmented or target.type == "atom_expr"
        case "del_stmt" | "raise_stmt":
            return True
        case "keyword":
            return bool(node.value in {"return", "raise"})
        case _:
            return False


class Provider:
    """What cosmic-ray loads by its entry point `cosmic_ray.operator_providers`."""

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the operators."""
        yield RemoveStatement.__name__

    def __getitem__(self, name: str) -> type[RemoveStatement]:
        """Return the operator of that name."""
        if name != RemoveStatement.__name__:
            raise KeyError(name)
        return RemoveStatement
