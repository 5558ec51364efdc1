"""The mixing of softmax attention at all tokens: a thread takes one head of a few tokens.

A head is short (8 numbers in the paper's models), so three passes of tf32 would cost more than
plain fused multiply-adds. A program takes a sequence, or a part of a long one: PARTS x SLOTS
tokens; each of its lanes takes one head of PARTS of them. A lane keeps its queries in registers and
goes over the keys; a key is loaded once for all its queries, all lanes of a head from one address.
The bottleneck is loading into registers, so loads are few and wide.

Heads are tuples of HEAD tensors (lane); a lane's queries are a tuple of heads. `sums` keeps two
numbers for each token and head: the logarithm (to base 2) of the sum of exponentials, from `mix`,
and the inner product of its output with the output's gradient, which `queries_back` stores for
`keys_back`: seed, example, token, head, 2.
"""

import triton
import triton.language as tl

from ithbit.kernels.tile import SIZES

SLOTS = tl.constexpr(16)  # lanes of a head
_NEVER = tl.constexpr(-1e30)
_LOG2_E = tl.constexpr(1.4426950408889634)
_AT_ONCE = tl.constexpr(4)  # keys between two updates of the largest score
_TOUCHED = tl.constexpr(130)  # tokens that are loaded ahead, at most


@triton.jit
def _load_head(pointer, HEAD: tl.constexpr):
    """HEAD numbers from each pointer on, as a tuple: loaded in fours, or as a pair if HEAD is 2."""
    out = ()
    if HEAD == 2:
        first, second = tl.split(tl.load(pointer[:, None] + tl.arange(0, 2)[None, :]))
        out = (first, second)
    else:
        for i in tl.static_range(0, HEAD, 4):
            four = tl.load(pointer[:, None] + (i + tl.arange(0, 4))[None, :])
            even, odd = tl.split(tl.reshape(four, [four.shape[0], 2, 2]))
            first, third = tl.split(even)
            second, fourth = tl.split(odd)
            out = out + (first, second, third, fourth)
    return out


@triton.jit
def _store_head(pointer, head, scale, mask, HEAD: tl.constexpr):
    """Store `scale` times HEAD numbers, from each pointer on."""
    if HEAD == 2:
        two = tl.join(head[0] * scale, head[1] * scale)
        tl.store(pointer[:, None] + tl.arange(0, 2)[None, :], two, mask=mask[:, None])
    else:
        for i in tl.static_range(0, HEAD, 4):
            even = tl.join(head[i] * scale, head[i + 2] * scale)
            odd = tl.join(head[i + 1] * scale, head[i + 3] * scale)
            four = tl.reshape(tl.join(even, odd), [pointer.shape[0], 4])
            tl.store(pointer[:, None] + (i + tl.arange(0, 4))[None, :], four, mask=mask[:, None])


@triton.jit
def _load_parts(
    pointer, t, factor, TOKENS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """`factor` times a lane's heads, of token t and every SLOTS-th after it: a tuple of heads."""
    out = ()
    for p in tl.static_range(PARTS):
        token = tl.minimum(t + p * SLOTS, TOKENS - 1)
        out = out + (_scaled(_load_head(pointer + token * D, HEAD), factor, HEAD),)
    return out


@triton.jit
def _store_parts(
    pointer, parts, t, factor, TOKENS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Store `factor` times a lane's heads where those tokens lie."""
    for p in tl.static_range(PARTS):
        token = t + p * SLOTS
        _store_head(pointer + token * D, parts[p], factor, token < TOKENS, HEAD)


@triton.jit
def _times(a, b, HEAD: tl.constexpr):
    """The inner product of two heads."""
    out = a[0] * b[0]
    for i in tl.static_range(1, HEAD):
        out += a[i] * b[i]
    return out


@triton.jit
def _scaled(a, factor, HEAD: tl.constexpr):
    out = ()
    for i in tl.static_range(HEAD):
        out = out + (a[i] * factor,)
    return out


@triton.jit
def _plus(a, factor, b, HEAD: tl.constexpr):
    """a + factor b."""
    out = ()
    for i in tl.static_range(HEAD):
        out = out + (a[i] + factor * b[i],)
    return out


@triton.jit
def _many(start, COUNT: tl.constexpr):
    """A tuple of COUNT times the same."""
    out = ()
    for _ in tl.static_range(COUNT):
        out = out + (start,)
    return out


@triton.jit
def _touch(pointer, TOKENS: tl.constexpr, NUMBERS: tl.constexpr):
    """0, once the NUMBERS of each token from a pointer on are in the cache; for a long sequence
    only those of the first tokens, as many as registers hold.

    One number of every 32 bytes is loaded, all at once: without this, the loop over keys would wait
    for memory at each of them. Sums start from this zero, so that the compiler keeps the loads.
    """
    SIZE: tl.constexpr = min(TOKENS, _TOUCHED) * NUMBERS
    at = tl.arange(0, triton.next_power_of_2((SIZE + 7) // 8)) * 8
    return tl.sum(tl.load(pointer + at, mask=at < SIZE, other=0.0)) * 0.0


@triton.jit
def _place(CAPACITY, TOKENS: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr):
    """What this program works on: its example, where that starts among all tokens, and each lane's
    first token and head (lane)."""
    GROUPS: tl.constexpr = (TOKENS + PARTS * SLOTS - 1) // (PARTS * SLOTS)
    program, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    example = program // GROUPS
    lane = tl.arange(0, H * SLOTS)
    t = program % GROUPS * (PARTS * SLOTS) + lane % SLOTS
    return example, (seed * CAPACITY + example) * TOKENS, t, lane // SLOTS


@triton.constexpr_function
def _lap(TOKENS, CAUSAL, PARTS):
    """Tokens per lap of the loop over tokens. It has one lap, except in causal attention with one
    program per sequence: there it has as many laps as there are parts.

    Lap c then has the tokens of part c: as keys they are seen by the parts from c on, as queries
    they see the parts up to c, and other parts are skipped.
    """
    return SLOTS.value if CAUSAL and PARTS * SLOTS.value >= TOKENS else TOKENS


@triton.jit(do_not_specialize=SIZES)
def mix(
    queries, keys, values, out, sums, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Mixed values (seed, example, token, D), and the logarithm in `sums`."""
    HEAD: tl.constexpr = D // H
    LANES: tl.constexpr = H * SLOTS
    LAP: tl.constexpr = _lap(TOKENS, CAUSAL, PARTS)
    example, start, t, h = _place(CAPACITY, TOKENS, H, PARTS)
    if example < count:
        shift = start * D + h * HEAD
        q = _load_parts(queries + shift, t, SCALE * _LOG2_E, TOKENS, D, HEAD, PARTS)
        tops = _many(tl.full([LANES], _NEVER, tl.float32), PARTS)
        zero = tl.zeros([LANES], tl.float32) + _touch(keys + start * D, TOKENS, D)
        zero += _touch(values + start * D, TOKENS, D)
        wholes, mixed = _many(zero, PARTS), _many(_many(zero, HEAD), PARTS)
        for lap in tl.static_range((TOKENS + LAP - 1) // LAP):
            for c in range(lap * LAP, min(lap * LAP + LAP, TOKENS), _AT_ONCE):
                scores, new_tops = (), tops
                for j in tl.static_range(_AT_ONCE):
                    s = c + j
                    k = _load_head(keys + shift + tl.minimum(s, TOKENS - 1) * D, HEAD)
                    of_key, so_far = (), ()
                    for p in tl.static_range(lap, PARTS):
                        visible = s <= t + p * SLOTS if CAUSAL else s < TOKENS
                        of_key = of_key + (tl.where(visible, _times(q[p], k, HEAD), _NEVER),)
                        so_far = so_far + (tl.maximum(new_tops[p], of_key[p - lap]),)
                    scores, new_tops = scores + (of_key,), new_tops[:lap] + so_far
                rest, totals = (), ()
                for p in tl.static_range(lap, PARTS):
                    shrink = tl.exp2(tops[p] - new_tops[p])
                    rest = rest + (_scaled(mixed[p], shrink, HEAD),)
                    totals = totals + (wholes[p] * shrink,)
                tops, mixed, wholes = new_tops, mixed[:lap] + rest, wholes[:lap] + totals
                for j in tl.static_range(_AT_ONCE):
                    v = _load_head(values + shift + tl.minimum(c + j, TOKENS - 1) * D, HEAD)
                    rest, totals = (), ()
                    for p in tl.static_range(lap, PARTS):
                        a = tl.exp2(scores[j][p - lap] - tops[p])
                        rest = rest + (_plus(mixed[p], a, v, HEAD),)
                        totals = totals + (wholes[p] + a,)
                    mixed, wholes = mixed[:lap] + rest, wholes[:lap] + totals
        for p in tl.static_range(PARTS):
            token = t + p * SLOTS
            live = token < TOKENS
            _store_head(out + shift + token * D, mixed[p], 1.0 / wholes[p], live, HEAD)
            log = tops[p] + tl.log2(wholes[p])
            tl.store(sums + ((start + token) * H + h) * 2, log, mask=live)


@triton.jit(do_not_specialize=SIZES)
def queries_back(
    queries, keys, values, out, sums, d_out, d_queries, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Gradients of queries from that of the mixed values `out`, and the other number in `sums`."""
    HEAD: tl.constexpr = D // H
    LANES: tl.constexpr = H * SLOTS
    LAP: tl.constexpr = _lap(TOKENS, CAUSAL, PARTS)
    example, start, t, h = _place(CAPACITY, TOKENS, H, PARTS)
    if example < count:
        shift = start * D + h * HEAD
        zero = tl.zeros([LANES], tl.float32) + _touch(keys + start * D, TOKENS, D)
        zero += _touch(values + start * D, TOKENS, D)
        q = _load_parts(queries + shift, t, SCALE * _LOG2_E, TOKENS, D, HEAD, PARTS)
        g = _load_parts(d_out + shift, t, 1.0, TOKENS, D, HEAD, PARTS)
        owns, logs = (), ()
        for p in tl.static_range(PARTS):
            token = tl.minimum(t + p * SLOTS, TOKENS - 1)
            owns = owns + (_times(g[p], _load_head(out + shift + token * D, HEAD), HEAD),)
            logs = logs + (tl.load(sums + ((start + token) * H + h) * 2),)
        dq = _many(_many(zero, HEAD), PARTS)
        for lap in tl.static_range((TOKENS + LAP - 1) // LAP):
            for s in range(lap * LAP, min(lap * LAP + LAP, TOKENS)):
                at = shift + s * D
                k, v = _load_head(keys + at, HEAD), _load_head(values + at, HEAD)
                more = ()
                for p in tl.static_range(lap, PARTS):
                    a = tl.exp2(_times(q[p], k, HEAD) - logs[p])
                    if CAUSAL:
                        a = tl.where(s <= t + p * SLOTS, a, 0.0)
                    more = more + (_plus(dq[p], a * (_times(g[p], v, HEAD) - owns[p]), k, HEAD),)
                dq = dq[:lap] + more
        _store_parts(d_queries + shift, dq, t, SCALE, TOKENS, D, HEAD, PARTS)
        for p in tl.static_range(PARTS):
            token = t + p * SLOTS
            tl.store(sums + ((start + token) * H + h) * 2 + 1, owns[p], mask=token < TOKENS)


@triton.jit(do_not_specialize=SIZES)
def keys_back(
    queries, keys, values, sums, d_out, d_keys, d_values, count, CAPACITY,
    TOKENS: tl.constexpr, D: tl.constexpr, H: tl.constexpr, SCALE: tl.constexpr,
    CAUSAL: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, summed over the queries that see them."""
    HEAD: tl.constexpr = D // H
    LANES: tl.constexpr = H * SLOTS
    LAP: tl.constexpr = _lap(TOKENS, CAUSAL, PARTS)
    example, start, t, h = _place(CAPACITY, TOKENS, H, PARTS)
    if example < count:
        shift = start * D + h * HEAD
        zero = tl.zeros([LANES], tl.float32) + _touch(queries + start * D, TOKENS, D)
        zero += _touch(d_out + start * D, TOKENS, D)
        zero += _touch(sums + start * (2 * H), TOKENS, 2 * H)
        k = _load_parts(keys + shift, t, SCALE * _LOG2_E, TOKENS, D, HEAD, PARTS)
        v = _load_parts(values + shift, t, 1.0, TOKENS, D, HEAD, PARTS)
        dk, dv = _many(_many(zero, HEAD), PARTS), _many(_many(zero, HEAD), PARTS)
        for lap in tl.static_range((TOKENS + LAP - 1) // LAP):
            for s in range(lap * LAP, min(lap * LAP + LAP, TOKENS)):
                at = shift + s * D
                q, g = _load_head(queries + at, HEAD), _load_head(d_out + at, HEAD)
                pointer = sums + ((start + s) * H + h) * 2
                log, own = tl.load(pointer), tl.load(pointer + 1)
                more_k, more_v = (), ()
                for p in tl.static_range(PARTS if LAP == TOKENS else lap + 1):
                    a = tl.exp2(_times(k[p], q, HEAD) - log)
                    if CAUSAL:
                        a = tl.where(t + p * SLOTS <= s, a, 0.0)
                    more_v = more_v + (_plus(dv[p], a, g, HEAD),)
                    more_k = more_k + (_plus(dk[p], a * (_times(v[p], g, HEAD) - own), q, HEAD),)
                dk = more_k + dk[PARTS if LAP == TOKENS else lap + 1 :]
                dv = more_v + dv[PARTS if LAP == TOKENS else lap + 1 :]
        _store_parts(d_keys + shift, dk, t, SCALE, TOKENS, D, HEAD, PARTS)
        _store_parts(d_values + shift, dv, t, 1.0, TOKENS, D, HEAD, PARTS)
