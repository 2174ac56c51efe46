"""Generate the mutants of a module and choose a sample of them."""

import ast
import difflib
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from hailbus_devtools.mutation.operators import Node, Position

_REPLACEMENTS = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "FloorDiv",
    "Div": "Mul",
    "FloorDiv": "Mul",
    "Mod": "FloorDiv",
    "Pow": "Mul",
    "LShift": "RShift",
    "RShift": "LShift",
    "BitOr": "BitAnd",
    "BitAnd": "BitOr",
    "BitXor": "BitAnd",
}
"""One replacement for each binary operator. cosmic-ray offers all eleven, but most raise `TypeError` on the first call:
every test catches those, and they would flatter the result."""

_COMPARISONS = (
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
    *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
)
"""The opposite and the neighbour at the bound. `is` in place of `==` changes nothing for enums and small integers."""

_OTHERS = (
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
    "RemoveStatement",
)
OPERATORS = frozenset(
    (
        *(f"ReplaceBinaryOperator_{old}_{new}" for old, new in _REPLACEMENTS.items()),
        *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARISONS),
        *_OTHERS,
    )
)

_LOG = re.compile(r"(await )?(self\.)?_?(log|logger)\.(debug|info|warning|error|exception|critical|log)\b")
_DECLARING = re.compile(r"@(typing\.)?(override|overload|final|abstractmethod|runtime_checkable|dataclass)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module.

    Attributes:
        path: The module, from the root of the repository.
        operator: cosmic-ray's name of the operator, with its provider.
        occurrence: The number of this change among all that the operator can make in the module.
        start: Line, counted from 1, and column, counted from 0, where the change begins.
        end: Where the changed text ends.
    """

    path: str
    operator: str
    occurrence: int
    start: Position
    end: Position

    @property
    def id(self) -> str:
        """The name that reproduces the mutant as long as the module does not change."""
        return f"{self.path}:{self.start[0]}:{self.operator.split('/')[1]}:{self.occurrence}"


def generate(path: str, source: str) -> list[Mutant]:
    """Return the mutants of a module, without those in annotations, log calls, asserts and declarations."""
    tree = get_ast(source)
    found = []
    for name in sorted(operator_names()):
        if name.split("/")[1] not in OPERATORS:
            continue
        operator = get_operator(name)()
        places = ((node, place) for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (node, (start, end)) in enumerate(places):
            if not _is_excluded(node, operator=name.split("/")[1]):
                found.append(Mutant(path=path, operator=name, occurrence=occurrence, start=start, end=end))
    return found


def mutate(mutant: Mutant, source: str) -> str | None:
    """Return the module's changed text, or None where the change is no Python or changes nothing."""
    changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
    if changed is None:
        return None
    try:
        compile(changed, mutant.path, "exec")
        if ast.dump(ast.parse(changed)) == _dump(source):
            return None
    except SyntaxError:
        return None
    return str(changed)


@lru_cache(maxsize=64)
def _dump(source: str) -> str:
    return ast.dump(ast.parse(source))


def sample(mutants: Iterable[Mutant], *, seed: int, count: int) -> list[Mutant]:
    """Choose mutants at random, from every place one before any place gives a second."""
    rng = random.Random(seed)
    places: dict[tuple[str, Position], list[Mutant]] = {}
    for mutant in sorted(mutants, key=lambda mutant: mutant.id):
        places.setdefault((mutant.path, mutant.start), []).append(mutant)
    for at_place in places.values():
        rng.shuffle(at_place)
    order = sorted(places)
    rng.shuffle(order)
    rounds = zip_longest(*(places[place] for place in order))
    return [mutant for a_round in rounds for mutant in a_round if mutant is not None][:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a mutant changes, in terms that stay the same while the code around it moves.

    Attributes:
        where: The qualified name of the function or class around the change; empty at the module's level.
        removed: The changed lines before the change, without indentation.
        added: The same lines after the change.
        diff: The change as a unified diff.
    """

    where: str
    removed: str
    added: str
    diff: str


def describe(mutant: Mutant, source: str, changed: str) -> Change:
    """Compare a module's text with its mutant's."""
    lines = list(
        difflib.unified_diff(
            source.splitlines(), changed.splitlines(), f"a/{mutant.path}", f"b/{mutant.path}", lineterm="", n=3
        )
    )
    body = lines[2:]
    return Change(
        where=scope(source, mutant.start[0]).name,
        removed="\n".join(line[1:].strip() for line in body if line.startswith("-") and line[1:].strip()),
        added="\n".join(line[1:].strip() for line in body if line.startswith("+") and line[1:].strip()),
        diff="\n".join(lines),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The statement at one line of a module.

    Attributes:
        name: The qualified name of the function or class around it; empty at the module's level.
        lines: The lines of the innermost statement, for a compound statement those of its header.
        at_import: The statement runs when the module is imported.
    """

    name: str
    lines: range
    at_import: bool


def scope(source: str, line: int) -> Scope:
    """Find the innermost statement at `line`."""
    name: list[str] = []
    lines = range(line, line + 1)
    at_import = True
    node: ast.AST = ast.parse(source)
    while True:
        child = next((child for child in _statements(node) if line in _extent(child)), None)
        if child is None:
            return Scope(name=".".join(name), lines=lines, at_import=at_import)
        body = getattr(child, "body", None)
        if isinstance(body, list) and body:
            extent = _extent(child)
            end = min(_extent(body[0]).start, extent.stop)
            lines = range(extent.start, max(end, extent.start + 1))
            if line not in lines:
                # In the body, or at `else:`, which has no statement of its own.
                lines = range(line, line + 1)
            inside = line >= end
        else:
            lines, inside = _extent(child), True
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name.append(child.name)
            if inside and not isinstance(child, ast.ClassDef):
                at_import = False
        node = child


def _statements(node: ast.AST) -> Iterator[ast.stmt | ast.ExceptHandler | ast.match_case]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def _extent(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> range:
    if isinstance(node, ast.match_case):
        return range(node.pattern.lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1)
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return range(start, (node.end_lineno or node.lineno) + 1)


def _is_excluded(node: Node, *, operator: str) -> bool:
    """Tell whether a change at `node` changes a text for people or a declaration, or only repeats another change."""
    if operator == "AddNot":
        # `not a == b` is `a != b` and `not not a` is `a`: another operator makes these.
        condition = node.children[2] if node.type == "test" else node.children[1]
        if condition.type in {"comparison", "not_test"}:
            return True
    child, parent = node, node.parent
    if parent is not None and parent.type == "parameters":
        return True  # the `*` before keyword-only parameters
    if operator == "RemoveStatement" and node.type == "del_stmt" and node.children[1].type == "name":
        return True  # `del name` says that a parameter is not used
    if operator == "RemoveDecorator" and _DECLARING.match(node.get_code().strip()):
        return True
    if _is_declaration(node) or (node.type == "atom_expr" and _LOG.match(node.get_code().strip())):
        return True
    while parent is not None:
        if parent.type == "tfpdef" and child is not parent.children[0]:
            return True
        if parent.type == "annassign" and child is parent.children[1]:
            return True
        if parent.type == "funcdef" and child is parent.annotation:
            return True
        if _is_declaration(parent):
            return True
        if parent.type == "atom_expr" and _LOG.match(parent.get_code().strip()):
            return True
        if parent.type == "funcdef" and operator == "RemoveStatement" and _sets_up(parent, node):
            return True
        child, parent = parent, parent.parent
    return False


def _is_declaration(node: Node) -> bool:
    if node.type == "assert_stmt":
        return True
    if node.type == "if_stmt" and "TYPE_CHECKING" in node.children[1].get_code():
        return True
    return node.type == "decorator" and bool(_DECLARING.match(node.get_code().strip()))


def _sets_up(function: Node, statement: Node) -> bool:
    """Tell whether a constructor's assignment is the statement: without it the first use raises `AttributeError`."""
    return function.name.value in {"__init__", "__post_init__"} and statement.type == "expr_stmt"
