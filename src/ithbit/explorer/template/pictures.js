"use strict";
// The input of the page, its words for tokens, and the pictures of what a model does with it.
const pictures = (() => {
  const { models } = JSON.parse(document.getElementById("data").textContent);
  for (const model of models) model.net = ithbit.read(model);
  const { n, task } = models[0].spec, T = ithbit.length(models[0].spec), first = task === "rhi" ? 0 : 1;
  const state = { bits: [], index: 1, watch: T - 1, cursor: 0 };

  const node = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const shown = (x, digits) => (Math.abs(x) < 1e-9 ? "0" : x.toFixed(digits).replace("-", "−"));
  const plain = (x, digits = 3) => (Number.isFinite(x) ? shown(x, digits) : "not finite");
  const percent = (x) => (Number.isFinite(x) ? `${plain(100 * x, x < 0.0995 ? 1 : 0)} %` : plain(x));
  const kindOf = (t) => (t === (task === "rhi" ? n : 0) ? "number" : t - first >= n ? "end" : "bit");
  const called = (t) => {
    if (kindOf(t) === "number") return `the number ${state.index}`;
    return kindOf(t) === "end" ? "the end mark" : `bit ${t - first + 1} (${state.bits[t - first]})`;
  };
  const asked = () => first + state.index - 1; // the token of the bit asked for

  // ---- a picture with its caption: `read(x, y)` says in words what a square is, `pick` takes a click
  const tip = document.getElementById("tip");
  const picture = (kind, height = null, pick = null) => {
    const canvas = node("canvas", { role: "img" }), caption = node("figcaption");
    const frame = node("div", { class: `frame ${kind}` }, canvas);
    if (height) frame.style.setProperty("--height", `${height}px`);
    const made = { figure: node("figure", {}, caption, frame), canvas, caption, read: null, text: null };
    const along = (at, size, squares) => Math.min(squares - 1, Math.max(0, Math.floor((at / size) * squares)));
    const square = (event) => {
      const { left, top, width, height: tall } = canvas.getBoundingClientRect();
      return [along(event.clientX - left, width, canvas.width), along(event.clientY - top, tall, canvas.height)];
    };
    const show = (event) => {
      tip.textContent = made.read(...square(event));
      tip.hidden = false;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${event.clientY > 60 ? event.clientY - 38 : event.clientY + 18}px`;
    };
    for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, show);
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    if (pick) canvas.addEventListener("click", (event) => pick(...square(event)));
    return made;
  };
  const say = (made, strong, rest) => {
    if (made.text === strong + rest) return; // the same text would be laid out again
    made.text = strong + rest;
    made.caption.replaceChildren(node("b", {}, strong), ` ${rest}`);
    made.canvas.setAttribute("aria-label", `${strong} ${rest}`);
  };

  // ---- what is drawn
  const tokens = (made) => {
    const values = Array.from({ length: T }, (_, t) => (kindOf(t) === "bit" ? state.bits[t - first] : null));
    drawing.strip(made.canvas, values);
    say(made, "The tokens:", `${task === "rhi" ? `${n} bits, the number` : `the number, ${n} bits, the end mark`}. 1 is strong, 0 faint.`);
    made.read = called;
  };
  // Some numbers for each token.
  const rows = (made, title, data, width, rest = "") => {
    const scale = drawing.signed(made.canvas, T, width, data, width, 1);
    say(made, title, `${rest}${rest ? " " : ""}Largest magnitude ${plain(scale, 2)}.`);
    made.read = (x, y) => `${called(x)}, number ${y + 1}: ${plain(data[x * width + y])}`;
  };
  const gate = (made, { data, width }) => {
    drawing.weights(made.canvas, T, width, data, width, 1);
    say(made, "How much of the old state is kept (update gate).", "Strong keeps, faint overwrites.");
    made.read = (x, y) => `${called(x)}, number ${y + 1}: keeps ${percent(data[x * width + y])}`;
  };
  const largest = (row) => row.reduce((best, value, t) => (Math.abs(value) > Math.abs(row[best]) ? t : best), 0);
  // What one head gives to each token, for the token that is watched. Shares of attention are `soft`;
  // those of a state space may be any number.
  const head = (made, map, number, soft) => {
    const row = map.subarray(state.watch * T, (state.watch + 1) * T), best = largest(row);
    const shown = soft ? percent : (x) => plain(x, 2), hit = best === asked();
    drawing.bars(made.canvas, row, Math.max(drawing.most(row), soft ? 3 / T : 0), asked());
    made.read = (x) => `${called(x)}: ${shown(row[x])}`;
    if (soft && row[best] < 2 / T) {
      say(made, `Head ${number + 1} spreads out evenly:`, `no token gets more than ${shown(row[best])}.`);
      return;
    }
    const does = soft ? `looks ${row[best] > 0.5 ? "mostly" : "most"} at` : "takes most from";
    const own = hit ? "" : `; the bit asked for gets ${shown(row[asked()])}`;
    say(made, `Head ${number + 1} ${does} ${called(best)}${hit ? ", the one asked for" : ""}:`, `${shown(row[best])}${own}.`);
  };
  const map = (made, data, number, soft) => {
    const does = soft ? "looks at" : "takes from";
    (soft ? drawing.weights : drawing.signed)(made.canvas, T, T, data, 1, T);
    say(made, `Head ${number + 1}, all tokens:`, `a row ${does} a column.`);
    made.read = (x, y) => `${called(y)} ${does} ${called(x)}: ${(soft ? percent : plain)(data[y * T + x])}`;
  };
  const change = (made, { data, width }) => {
    const steps = Float64Array.from({ length: T }, (_, t) => {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += (data[t * width + i] - (t ? data[(t - 1) * width + i] : 0)) ** 2;
      return Math.sqrt(sum);
    });
    const best = largest(steps), most = `Most at ${called(best)}: ${plain(steps[best], 2)}.`;
    drawing.bars(made.canvas, steps, drawing.most(steps), asked());
    say(made, "How much the memory changes at each token.", `${most} At the bit asked for: ${plain(steps[asked()], 2)}.`);
    made.read = (x) => `${called(x)}: changes by ${plain(steps[x])}`;
  };
  // The same bits asked for every number, as far as they have been tried.
  const places = (made, margins, done) => {
    drawing.verdicts(made.canvas, margins, n);
    made.read = (x) => {
      if (margins[x] === undefined) return `bit ${x + 1}`;
      return `asked for bit ${x + 1}: ${margins[x] > 0 ? "right" : "wrong"}, margin ${plain(margins[x])}`;
    };
    if (!done) return;
    const wrong = margins.flatMap((margin, at) => (margin > 0 ? [] : [at + 1]));
    const where = wrong.length ? `; wrong at ${wrong.slice(0, 8).join(", ")}${wrong.length > 8 ? ", …" : ""}` : "";
    say(made, "The same bits, with every number asked for:", `${n - wrong.length} of ${n} right${where}.`);
  };
  // Strings with one bit unlike all others: a column for each place of it, a row for each number asked.
  const oddOne = (made, margins, odd, done) => {
    drawing.verdicts(made.canvas, margins, n);
    const tried = margins.filter(() => true), wrong = tried.filter((margin) => !(margin > 0)).length;
    const count = `${wrong.toLocaleString("en")} of ${tried.length.toLocaleString("en")} wrong`;
    say(made, odd ? "A single 1 among zeros:" : "A single 0 among ones:", count + (done ? "." : " so far."));
    made.read = (x, y) => {
      const margin = margins[y * n + x], what = `a single ${odd} at ${x + 1}, asked for bit ${y + 1}`;
      return margin === undefined ? what : `${what}: ${margin > 0 ? "right" : "wrong"}, margin ${plain(margin)}`;
    };
  };
  const weight = (made, name, shape, data) => {
    const width = shape[shape.length - 1], scale = drawing.signed(made.canvas, width, data.length / width, data, 1, width);
    made.figure.style.maxWidth = `${Math.min(100, 3 + 1.5 * width)}%`;
    say(made, name, `${shape.join(" × ")}, largest magnitude ${plain(scale, 2)}.`);
    made.read = (x, y) => `row ${y + 1}, column ${x + 1}: ${plain(data[y * width + x], 4)}`;
  };
  return {
    ...{ models, n, T, state, node, plain, called, asked, picture },
    draw: { tokens, rows, gate, head, map, change, places, oddOne, weight },
  };
})();
