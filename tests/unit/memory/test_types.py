"""Memory types, their routing to categories, and their words for a model."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from inference_core.errors import InvalidCategory, InvalidMemoryType
from inference_core.memory.types import (
    MEMORY_CATEGORIES,
    MEMORY_TYPE_TO_CATEGORY,
    MEMORY_TYPES,
    SINGULAR_TYPES,
    MemoryCategory,
    MemoryType,
    MemoryTypeDescription,
    category_meant,
    format_memory_types_for_description,
    get_category_for_type,
    get_memory_category_literal,
    get_memory_type_literal,
    get_types_for_category,
    type_meant,
    validate_memory_category,
    validate_memory_type,
)

ROUTES = {
    "semantic": ["preferences", "facts", "goals", "general"],
    "episodic": ["context", "session_summary", "interaction"],
    "procedural": ["instructions", "workflow", "skill"],
}
NAMES = [name for names in ROUTES.values() for name in names]


def test_there_are_ten_types_in_three_categories():
    assert NAMES == MEMORY_TYPES
    assert list(ROUTES) == MEMORY_CATEGORIES
    assert {name: category.value for name, category in MEMORY_TYPE_TO_CATEGORY.items()} == {
        name: category for category, names in ROUTES.items() for name in names
    }


def test_the_instruction_member_has_the_plural_value():
    assert MemoryType.INSTRUCTION.value == "instructions"
    assert MemoryType("instructions") is MemoryType.INSTRUCTION


@pytest.mark.parametrize(("category", "name"), [(category, name) for category in ROUTES for name in ROUTES[category]])
def test_a_type_is_routed_to_its_category(category: str, name: str):
    assert get_category_for_type(name) is MemoryCategory(category)
    assert get_category_for_type(MemoryType(name)) is MemoryCategory(category)
    assert name in get_types_for_category(MemoryCategory(category))


def test_the_types_of_a_category_keep_their_order():
    assert {category.value: get_types_for_category(category) for category in MemoryCategory} == ROUTES


def test_an_unknown_type_is_routed_to_semantic_memory():
    assert get_category_for_type("mood") is MemoryCategory.SEMANTIC


@pytest.mark.parametrize("kind", list(MemoryType))
def test_a_type_is_valid_as_name_and_as_member(kind: MemoryType):
    assert validate_memory_type(kind) == validate_memory_type(kind.value) == kind.value
    assert type(validate_memory_type(kind)) is str


@pytest.mark.parametrize("error", [ValueError, AssertionError, InvalidMemoryType])
def test_an_unknown_type_is_both_a_value_error_and_an_assertion_error(error: type[Exception]):
    with pytest.raises(error) as raised:
        validate_memory_type("x")
    assert str(raised.value) == f"Invalid memory_type 'x'. Must be one of: {', '.join(NAMES)}"


@pytest.mark.parametrize("value", ["", "Facts", "fact", " facts", "facts\n", None, 7, [], MemoryCategory.SEMANTIC])
def test_nothing_but_a_type_passes_for_one(value: Any):
    with pytest.raises(InvalidMemoryType, match=r"^Invalid memory_type "):
        validate_memory_type(value)


@pytest.mark.parametrize("category", list(MemoryCategory))
def test_a_category_is_valid_as_name_and_as_member(category: MemoryCategory):
    assert validate_memory_category(category) == validate_memory_category(category.value) == category.value


@pytest.mark.parametrize("value", ["", "Semantic", "memories", None, [], MemoryType.FACTS])
def test_nothing_but_a_category_passes_for_one(value: Any):
    expected = (
        r"^Invalid memory_category .*Must be one of: semantic, episodic, procedural(\. Did you mean 'semantic'\?)?$"
    )
    with pytest.raises(InvalidCategory, match=expected):
        validate_memory_category(value)


@pytest.mark.parametrize(
    ("given", "meant"), [("fact", "facts"), ("Preference", "preferences"), ("session-summary", "session_summary")]
)
def test_a_type_that_is_like_one_is_guessed(given: str, meant: str):
    """Guards that the singular of the older data, the likeliest mistake, is answered with the name to use."""
    with pytest.raises(InvalidMemoryType, match=rf"skill\. Did you mean '{meant}'\?$"):
        validate_memory_type(given)
    with pytest.raises(InvalidMemoryType, match=r"skill$"):
        validate_memory_type("banana")


@pytest.mark.parametrize("kind", MemoryType)
def test_a_type_is_meant_in_any_case_and_number(kind: MemoryType):
    plain = kind.value.removesuffix("s")
    many = f"{plain.removesuffix('y')}ies" if plain.endswith("y") else f"{plain}s"
    for written in (kind.value, plain, many, plain.upper(), f" {many.title()}\n", plain.replace("_", "-")):
        assert type_meant(written) == kind.value


@pytest.mark.parametrize("value", ["", "s", "banana", "factss ", None, 7, ["facts"]])
def test_what_means_no_type_or_category_is_unchanged(value: Any):
    assert type_meant(value) is value
    assert category_meant(value) is value
    assert category_meant(" Semantic") == "semantic"


def test_types_of_an_unknown_category_are_refused():
    with pytest.raises(InvalidCategory):
        get_types_for_category("memories")  # pyright: ignore[reportArgumentType]


def test_a_long_name_is_cut_in_the_message():
    with pytest.raises(InvalidMemoryType) as of_type:
        validate_memory_type("x" * 100_000)
    with pytest.raises(InvalidCategory) as of_category:
        validate_memory_category("x" * 100_000)
    assert max(len(str(of_type.value)), len(str(of_category.value))) < 300


def test_the_literals_name_every_type_and_category():
    assert get_args(get_memory_type_literal()) == tuple(NAMES)
    assert get_args(get_memory_category_literal()) == tuple(ROUTES)


def test_every_type_is_described_by_a_sentence_and_examples():
    assert [description.name for description in MemoryTypeDescription] == [kind.name for kind in MemoryType]
    for description in MemoryTypeDescription:
        sentence, examples = description.value.split("\n")
        assert sentence.endswith(".")
        assert examples.startswith("Examples: ")


def test_the_description_lists_every_type_under_its_category():
    blocks = format_memory_types_for_description().split("\n\n")
    assert blocks[0] == "Memory types by category:"
    for block, category in zip(blocks[1:], MemoryCategory, strict=True):
        heading, *lines = block.split("\n")
        assert heading == f"  [{category.name}]"
        assert [line.split(":")[0] for line in lines] == [f"    - {name}" for name in ROUTES[category.value]]
        assert all(line.endswith(".") and line.count(".") == 1 for line in lines)


def test_singular_names_stand_for_known_types():
    assert set(SINGULAR_TYPES.values()) <= set(NAMES)
    assert not set(SINGULAR_TYPES) & set(NAMES)
