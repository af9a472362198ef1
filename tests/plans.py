"""Plans of studies, whatever they may be: a strategy."""

import dataclasses

from hypothesis import strategies as st

from isingformer.methods import METHODS
from isingformer.study.part import Part
from isingformer.study.plan import Plan, StudyData


@st.composite
def plans(draw):
    methods = draw(st.lists(st.sampled_from(sorted(METHODS)), min_size=1, unique=True))
    rates = draw(st.lists(st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9]), min_size=1, max_size=3, unique=True))
    labels = draw(
        st.lists(st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True), min_size=1, max_size=3, unique=True)
    )
    sizes = st.lists(st.integers(1, 20_000), min_size=1, max_size=3, unique=True)
    tests = st.none() | st.integers(1, 10_000)
    whole = Plan(
        name="any", methods=tuple(methods), rates=() if methods == ["plain"] else tuple(rates),
        replicas=draw(st.integers(1, 7)), seed=draw(st.integers(0, 9)), samples=draw(st.integers(1, 60)),
        recipe={"epochs": draw(st.integers(1, 50))}, score_local=draw(st.booleans()),
        datasets=tuple(
            StudyData(source="digits", label=name, sizes=tuple(draw(sizes)), test_images=draw(tests)) for name in labels
        ),
    )  # fmt: skip
    parts = st.sampled_from(whole.cells()).map(
        lambda cell: Part(sizes=(cell.size,), methods=(cell.method,), rates=() if cell.rate is None else (cell.rate,))
    )
    return dataclasses.replace(whole, only=tuple(draw(st.lists(parts, max_size=2))))
