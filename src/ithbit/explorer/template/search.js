"use strict";
// Looking for a wrong answer where it is most likely: plain strings with every index, then single
// changes from the least margins, then strings of two densities with a cut, and changes again.
const hunting = (() => {
  const STARTS = 16, DRAWN = 1500, ROUNDS = 3;
  const PATIENCE = 60_000; // inputs, beside the plain strings; about a minute at n = 64

  // Constant, one bit, cuts, periods, blocks; each followed by its complement, each once. The same
  // strings in the same order as tasks/structured.py.
  const plainStrings = (n) => {
    const kinds = [() => false];
    for (let i = 0; i < n; i++) kinds.push((at) => at === i);
    for (let cut = 1; cut < n; cut++) kinds.push((at) => at >= cut);
    for (let period = 2; period <= 8 && period < n; period++)
      for (let phase = 0; phase < period; phase++) kinds.push((at) => at % period === phase);
    for (let block = 2; block < Math.floor(n / 2); block++) kinds.push((at) => Math.floor(at / block) % 2 === 1);
    const found = new Map();
    for (const kind of kinds)
      for (const flip of [0, 1]) {
        const bits = Array.from({ length: n }, (_, at) => Number(kind(at)) ^ flip);
        if (!found.has(bits.join(""))) found.set(bits.join(""), bits);
      }
    return [...found.values()];
  };

  const densities = (n, random) => {
    const chance = () => Math.min(1, Math.max(0, 1.4 * random() - 0.2));
    const [before, after, cut] = [chance(), chance(), Math.floor(random() * (n + 1))];
    return Array.from({ length: n }, (_, at) => Number(random() < (at < cut ? before : after)));
  };

  // Yields {tried, stage, least} after every input; returns {tried, least, found}, found null or a case.
  function* hunt(model, margin, n, random = Math.random) {
    let tried = 0, least = Infinity, stage = "plain strings", starts = [];
    const ask = (bits, index) => {
      const one = { bits, index, margin: margin(model, bits, index) };
      tried++;
      least = Math.min(least, one.margin);
      return one;
    };
    const remember = (one) => {
      if (starts.length === STARTS && one.margin >= starts[STARTS - 1].margin) return;
      starts.push(one);
      starts.sort((a, b) => a.margin - b.margin).splice(STARTS);
    };
    const wrong = (one) => !(one.margin > 0);

    for (const bits of plainStrings(n))
      for (let index = 1; index <= n; index++) {
        const one = ask(bits, index);
        if (wrong(one)) return { tried, least, found: one };
        remember(one);
        yield { tried, stage, least };
      }
    const end = tried + PATIENCE;
    for (let round = 0; ; round++) {
      stage = "single changes from the least margins";
      for (let here of starts) {
        for (let better = true; better && tried < end; ) {
          better = false;
          const { bits: old, index } = here;
          for (let change = 0; change < 2 * n - 1; change++) {
            const bits = old.slice();
            if (change < n) bits[change] ^= 1;
            const one = ask(bits, change < n ? index : ((index + change - n) % n) + 1);
            if (wrong(one)) return { tried, least, found: one };
            if (one.margin < here.margin) [here, better] = [one, true];
            yield { tried, stage, least };
          }
        }
      }
      if (round === ROUNDS || tried >= end) return { tried, least, found: null };
      stage = "strings of two densities";
      starts = [];
      for (let i = 0; i < DRAWN; i++) {
        const one = ask(densities(n, random), 1 + Math.floor(random() * n));
        if (wrong(one)) return { tried, least, found: one };
        remember(one);
        yield { tried, stage, least };
      }
    }
  }
  return { plainStrings, hunt };
})();
