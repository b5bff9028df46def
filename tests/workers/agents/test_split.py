"""Sentences and chunks."""

from hypothesis import given
from hypothesis import strategies as st

from workers.agents.document.split import SENTENCE_TOKENS, chunks_of, sentences_of
from workers.agents.tokens import tokens_of


def test_sentences_end_at_marks_and_blank_lines_not_at_abbreviations():
    text = 'Dr. Berg met Mr. Wu, e.g. at No. 5. "Why?" he asked.\nIt was 3.5 miles!\n\nA heading\n\nThe end'

    assert sentences_of(text) == [
        "Dr. Berg met Mr. Wu, e.g. at No. 5.",
        '"Why?" he asked.',
        "It was 3.5 miles!",
        "A heading",
        "The end",
    ]


def test_list_items_and_scripts_without_blanks_are_split():
    assert sentences_of("Take:\n- a wick\n- a lens\n2. a cloth") == ["Take:", "- a wick", "- a lens", "2. a cloth"]
    assert sentences_of("灯を点ける。霧が出る。") == ["灯を点ける。", "霧が出る。"]


def test_a_sentence_without_end_is_cut_to_what_one_input_takes():
    pieces = sentences_of("word " * 3000 + "9" * 5000)

    assert all(tokens_of(piece) <= SENTENCE_TOKENS for piece in pieces)
    assert "".join("".join(pieces).split()) == "word" * 3000 + "9" * 5000


@given(st.text(max_size=400))
def test_no_text_is_lost_or_doubled(text: str):
    kept = "".join("".join(sentences_of("x" + text)).split())
    marks = "#>*•· "
    assert [c for c in kept if c not in marks] == [c for c in "".join(("x" + text).split()) if c not in marks]


def test_chunks_keep_order_and_stay_below_half_the_window():
    sentences = [f"Sentence number {n} tells of the lamp and of the lens." for n in range(200)]

    chunks = chunks_of(3, sentences, 512)

    assert [s for chunk in chunks for s in chunk.sentences] == sentences
    assert len(chunks) > 10
    assert all(chunk.chapter == 3 and sum(map(tokens_of, chunk.sentences)) <= 256 for chunk in chunks)
