"""How a store lies in Redis: nothing meets under one name, and what is packed comes back in its order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from inference_core.memory.namespaces import Namespace
from inference_core.retrieval.documents import Document, DocumentMetadata
from inference_core.stores.backend import Expiry, to_micros
from inference_core.stores.backends.redis.layout import (
    Layout,
    Stored,
    instant,
    pack_address,
    pack_cell,
    pack_scope,
    unpack_address,
    unpack_cell,
)
from inference_core.stores.backends.rows import RowState

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"', ",", "[", '","', "a", "ab"]
)
SCOPES = st.lists(TEXTS, min_size=1, max_size=4).map(tuple)
ADDRESSES = st.tuples(SCOPES, TEXTS)
MOMENTS = st.datetimes(timezones=st.just(UTC))
DOCUMENTS = st.builds(
    Document,
    text=TEXTS,
    terms=TEXTS,
    analyzer=TEXTS,
    situation=st.builds(
        DocumentMetadata, TEXTS, st.booleans(), st.none() | st.floats(allow_nan=False), st.floats(0, 1)
    ),
    model=TEXTS,
    vector=st.none(),
    tokens=st.none(),
)
CELLS = st.builds(
    RowState,
    seq=st.just(0),
    version=st.integers(1),
    kind=TEXTS,
    created_at=MOMENTS,
    updated_at=MOMENTS,
    value=st.none() | TEXTS.map(lambda text: f"{{\n{text}}}"),
    document=st.none() | DOCUMENTS,
    expiry=st.none() | st.builds(Expiry, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=99_999))),
)


@given(ADDRESSES, ADDRESSES)
def test_different_addresses_have_different_names(one: tuple[Namespace, str], other: tuple[Namespace, str]) -> None:
    assert (pack_address(one) == pack_address(other)) is (one == other)
    assert (pack_scope(one[0]) == pack_scope(other[0])) is (one[0] == other[0])
    assert unpack_address(pack_address(one)) == one


WHOLE = ("meta", "heads", "scopes", "models", "ends")
OF = ("cells", "vectors", "tokens", "feed", "age", "kinds", "ends", "texts")
NAMES = st.sampled_from(WHOLE).map(lambda what: (what, None)) | st.tuples(st.sampled_from(OF), SCOPES)
PREFIXES = TEXTS | st.sampled_from(["inference_core:", "cells:", "inference_core:texts:", 'cells:["a"]', "me"])


@given(PREFIXES, NAMES, PREFIXES, NAMES)
def test_different_stores_and_things_have_different_keys(
    prefix: str, name: tuple[str, Namespace | None], other_prefix: str, other: tuple[str, Namespace | None]
) -> None:
    if (prefix, name) != (other_prefix, other):
        assert key(prefix, *name) != key(other_prefix, *other)


def key(prefix: str, what: str, names: Namespace | None) -> bytes:
    layout = Layout(prefix)
    return layout.whole(what) if names is None else layout.of(what, *names)


@given(MOMENTS, MOMENTS)
def test_instants_sort_like_the_time(one: datetime, other: datetime) -> None:
    assert (instant(to_micros(one)) < instant(to_micros(other))) is (one < other)
    assert len(instant(to_micros(one))) == 18


@given(CELLS)
def test_a_cell_comes_back_as_it_was(cell: RowState) -> None:
    assert unpack_cell(pack_cell(b"0123456789ab", cell)) == Stored(b"0123456789ab", cell)
    assert unpack_cell(None) == Stored()


@given(ADDRESSES, MOMENTS, MOMENTS, TEXTS, TEXTS)
def test_the_newest_come_first_and_ties_by_key(
    address: tuple[Namespace, str], at: datetime, other_at: datetime, one: str, other: str
) -> None:
    def place(key: str, created: datetime) -> bytes:
        cell = RowState(seq=0, version=1, kind="", created_at=created, updated_at=created, value="{}")
        (member,) = {member for _, member in Layout("").places((address[0], key), cell)}
        return member

    before = (-to_micros(at), one.encode()) < (-to_micros(other_at), other.encode())
    assert (place(one, at) < place(other, other_at)) is before
