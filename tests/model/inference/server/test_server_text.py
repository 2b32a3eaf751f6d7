"""Stop strings in a stream, and the names of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from model.inference.server.text import StopCutter, token_name

letters = st.text("ab", max_size=12)


@given(letters, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_a_cut_stream_is_the_text_before_the_first_stop(text, stops, data):
    """In whatever parts the text comes, nothing of a stop string gets out, and nothing else is lost."""
    cutter, out, rest = StopCutter(stops), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += cutter.feed(rest[:size])
        rest = rest[size:]
        assert text.startswith(out)
    out += cutter.flush()
    # The sampler ends at the first stop that is complete; of several that end there the longest counts.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert out == text
    else:
        complete = text[: min(ends)]
        assert out == complete[: min(complete.find(stop) for stop in stops if stop in complete)]


def test_a_stop_that_did_not_come_is_given_out():
    cutter = StopCutter(["stop"])
    assert cutter.feed("now sto") == "now "
    assert cutter.feed("re ") == "store "
    assert cutter.feed("st") == "" and cutter.flush() == "st"


def test_names_of_tokens(tokenizer):
    euro = tokenizer.encode("€")
    assert [token_name(tokenizer, n) for n in euro] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert token_name(tokenizer, tokenizer.ids_by_name["<think>"]) == "<think>"
