"""Which mutants are made, which are chosen, and how their results are counted."""

import random
from itertools import pairwise
from textwrap import dedent

import pytest
from cosmic_ray.mutating import mutate_code
from hailbus_devtools.check import ROOT
from hailbus_devtools.mutation.generate import Mutant, describe, generate, mutate, sample, scope
from hailbus_devtools.mutation.operators import RemoveStatement
from hailbus_devtools.mutation.session import Header, Result, choose, report, reviewed, score
from hailbus_devtools.mutation.targets import TARGETS
from hailbus_devtools.mutation.workshop import Recording

MODULE = dedent(
    '''
    """Add 1 to 2."""

    from dataclasses import dataclass

    BOUND: int | None = 3


    @dataclass(frozen=True, slots=True)
    class Counter:
        """Counts to 10."""

        count: int = 0

        def add(self, more: int | None, *, twice: bool = False) -> int | str:
            """Add `more`, or 1."""
            del twice
            assert more is None or more > 0
            log.info("adding %d", 1 + 1)
            if more is None:
                self.log.warning("nothing given, 1 taken")
                return 1
            try:
                self.count += more
            except ValueError:
                raise
            return self.count
    '''
)


def made(source: str) -> set[tuple[int, str]]:
    return {(mutant.start[0], mutant.operator.split("/")[1]) for mutant in generate("m.py", source)}


def test_texts_for_people_annotations_and_declarations_are_left_alone() -> None:
    lines = MODULE.splitlines()
    assert {(lines[line - 1].strip(), operator) for line, operator in made(MODULE)} == {
        ("BOUND: int | None = 3", "NumberReplacer"),
        ("count: int = 0", "NumberReplacer"),
        ("def add(self, more: int | None, *, twice: bool = False) -> int | str:", "ReplaceFalseWithTrue"),
        ("if more is None:", "ReplaceComparisonOperator_Is_IsNot"),
        ("return 1", "NumberReplacer"),
        ("self.count += more", "RemoveStatement"),
        ("except ValueError:", "ExceptionReplacer"),
        ("raise", "RemoveStatement"),
    }


def test_a_condition_is_negated_once() -> None:
    assert made("if a:\n    b()\n") == {(1, "AddNot"), (2, "RemoveStatement")}
    assert made("x = 1 if not a else 2") == {
        (1, "NumberReplacer"),
        (1, "ReplaceUnaryOperator_Delete_Not"),
    }


@pytest.mark.parametrize("example", RemoveStatement.examples(), ids=lambda example: example.pre_mutation_code)
def test_a_statement_with_an_effect_is_left_out(example: object) -> None:
    before, after = getattr(example, "pre_mutation_code"), getattr(example, "post_mutation_code")  # noqa: B009 no types
    assert mutate_code(before, RemoveStatement(), 0) == after


@pytest.mark.parametrize("statement", ["x = f(1)", "f", '"""f(x)"""', "return 1", "x: int = 1"])
def test_statements_without_an_effect_stay(statement: str) -> None:
    assert mutate_code(f"{statement}\n", RemoveStatement(), 0) is None


def test_a_mutant_changes_the_code_and_is_python() -> None:
    for mutant in generate("m.py", MODULE):
        changed = mutate(mutant, MODULE)
        assert changed is not None
        assert changed != MODULE
        compile(changed, "m.py", "exec")


def test_a_sample_is_repeated_by_its_seed_and_takes_every_place_before_a_second_of_one() -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    found = generate("m.py", "\n".join(f"x{number} = a < {number} + b" for number in range(20)))
    chosen = sample(found, seed=seed, count=len(found))
    assert chosen == sample(list(reversed(found)), seed=seed, count=len(found))
    assert sorted(mutant.id for mutant in chosen) == sorted(mutant.id for mutant in found)
    places = {mutant.start for mutant in found}
    assert {mutant.start for mutant in chosen[: len(places)]} == places
    assert sample(found, seed=seed, count=7) == chosen[:7]
    assert chosen != sample(found, seed=seed + 1, count=len(found))


def test_mutants_that_are_the_same_text_are_chosen_once() -> None:
    source = "x = a < 1\n"
    found = generate("m.py", source)
    assert len(choose([*found, *found], {"m.py": source}, seed=1, count=100)) == len(found)


def test_a_statement_is_found_with_the_lines_of_its_header_and_when_it_runs() -> None:
    source = dedent(
        """
        A = 1

        @decorated(
            2
        )
        def f(x=3):
            if x:
                y = [
                    x,
                ]
                return y
            match x:
                case 1 if x > 0:
                    g(x)
                case _:
                    pass
            async def g(z=4): z()

        class C:
            b = 2
            def f(self):
                return 1
        """
    )
    lines = source.splitlines()
    places = {
        "A = 1": ("", range(2, 3), True),
        "    2": ("f", range(4, 8), True),
        "def f(x=3):": ("f", range(4, 8), True),
        "    if x:": ("f", range(8, 9), False),
        "            x,": ("f", range(9, 12), False),
        "        case 1 if x > 0:": ("f", range(14, 15), False),
        "            g(x)": ("f", range(15, 16), False),
        "    async def g(z=4): z()": ("f.g", range(18, 19), False),
        "    b = 2": ("C", range(21, 22), True),
        "        return 1": ("C.f", range(23, 24), False),
    }
    for text, (name, extent, at_import) in places.items():
        found = scope(source, lines.index(text) + 1)
        assert (found.name, found.lines, found.at_import) == (name, extent, at_import), text


def test_the_tests_of_a_statement_are_those_that_execute_it_the_fastest_first() -> None:
    source = "A = 1\ndef f():\n    return (\n        1\n    )\n"
    recording = Recording(
        seconds={"slow": 2.0, "fast": 0.5, "other": 0.1, "elsewhere": 1.0},
        lines={"m.py": {3: ["slow"], 4: ["fast"], 9: ["other"]}},
    )
    assert recording.tests_of("m.py", source, 3) == ["fast", "slow"]
    assert recording.tests_of("m.py", source, 1) == ["other", "fast", "elsewhere", "slow"]
    assert recording.users_of("m.py") == ["other", "fast", "slow"]


def test_a_test_that_caught_mutants_of_a_module_judges_its_others_first() -> None:
    source = "A = 1\n"
    recording = Recording(seconds={"a": 0.1, "b": 0.5, "c": 4.0}, lines={"m.py": {}, "n.py": {}})
    recording.note("m.py", "FAILED b")
    recording.note("m.py", "ERROR c")
    for by in ("time-out", "", "crash (signal 9)", "ERROR a/file.py"):
        recording.note("m.py", by)
    assert recording.tests_of("m.py", source, 1) == ["b", "a", "c"]
    assert recording.tests_of("n.py", source, 1) == ["a", "b", "c"]
    for _ in range(20):
        recording.note("m.py", "FAILED c")
    assert recording.tests_of("m.py", source, 1) == ["c", "b", "a"]


def result(name: str, *, caught: bool, by: str = "", equivalent: str | None = None) -> Result:
    source = "def f(a):\n    return a < 1\n"
    (mutant,) = (one for one in generate("m.py", source) if one.operator.endswith("_Lt_LtE"))
    changed = mutate(mutant, source)
    assert changed is not None
    renamed = Mutant(path=name, operator=mutant.operator, occurrence=0, start=mutant.start, end=mutant.end)
    return Result(
        mutant=renamed,
        caught=caught,
        by=by,
        change=None if caught else describe(mutant, source, changed),
        equivalent=equivalent,
    )


def test_the_report_counts_and_shows_each_survivor_with_its_command() -> None:
    results = [
        *(result(f"caught{number}.py", caught=True, by="FAILED t.py::t") for number in range(6)),
        result("slow.py", caught=True, by="time-out"),
        result("same.py", caught=False, equivalent="it is the same"),
        result("survivor.py", caught=False, by="survived 3 tests"),
        result("untested.py", caught=False, by="no test executes this statement"),
    ]
    found = score(results)
    assert (found.tried, found.caught, found.timed_out, found.equivalent, found.untested) == (10, 7, 1, 1, 1)
    assert found.rate == pytest.approx(7 / 9)
    header = Header(target="m", seed=3, commits=["abc", "def"], date="2026-01-01", generated=99)
    text = report(header, results, chosen=12)
    assert "2026-01-01, commit abc, def, seed 3: " in text
    assert "7 of 10 mutants caught (1 by time-out), 1 equivalent, 2 survived (1 of them" in text
    assert "77.8% of the mutants that can be caught. 2 of 12 chosen mutants were not tried; 99 were generated." in text
    assert text.count("uv run mutate --only") == 2
    assert "`uv run mutate --only 'survivor.py:2:ReplaceComparisonOperator_Lt_LtE:0'`: survived 3 tests" in text
    assert "-    return a < 1\n+    return a <= 1" in text
    assert "same.py" not in text


def test_targets_exist_and_name_each_module_once() -> None:
    files = sorted(file for target in TARGETS for file in target.files)
    assert all(first != second for first, second in pairwise(files))
    for path in [*files, *(test for target in TARGETS for test in target.tests)]:
        assert (ROOT / path.split("::")[0]).exists(), path


@pytest.mark.slow
def test_every_reviewed_mutant_is_one_that_is_made() -> None:
    left = dict(reviewed())
    for path in {file for file, _, _, _ in left}:
        source = (ROOT / path).read_text()
        lines = source.splitlines()
        reviewed_lines = {line for file, _, removed, _ in left if file == path for line in removed.splitlines()}
        for mutant in generate(path, source):
            if reviewed_lines.isdisjoint(line.strip() for line in lines[mutant.start[0] - 1 : mutant.end[0]]):
                continue  # of another line: to make it costs more than to look
            changed = mutate(mutant, source)
            if changed is not None:
                change = describe(mutant, source, changed)
                left.pop((path, change.where, change.removed, change.added), None)
    assert left == {}
