"""What the kernels share: token features, products, norms, and their loads.

A token is identified by its example's number in the seed's stream and its position in the sequence,
so any program can draw any token for itself. Its features are the six of `tasks/tokens.py`, then
the position p and p^2 of the polynomial encoding, then a constant 1 for softmax attention's type
vector: one product with `load_embedding` embeds them.
"""

import triton
import triton.language as tl

from ithbit.kernels.draws import draw_bit, draw_index
from ithbit.tasks.indexing import N_FEATURES

# Arguments that never trigger a recompilation: one compilation serves every depth.
SIZES = ["count", "block", "next_block", "positions", "enter", "head", "layer", "AT", "BEFORE"]
SIZES += ["PARAMETERS", "PROGRAMS", "BLOCKS"]
LENGTHS = ["N", "LHI", "WORDS", "TOKENS"]  # likewise for kernels on rows: every length
CHUNK = tl.constexpr(16)  # tokens that a warp takes at a time: the rows of the smallest product
FEATURES = tl.constexpr(16)  # the nine features of a token, padded for a product
_LEAST = tl.constexpr(16)  # fewest terms of a sum that the tensor cores take
_TOKEN_FEATURES = tl.constexpr(N_FEATURES)


@triton.jit
def high(x):
    """x rounded to what tf32 holds exactly. With truncation the rest would always have x's sign,
    and what three passes leave out would add up: on an H200 gradient errors were four times larger.
    """
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def dot(a, b):
    """a @ b in three passes of tf32: as exact as fp32.

    Triton's own "tf32x3" also repairs infinities, which takes more instructions than the passes.
    Short sums, in narrow models, are plain multiply-adds: each thread computes whole sums.
    """
    if a.shape[1] < _LEAST:
        return tl.sum(tl.trans(a)[:, :, None] * b[:, None, :], 0)
    else:
        a_high, b_high = high(a), high(b)
        out = tl.dot(a - a_high, b_high, input_precision="tf32")
        out = tl.dot(a_high, b - b_high, out, input_precision="tf32")
        return tl.dot(a_high, b_high, out, input_precision="tf32")


@triton.jit
def dot_exact(a, b):
    """a @ b for an a that tf32 represents exactly, such as zeros and ones: two passes."""
    b_high = high(b)
    out = tl.dot(a, b - b_high, input_precision="tf32")
    return tl.dot(a, b_high, out, input_precision="tf32")


@triton.jit
def feature_columns(position, bit, query, N, LHI, COLUMNS: tl.constexpr):
    """The first COLUMNS features of tokens at positions (row): row COLUMNS. `bit` and `query` are
    used only at positions that hold one."""
    column = tl.arange(0, COLUMNS)[None, :]
    i = position - LHI
    is_bit = (i >= 0) & (i < N)
    is_query = position == (1 - LHI) * N
    is_end = position == N + 1
    query = tl.where(is_query, query, 0.0)
    p = position.to(tl.float32) / (N + LHI)
    out = tl.where(column == 0, tl.where(is_bit, 1.0, 0.0)[:, None], 0.0)
    out = tl.where(column == 1, tl.where(is_query, 1.0, 0.0)[:, None], out)
    out = tl.where(column == 2, tl.where(is_end, 1.0, 0.0)[:, None], out)
    out = tl.where(column == 3, tl.where(is_bit, bit, 0.0)[:, None], out)
    out = tl.where(column == 4, query[:, None], out)
    out = tl.where(column == 5, (query * query)[:, None], out)
    out = tl.where(column == 6, p[:, None], out)
    out = tl.where(column == 7, (p * p)[:, None], out)
    return tl.where(column == 8, 1.0, out)


@triton.jit
def token_features(key, example, position, N, LHI, WORDS, CUTS: tl.constexpr):
    """Features of tokens given by example and position (row): row FEATURES."""
    i = position - LHI
    bit = draw_bit(key, example, tl.where((i >= 0) & (i < N), i, 0), N, WORDS, CUTS)
    query = draw_index(key, example, N, WORDS).to(tl.float32) / N
    return feature_columns(position, bit, query, N, LHI, FEATURES)


@triton.jit
def load_embedding(
    values, positions, kind, D: tl.constexpr, ENCODING: tl.constexpr, TYPE: tl.constexpr
):
    """The map from token features to width D: FEATURES D. `positions` and `kind` are offsets.

    `embed` comes first in a row of parameters.
    """
    c = tl.arange(0, FEATURES)[:, None]
    d = tl.arange(0, D)[None, :]
    out = tl.load(values + d * _TOKEN_FEATURES + c, mask=c < _TOKEN_FEATURES, other=0.0)
    if ENCODING == "polynomial":
        out += tl.load(values + positions + d * 2 + c - 6, mask=(c == 6) | (c == 7), other=0.0)
    if TYPE:
        out += tl.load(values + kind + d + c * 0, mask=c == 8, other=0.0)
    return out


@triton.jit
def store_embedding(
    partial,
    grad,
    positions,
    kind,
    D: tl.constexpr,
    ENCODING: tl.constexpr,
    TYPE: tl.constexpr,
    again=0,
):
    """Store the gradient (FEATURES D) of what `load_embedding` gives where its parameters lie; if
    `again` is not 0, add it to what is there."""
    c = tl.arange(0, FEATURES)[:, None]
    d = tl.arange(0, D)[None, :]
    put_where(c < _TOKEN_FEATURES, partial + d * _TOKEN_FEATURES + c, grad, again)
    if ENCODING == "polynomial":
        put_where((c == 6) | (c == 7), partial + positions + d * 2 + c - 6, grad, again)
    if TYPE:
        put_where(c == 8, partial + kind + d + c * 0, grad, again)


@triton.jit
def rows_of(tile, count, TOKENS, ROWS: tl.constexpr):
    """The tokens of a flat tile over `count` sequences, by row: the sequence, the position in it,
    and whether there is such a token."""
    row = tile * ROWS + tl.arange(0, ROWS)
    return row // TOKENS, row % TOKENS, row < count * TOKENS


@triton.constexpr_function
def alone(TOKENS):
    """Number of tokens at the end of a sequence that are taken one by one: those left after whole
    chunks, if only one or two. As a chunk they would cost as much as a whole one."""
    chunks, rest = divmod(TOKENS, CHUNK.value)
    return rest if chunks > 0 and rest <= 2 else 0


@triton.constexpr_function
def chunks_of(TOKENS):
    """Number of chunks that the other tokens fill."""
    return triton.cdiv(TOKENS - alone(TOKENS), CHUNK.value)


@triton.jit
def _live(token, TOKENS: tl.constexpr):
    """Whether tokens of chunks exist. In whole chunks all do, and loads need no masks; the compiler
    finds that out by itself only where it does not load ahead."""
    if chunks_of(TOKENS) * CHUNK <= TOKENS:
        return tl.full(token.shape, 1, tl.int1)
    else:
        return token < TOKENS


@triton.jit
def chunk_of(c, TOKENS: tl.constexpr, D: tl.constexpr):
    """Chunk c of a sequence: its tokens (token 1), whether they exist, and where they lie."""
    token = c * CHUNK + tl.arange(0, CHUNK)[:, None]
    return token, _live(token, TOKENS), token * D + tl.arange(0, D)[None, :]


@triton.jit
def chunk_transposed(rows, c, TOKENS: tl.constexpr, D: tl.constexpr):
    """Chunk c of a sequence's rows (token D), loaded as D token."""
    token = c * CHUNK + tl.arange(0, CHUNK)[None, :]
    at = token * D + tl.arange(0, D)[:, None]
    return tl.load(rows + at, mask=_live(token, TOKENS), other=0.0)


@triton.jit
def load_across(rows, t, D: tl.constexpr):
    """Token t of a sequence's rows (token D): 1 D."""
    return tl.load(rows + t * D + tl.arange(0, D)[None, :])


@triton.jit
def load_down(rows, t, D: tl.constexpr):
    """The same, loaded as D 1."""
    return tl.load(rows + t * D + tl.arange(0, D)[:, None])


@triton.jit
def load_vector(pointer, SIZE: tl.constexpr):
    """SIZE numbers as one row: 1 SIZE."""
    return tl.load(pointer + tl.arange(0, SIZE))[None, :]


@triton.jit
def load_matrix(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A matrix as it is stored: ROWS COLUMNS."""
    return tl.load(matrix_at(pointer, ROWS, COLUMNS))


@triton.jit
def load_transposed(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The transpose of a stored matrix (ROWS COLUMNS): COLUMNS ROWS."""
    r, c = tl.arange(0, ROWS)[None, :], tl.arange(0, COLUMNS)[:, None]
    return tl.load(pointer + r * COLUMNS + c)


@triton.jit
def store_vector(pointer, row, SIZE: tl.constexpr):
    tl.store(pointer + tl.arange(0, SIZE), row)


@triton.jit
def store_matrix(pointer, matrix, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tl.store(matrix_at(pointer, ROWS, COLUMNS), matrix)


@triton.jit
def held(pointer, i):
    """The same pointer, made to look different to the compiler for each i of a loop.

    Weights read through it stay in memory: otherwise the compiler would load them once before the
    loop, and spill registers that the loop needs. There is one program along axis 2: its number is
    0.
    """
    return pointer + i * tl.program_id(2)


@triton.jit
def matrix_at(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the numbers of a stored matrix lie: ROWS COLUMNS."""
    return pointer + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def so_far(at, again):
    """What `put` would add to. Loaded long before the sum is stored, it costs no waiting."""
    return tl.load(at, mask=tl.full(at.shape, 1, tl.int1) & (again > 0), other=0.0)


@triton.jit
def put_where(mask, at, value, again):
    """Store numbers, or if `again` is not 0 add them to those that are there.

    A program that goes over several tiles adds up its shares in memory this way: sums kept in
    registers would push out what the tile itself needs.
    """
    tl.store(at, value + tl.load(at, mask=mask & (again > 0), other=0.0), mask=mask)


@triton.jit
def put(at, value, again):
    """`put_where` without a mask."""
    put_where(tl.full(value.shape, 1, tl.int1), at, value, again)


@triton.jit
def put_vector(pointer, row, again, SIZE: tl.constexpr):
    """`put` for SIZE numbers in a row."""
    put(pointer + tl.arange(0, SIZE), row, again)


@triton.jit
def put_matrix(pointer, matrix, again, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """`put` for a stored matrix."""
    put(matrix_at(pointer, ROWS, COLUMNS), matrix, again)


@triton.jit
def normalise(x, D: tl.constexpr, EPS: tl.constexpr):
    """LayerNorm without gain and offset: the normalised rows, and each row's 1 / deviation."""
    x = x - tl.sum(x, 1)[:, None] / D
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + EPS)
    return x * inverse[:, None], inverse


@triton.jit
def normalise_back(grad, normal, inverse, D: tl.constexpr):
    """Gradient of `normalise`'s input, from that of its normalised rows."""
    mean = tl.sum(grad, 1)[:, None] / D
    along = tl.sum(grad * normal, 1)[:, None] / D
    return inverse[:, None] * (grad - mean - normal * along)


@triton.jit
def gelu(x):
    """GELU, and its slope.

    The normal distribution function at -t is exp(-t^2 / 2), which the slope needs too, times a
    smooth function of t. That is a polynomial here, fitted so that the product is within 2e-8: as
    exact as with fp32's erf, at half the instructions.
    """
    t = tl.minimum(tl.abs(x), 8.0)
    bell = tl.exp2(t * t * -0.7213475204444817)
    tail = -3.1554273505207675e-07 * t + 7.708772500336636e-06
    tail = tail * t - 8.477093797409907e-05
    tail = tail * t + 0.0005636524874716997
    tail = tail * t - 0.0025900898035615683
    tail = tail * t + 0.009003845974802971
    tail = tail * t - 0.025471815839409828
    tail = tail * t + 0.061923932284116745
    tail = tail * t - 0.13280577957630157
    tail = tail * t + 0.24997256696224213
    tail = tail * t - 0.3989405930042267
    tail = (tail * t + 0.4999999701976776) * bell
    cdf = tl.where(x > 0, 1.0 - tail, tail)
    return x * cdf, cdf + x * bell * 0.3989422804014327


@triton.jit
def along_rows(x):
    """x (i k) with its columns permuted, for a product that sums over them.

    Both factors must be permuted. In this order, the threads that hold the result of one product
    already hold what the next product needs as its left factor: no data move. Short sums, which
    tensor cores do not take, are left as they are.
    """
    if x.shape[1] < _LEAST:
        return x
    else:
        x = tl.permute(tl.reshape(x, [x.shape[0], x.shape[1] // 8, 4, 2]), [0, 1, 3, 2])
        return tl.reshape(x, [x.shape[0], x.shape[1] * 8])


@triton.jit
def softplus(x):
    """log(1 + exp(x)), and its slope, the logistic function."""
    small = tl.exp(-tl.abs(x))
    one_plus = 1.0 + small
    # log(1 + small), exact for a tiny `small` too: training stops at losses as small as 1e-6.
    rest = tl.where(one_plus == 1.0, 1.0, one_plus - 1.0)
    log = tl.where(one_plus == 1.0, small, tl.log(one_plus) * (small / rest))
    return tl.maximum(x, 0.0) + log, tl.where(x >= 0, 1.0, small) / one_plus


@triton.jit
def loss_of(logit, key, example, N, WORDS, CUTS: tl.constexpr):
    """The binary cross-entropy of each example's logit, and its derivative by the logit."""
    answer = draw_bit(key, example, draw_index(key, example, N, WORDS), N, WORDS, CUTS)
    log, logistic = softplus(logit)
    return log - logit * answer, logistic - answer
