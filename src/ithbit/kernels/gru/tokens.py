"""The tokens that the GRU's first layer draws for itself: the words of an example's bits once, and
the features of a token from them."""

import triton
import triton.language as tl

from ithbit.kernels.draws import SHARES, draw_index, odd_word, odd_zeros, share_of, stream_word
from ithbit.kernels.tile import feature_columns
from ithbit.tasks.indexing import N_FEATURES

FEATURES = tl.constexpr(N_FEATURES + 2)  # of a token: its own, then p and p^2
_TOKEN_FEATURES = tl.constexpr(N_FEATURES)


@triton.jit
def embedding_at(row, positions, D: tl.constexpr):
    """Where in a row of parameters the map from features to width D lies: FEATURES D."""
    f = tl.arange(0, FEATURES)[:, None]
    d = tl.arange(0, D)[None, :]
    polynomial = positions + d * 2 + f - _TOKEN_FEATURES
    return row + tl.where(f < _TOKEN_FEATURES, d * _TOKEN_FEATURES + f, polynomial)


@triton.jit
def _odd_bits(key, example, FROM, N: tl.constexpr, WORDS: tl.constexpr, CUTS: tl.constexpr):
    """64 bits of odd examples (row), starting at bit FROM, in a word."""
    j = FROM // SHARES + tl.arange(0, 64 // SHARES)[None, :]
    word = odd_word(key, example[:, None], j, N)
    out = tl.zeros_like(word)
    for share in tl.static_range(SHARES):
        i = j * SHARES + share
        zeros = odd_zeros(key, example[:, None], i, N, WORDS, CUTS)
        bit = (share_of(word, i % SHARES) >= zeros).to(tl.uint64)
        out |= bit << (i % 64).to(tl.uint64)
    return tl.sum(out, 1)


@triton.jit
def draw(key, example, N: tl.constexpr, WORDS: tl.constexpr, CUTS: tl.constexpr):
    """The query feature of examples (row), and the one or two words of their bits; if there are
    more words, the last one twice (see `turned`)."""
    query = draw_index(key, example, N, WORDS).to(tl.float32) / N
    low, high = stream_word(key, example, 1, WORDS), stream_word(key, example, WORDS - 1, WORDS)
    if CUTS:
        odd = example % 2 == 1
        low = tl.where(odd, _odd_bits(key, example, 0, N, WORDS, CUTS), low)
        if N > 64:
            high = tl.where(odd, _odd_bits(key, example, 64, N, WORDS, CUTS), high)
    if N > 128:
        low = turned(high, N - 1, (N - 1) % 64, key, example, N, WORDS, CUTS)
        high = low
    return query, low, high


@triton.jit
def turned(
    word, i, BORDER: tl.constexpr, key, example, N: tl.constexpr, WORDS: tl.constexpr,
    CUTS: tl.constexpr,
):  # fmt: skip
    """The word that holds bit i, for loops over more than two words of bits: a new one is drawn if
    i is at the BORDER of a word (its bit 0 or 63), else `word` is returned."""
    if i % 64 == BORDER:
        word = stream_word(key, example, 1 + i // 64, WORDS)
        if CUTS:
            word = tl.where(
                example % 2 == 1, _odd_bits(key, example, i // 64 * 64, N, WORDS, CUTS), word
            )
    return word


@triton.jit
def features(t, query, low, high, N: tl.constexpr, LHI: tl.constexpr):
    """Features of token t of the sequences that `draw` drew: row FEATURES. Unlike in
    `token_features`, the words are drawn once, not at every token."""
    position = tl.zeros_like(low).to(tl.int32) + t
    i = position - LHI
    word = tl.where(i < 64, low, high)
    bit = ((word >> (i & 63).to(tl.uint64)) & 1).to(tl.int32).to(tl.float32)
    return feature_columns(position, bit, query, N, LHI, FEATURES)
