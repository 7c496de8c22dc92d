"""Error counts for the tests of laws."""

from hypothesis import strategies as st

from lightning_audit.stats.counts import ConfusionCounts


@st.composite
def counts_of(draw: st.DrawFn, most: int = 5000) -> ConfusionCounts:
    n_in, n_out = draw(st.integers(0, most)), draw(st.integers(0, most))
    fn, fp = draw(st.integers(0, n_in)), draw(st.integers(0, n_out))
    return ConfusionCounts(fn, n_in - fn, fp, n_out - fp)
