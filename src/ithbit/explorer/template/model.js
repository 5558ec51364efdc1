"use strict";
// The trained blocks in plain JavaScript, in double precision: the twin of models/ for the page.
// Arrays are token by token: Float64Array of T rows of `width` numbers. A `keep` function, if given,
// gets every activation on the way; without one the last block is computed at the last token alone.
const ithbit = (() => {
  // ---- functions of one number
  // erf by Taylor's formula around the nearest point of a grid, whose values come from the series
  // erf(x) = 2/sqrt(pi) exp(-x^2) sum of 2^k x^(2k+1) / (2k+1)!!, all of one sign.
  const STEP = 1 / 64, END = 6;
  const GRID = Float64Array.from({ length: END / STEP + 1 }, (_, at) => {
    const x = at * STEP;
    let term = x, sum = x;
    for (let k = 1; term > 1e-18 * sum; k++) sum += term *= (2 * x * x) / (2 * k + 1);
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
  });
  const SLOPE = Float64Array.from(GRID, (_, at) => (2 / Math.sqrt(Math.PI)) * Math.exp(-((at * STEP) ** 2)));

  const erf = (x) => {
    const size = Math.abs(x);
    if (!(size < END)) return Math.sign(x);
    const at = Math.round(size / STEP), a = at * STEP, h = size - a;
    // Derivatives of exp(-x^2) over themselves: Hermite's polynomials at a.
    const h1 = 2 * a, h2 = h1 * h1 - 2, h3 = h1 * h2 - 4 * h1, h4 = h1 * h3 - 6 * h2;
    const series = 1 + h * (-h1 / 2 + h * (h2 / 6 + h * (-h3 / 24 + h * (h4 / 120))));
    return Math.sign(x) * (GRID[at] + SLOPE[at] * h * series);
  };
  const gelu = (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2));
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const silu = (x) => x * sigmoid(x);
  const softplus = (x) => (x > 30 ? x : Math.log1p(Math.exp(x)));
  const feature = (x) => (x > 0 ? x + 1 : Math.exp(x)); // ELU + 1

  // ---- functions of rows
  const each = (x, f) => {
    for (let i = 0; i < x.length; i++) x[i] = f(x[i]);
    return x;
  };
  const add = (x, y) => {
    for (let i = 0; i < x.length; i++) x[i] += y[i];
    return x;
  };
  // x[a] w[b] + x[a + 1] w[b + 1] + …; four sums at once, for a processor adds faster than in turn.
  const dot = (x, a, w, b, size) => {
    let s0 = 0, s1 = 0, s2 = 0, s3 = 0, i = 0;
    for (; i < size - 3; i += 4) {
      s0 += x[a + i] * w[b + i];
      s1 += x[a + i + 1] * w[b + i + 1];
      s2 += x[a + i + 2] * w[b + i + 2];
      s3 += x[a + i + 3] * w[b + i + 3];
    }
    for (; i < size; i++) s0 += x[a + i] * w[b + i];
    return s0 + s1 + (s2 + s3);
  };
  // Rows of x times the rows [first, last) of a matrix, plus a bias.
  const linear = (x, inputs, weight, bias = null, first = 0, last = weight.length / inputs) => {
    const rows = x.length / inputs, outputs = last - first, out = new Float64Array(rows * outputs);
    for (let t = 0; t < rows; t++)
      for (let o = 0; o < outputs; o++)
        out[t * outputs + o] = dot(x, t * inputs, weight, (first + o) * inputs, inputs) + (bias ? bias[first + o] : 0);
    return out;
  };
  const layerNorm = (x, d, weight, bias, eps) => {
    const out = new Float64Array(x.length);
    for (let a = 0; a < x.length; a += d) {
      let mean = 0, square = 0;
      for (let i = 0; i < d; i++) mean += x[a + i];
      mean /= d;
      for (let i = 0; i < d; i++) square += (x[a + i] - mean) ** 2;
      const scale = 1 / Math.sqrt(square / d + eps);
      for (let i = 0; i < d; i++) out[a + i] = (x[a + i] - mean) * scale * weight[i] + bias[i];
    }
    return out;
  };
  const rmsNorm = (x, d, weight, eps) => {
    const out = new Float64Array(x.length);
    for (let a = 0; a < x.length; a += d) {
      let square = 0;
      for (let i = 0; i < d; i++) square += x[a + i] ** 2;
      const scale = 1 / Math.sqrt(square / d + eps);
      for (let i = 0; i < d; i++) out[a + i] = x[a + i] * scale * weight[i];
    }
    return out;
  };
  // RoFormer's rotation of neighbouring pairs in each head, in place; row 0 stands at place `from`.
  const rotate = (x, d, size, from) => {
    for (let t = 0; t * d < x.length; t++)
      for (let c = 0; c < d; c += 2) {
        const angle = (from + t) * 10000 ** (-(c % size) / size), a = t * d + c;
        const [even, odd, sine, cosine] = [x[a], x[a + 1], Math.sin(angle), Math.cos(angle)];
        x[a] = even * cosine - odd * sine;
        x[a + 1] = odd * cosine + even * sine;
      }
  };

  // ---- blocks: (weights by name, spec, x, first token whose output is wanted, keep) -> rows
  // Values averaged by weights of tokens: softmax of q·k, or q·k itself over its sum.
  const attend = (spec, q, k, v, from, keep) => {
    const { d, heads, causal } = spec, T = k.length / d, size = d / heads;
    const softmax = spec.kind === "softmax", out = new Float64Array(q.length), row = new Float64Array(T);
    const scale = softmax ? size ** -0.5 : 1;
    for (let head = 0; head < heads; head++) {
      const c = head * size, map = keep && new Float64Array((T - from) * T);
      for (let t = from; t < T; t++) {
        const a = (t - from) * d + c, seen = causal ? t + 1 : T;
        let most = -Infinity, total = softmax ? 0 : spec.sum_eps;
        for (let s = 0; s < seen; s++) {
          row[s] = dot(q, a, k, s * d + c, size) * scale;
          if (row[s] > most) most = row[s];
        }
        for (let s = 0; s < seen; s++) total += softmax ? (row[s] = Math.exp(row[s] - most)) : row[s];
        for (let s = 0; s < seen; s++) {
          const weight = row[s] / total;
          for (let i = 0; i < size; i++) out[a + i] += weight * v[s * d + c + i];
          if (map) map[(t - from) * T + s] = weight;
        }
      }
      keep?.map(head, map);
    }
    return out;
  };

  const feedForward = (w, spec, x, keep) => {
    const hidden = each(linear(x, spec.d, w["up.weight"], w["up.bias"]), gelu);
    keep?.rows("feed-forward units", hidden, spec.ff);
    return linear(hidden, spec.ff, w["down.weight"], w["down.bias"]);
  };

  const softmaxBlock = (w, spec, x, from, keep) => {
    const { d, heads } = spec, own = x.subarray(from * d), weight = w["qkv.weight"], bias = w["qkv.bias"];
    const q = linear(own, d, weight, bias, 0, d);
    const [k, v] = [1, 2].map((part) => linear(x, d, weight, bias, part * d, (part + 1) * d));
    if (spec.positions === "rotary") {
      rotate(q, d, d / heads, from);
      rotate(k, d, d / heads, 0);
    }
    const mixed = attend(spec, q, k, v, from, keep);
    for (const [name, rows] of Object.entries({ queries: q, keys: k, values: v, "taken up by attention": mixed }))
      keep?.rows(name, rows, d);
    let y = add(linear(mixed, d, w["out.weight"], w["out.bias"]), own);
    y = layerNorm(y, d, w["norm1.weight"], w["norm1.bias"], spec.eps);
    keep?.rows("after attention", y, d);
    return layerNorm(add(feedForward(w, spec, y, keep), y), d, w["norm2.weight"], w["norm2.bias"], spec.eps);
  };

  const linearBlock = (w, spec, x, from, keep) => {
    const { d } = spec, weight = w["qkv.weight"];
    const normal = layerNorm(x, d, w["norm1.weight"], w["norm1.bias"], spec.eps);
    const q = each(linear(normal.subarray(from * d), d, weight, null, 0, d), feature);
    const k = each(linear(normal, d, weight, null, d, 2 * d), feature);
    const v = linear(normal, d, weight, null, 2 * d, 3 * d);
    const mixed = attend(spec, q, k, v, from, keep);
    for (const [name, rows] of Object.entries({ queries: q, keys: k, values: v, "taken up by attention": mixed }))
      keep?.rows(name, rows, d);
    const y = add(linear(mixed, d, w["out.weight"]), x.subarray(from * d));
    keep?.rows("after attention", y, d);
    return add(feedForward(w, spec, layerNorm(y, d, w["norm2.weight"], w["norm2.bias"], spec.eps), keep), y);
  };

  const gruBlock = (w, spec, x, from, keep) => {
    const { d } = spec, T = x.length / d, states = new Float64Array(T * d);
    const [reset, update, candidate] = [0, 1, 2].map(() => new Float64Array(T * d));
    const gates = linear(x, d, w["ih.weight"], w["ih.bias"]);
    let h = new Float64Array(d);
    for (let t = 0; t < T; t++) {
      const hidden = linear(h, d, w["hh.weight"], w["hh.bias"]), a = 3 * t * d;
      for (let i = 0; i < d; i++) {
        const r = sigmoid(gates[a + i] + hidden[i]), z = sigmoid(gates[a + d + i] + hidden[d + i]);
        const n = Math.tanh(gates[a + 2 * d + i] + r * hidden[2 * d + i]);
        [reset[t * d + i], update[t * d + i], candidate[t * d + i]] = [r, z, n];
        states[t * d + i] = n + z * (h[i] - n);
      }
      h = states.subarray(t * d, (t + 1) * d);
    }
    keep?.rows("update gate", update, d);
    keep?.rows("reset gate", reset, d);
    keep?.rows("candidate", candidate, d);
    return states.subarray(from * d);
  };

  const mambaBlock = (w, spec, x, from, keep) => {
    const { d, heads, state: N, taps } = spec, T = x.length / d, size = d / heads, width = d + 2 * N;
    const normal = rmsNorm(x, d, w["norm.weight"], spec.eps), weight = w["in.weight"];
    const gate = linear(normal.subarray(from * d), d, weight, null, 0, d);
    const raw = linear(normal, d, weight, null, d, d + width), mixed = new Float64Array(T * width);
    for (let t = 0; t < T; t++)
      for (let c = 0; c < width; c++) {
        let sum = w["conv.bias"][c];
        for (let tap = 0; tap < taps; tap++) {
          const s = t + tap - taps + 1;
          if (s >= 0) sum += w["conv.weight"][tap * width + c] * raw[s * width + c];
        }
        mixed[t * width + c] = silu(sum);
      }
    const dt = linear(normal, d, weight, null, d + width, d + width + heads);
    for (let a = 0; a < dt.length; a++) dt[a] = softplus(dt[a] + w["dt_bias"][a % heads]);
    const rate = each(w["a_log"].slice(), (a) => -Math.exp(a));
    const h = new Float64Array(d * N), states = keep && new Float64Array(T * d * N);
    const y = new Float64Array((T - from) * d);
    for (let t = 0; t < T; t++) {
      const a = t * width;
      for (let c = 0; c < d; c++) {
        const head = Math.floor(c / size), step = dt[t * heads + head];
        const decay = Math.exp(step * rate[head]), input = step * mixed[a + c];
        let sum = 0;
        for (let j = 0; j < N; j++) {
          const at = c * N + j;
          h[at] = decay * h[at] + input * mixed[a + d + j];
          sum += h[at] * mixed[a + d + N + j];
        }
        if (t >= from) y[(t - from) * d + c] = sum + w["skip"][head] * mixed[a + c];
      }
      states?.set(h, t * d * N);
    }
    if (keep) {
      keep.rows("state", states, d * N);
      keep.rows("step sizes", dt, heads);
      keep.rows("inputs, B and C", mixed, width);
      for (let head = 0; head < heads; head++) keep.map(head, dual(spec, mixed, dt, rate[head], head, T));
    }
    for (let a = 0; a < y.length; a++) y[a] *= silu(gate[a]);
    const out = linear(rmsNorm(y, d, w["gate_norm.weight"], spec.eps), d, w["out.weight"]);
    return add(out, x.subarray(from * d));
  };
  // How much of token s's input the output at t takes up: the recurrence as one matrix of tokens.
  const dual = ({ d, heads, state: N }, mixed, dt, rate, head, T) => {
    const map = new Float64Array(T * T), width = d + 2 * N;
    for (let t = 0; t < T; t++) {
      let past = 0; // the sum of dt · rate over s < j <= t
      for (let s = t; s >= 0; s--) {
        const score = dot(mixed, t * width + d + N, mixed, s * width + d, N);
        map[t * T + s] = Math.exp(past) * score * dt[s * heads + head];
        past += dt[s * heads + head] * rate;
      }
    }
    return map;
  };
  const BLOCKS = { softmax: softmaxBlock, linear: linearBlock, gru: gruBlock, mamba2: mambaBlock };

  // ---- the whole model
  const length = ({ n, task }) => n + (task === "rhi" ? 1 : 2);
  // What is added to each token for its position.
  const positions = (spec, weights) => {
    const { d } = spec, T = length(spec), map = weights["positions.polynomial"];
    if (spec.positions === "learned") return weights["positions.learned"];
    return Float64Array.from({ length: T * d }, (_, a) => {
      const t = Math.floor(a / d), c = a % d, p = t / (T - 1);
      if (spec.positions === "polynomial") return map[2 * c] * p + map[2 * c + 1] * p * p;
      if (spec.positions !== "sinusoidal") return 0;
      const angle = t * 10000 ** (-(c - (c % 2)) / d);
      return c % 2 ? Math.cos(angle) : Math.sin(angle);
    });
  };
  const tokens = (model, bits, index) => {
    const { spec, weights } = model, { d, n, task } = spec, T = length(spec);
    const features = new Float64Array(T * 6), first = task === "rhi" ? 0 : 1, query = task === "rhi" ? n : 0;
    for (let j = 0; j < n; j++) features.set([1, 0, 0, bits[j]], (first + j) * 6);
    const fraction = (index - 1) / n;
    features.set([0, 1, 0, 0, fraction, fraction * fraction], query * 6);
    if (task === "lhi") features[(T - 1) * 6 + 2] = 1;
    const x = linear(features, 6, weights.embed);
    add(x, model.places);
    if (spec.kind !== "softmax") return x;
    for (let a = 0; a < x.length; a++) x[a] += weights["enter.type"][a % d];
    return layerNorm(x, d, weights["enter.norm.weight"], weights["enter.norm.bias"], spec.eps);
  };

  const run = (model, bits, index, trace) => {
    const { spec, weights } = model, { d } = spec;
    let x = tokens(model, bits, index);
    const T = x.length / d;
    trace?.stream.push(x);
    for (let layer = 0; layer < spec.layers; layer++) {
      const keep = trace && {
        map: (head, data) => trace.maps.push({ layer, head, data }),
        rows: (name, data, width) => trace.rows.push({ layer, name, data, width }),
      };
      const from = !trace && layer === spec.layers - 1 ? T - 1 : 0;
      x = BLOCKS[spec.kind](model.blocks[layer], spec, x, from, keep);
      trace?.stream.push(x);
    }
    let last = x.subarray(x.length - d);
    if (spec.kind === "mamba2") last = rmsNorm(last, d, weights["leave.norm.weight"], spec.eps);
    return linear(last, d, weights["head.weight"], weights["head.bias"])[0];
  };

  // The logit of answer 1; NaN, which is no answer, for weights that single precision may not bear.
  const answered = (model, value) => (model.finite ? value : NaN);
  const logit = (model, bits, index) => answered(model, run(model, bits, index, null));
  // The same, with everything on the way: the stream before and after each layer, maps, other rows.
  const explain = (model, bits, index) => {
    const trace = { stream: [], maps: [], rows: [] };
    trace.logit = answered(model, run(model, bits, index, trace));
    return trace;
  };
  // The logit in the direction of the right answer: positive where the model is right, -Infinity where
  // the logit is not finite. The rule of tasks/margins.py.
  const marginOf = (value, bit) => (!Number.isFinite(value) ? -Infinity : bit ? value : -value);
  const margin = (model, bits, index) => marginOf(logit(model, bits, index), bits[index - 1]);

  // A model from the page's data: weights in base64, one after another in the order of their names.
  const read = ({ spec, shapes, finite, dtype, data }) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const numbers = new { f4: Float32Array, f8: Float64Array }[dtype](bytes.buffer);
    const weights = {}, blocks = Array.from({ length: spec.layers }, () => ({}));
    let at = 0;
    for (const [name, shape] of shapes) {
      const size = shape.reduce((product, side) => product * side, 1);
      weights[name] = Float64Array.from(numbers.subarray(at, (at += size)));
      const [, layer, rest] = /^blocks\.(\d+)\.(.*)$/.exec(name) || [];
      if (layer !== undefined) blocks[layer][rest] = weights[name];
    }
    const places = positions(spec, weights);
    return { spec, shapes, weights, blocks, places, finite };
  };

  return { erf, length, logit, explain, marginOf, margin, read };
})();
