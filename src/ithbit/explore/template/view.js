"use strict";
// The input, and what each model does with it. Text from records only ever becomes text nodes.
(() => {
  const { models } = JSON.parse(document.getElementById("data").textContent);
  for (const model of models) Object.assign(model, { net: ithbit.read(model) });
  const { n, task } = models[0].spec, T = ithbit.length(models[0].spec), first = task === "rhi" ? 0 : 1;
  const letters = "ABC";
  const state = { bits: [], index: 1, watch: T - 1, cursor: 0 };

  const byId = (id) => document.getElementById(id);
  const node = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const plain = (x, digits = 3) => (Math.abs(x) < 1e-9 ? "0" : x.toFixed(digits).replace("-", "−"));
  const counted = (x) => x.toLocaleString("en");
  const percent = (x) => `${plain(100 * x, x < 0.0995 ? 1 : 0)} %`;
  const kindOf = (t) => (t === (task === "rhi" ? n : 0) ? "number" : t - first >= n ? "end" : "bit");
  const called = (t) => {
    if (kindOf(t) === "number") return `the number ${state.index}`;
    return kindOf(t) === "end" ? "the end mark" : `bit ${t - first + 1} (${state.bits[t - first]})`;
  };
  const asked = () => first + state.index - 1;

  // ---- the input
  const cells = [];
  const buildBits = () => {
    for (let at = 0; at < n; at++) {
      const bit = node("button", { type: "button", class: "bit", "data-at": at, tabindex: at ? -1 : 0 });
      const place = node("button", { type: "button", class: "place", tabindex: -1, "aria-label": `Ask for bit ${at + 1}` }, String(at + 1));
      bit.addEventListener("click", () => flip(at));
      place.addEventListener("click", () => change({ index: at + 1 }));
      cells.push({ cell: node("div", { class: "cell" }, bit, place), bit });
      byId("bits").append(cells[at].cell);
    }
    const fit = () => byId("bits").style.setProperty("--columns", Math.min(n, innerWidth < 600 ? 8 : innerWidth < 1100 ? 16 : 32));
    addEventListener("resize", fit);
    fit();
  };
  const columns = () => Number(byId("bits").style.getPropertyValue("--columns"));
  const moveTo = (at) => {
    cells[state.cursor].bit.tabIndex = -1;
    state.cursor = Math.min(n - 1, Math.max(0, at));
    cells[state.cursor].bit.tabIndex = 0;
    cells[state.cursor].bit.focus();
  };
  const flip = (at) => {
    moveTo(at);
    change({ bits: state.bits.map((bit, k) => (k === at ? 1 - bit : bit)) });
  };
  byId("bits").addEventListener("keydown", (event) => {
    const at = Number(event.target.dataset.at), steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(), ArrowDown: columns(), Home: -n, End: n };
    if (event.key in steps) moveTo(at + steps[event.key]);
    else if (event.key === "Enter") change({ index: at + 1 });
    else return;
    event.preventDefault(); // Enter would click, and arrows scroll
  });
  const presets = {
    random: () => ({ bits: state.bits.map(() => Number(Math.random() < 0.5)) }),
    zeros: () => ({ bits: state.bits.map(() => 0) }),
    ones: () => ({ bits: state.bits.map(() => 1) }),
    single: () => ({ bits: state.bits.map((_, at) => Number(at === state.index - 1)) }),
    gap: () => ({ bits: state.bits.map((_, at) => Number(at !== state.index - 1)) }),
    cut: () => ({ bits: state.bits.map((_, at) => Number(at >= state.index - 1)) }),
    invert: () => ({ bits: state.bits.map((bit) => 1 - bit) }),
    place: () => ({ index: 1 + Math.floor(Math.random() * n) }),
  };
  for (const button of document.querySelectorAll("[data-preset]"))
    button.addEventListener("click", () => change(presets[button.dataset.preset]()));
  for (const id of ["index", "slide"])
    byId(id).addEventListener("input", (event) => {
      const index = Number(event.target.value);
      if (Number.isInteger(index) && index >= 1 && index <= n) change({ index });
    });
  byId("watch").max = T - 1;
  byId("watch").addEventListener("input", (event) => change({ watch: Number(event.target.value) }));

  const drawInput = () => {
    cells.forEach((each, at) => {
      const value = state.bits[at], { cell, bit } = each;
      cell.classList.toggle("asked", at === state.index - 1);
      if (each.value === value) return;
      each.value = value;
      bit.textContent = value;
      bit.classList.toggle("one", value === 1);
      bit.setAttribute("aria-label", `Bit ${at + 1} is ${value}; flip it`);
    });
    for (const id of ["index", "slide"]) if (document.activeElement !== byId(id) || id === "slide") byId(id).value = state.index;
    byId("truth").replaceChildren("? It is ", node("b", {}, String(state.bits[state.index - 1])), ".");
    byId("watch").value = state.watch;
    byId("watched").textContent = called(state.watch) + (state.watch === T - 1 ? ", where the answer is read" : "") + ".";
    const root = document.documentElement.style, share = (at, of) => `${(100 * at) / of}%`;
    root.setProperty("--token", share(1, T));
    root.setProperty("--asked", share(asked(), T));
    root.setProperty("--watch", share(state.watch, T));
    root.setProperty("--place", share(state.index - 1, n));
    root.setProperty("--one-place", share(1, n));
  };

  // ---- pictures
  const tip = byId("tip");
  // A picture with its caption. `read(x, y)` says in words what a square is.
  const picture = (kind, height = null) => {
    const canvas = node("canvas", { role: "img" }), caption = node("figcaption"), frame = node("div", { class: `frame ${kind}` }, canvas);
    if (height) frame.style.setProperty("--height", `${height}px`);
    const made = { figure: node("figure", {}, caption, frame), canvas, caption, read: null };
    const square = (event) => {
      const box = canvas.getBoundingClientRect();
      const along = (at, size, squares) => Math.min(squares - 1, Math.max(0, Math.floor((at / size) * squares)));
      return [along(event.clientX - box.left, box.width, canvas.width), along(event.clientY - box.top, box.height, canvas.height)];
    };
    const show = (event) => {
      tip.textContent = made.read(...square(event));
      tip.hidden = false;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${event.clientY > 60 ? event.clientY - 38 : event.clientY + 18}px`;
    };
    for (const name of ["pointermove", "pointerdown"]) canvas.addEventListener(name, show);
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener("click", (event) => {
      const [x, y] = square(event);
      if (kind === "map") change({ watch: y });
      else if (kind === "places") change({ index: x + 1 });
      else if (kind !== "bare") change({ watch: x });
    });
    return made;
  };
  const said = (made, strong, rest) => {
    if (made.text === strong + rest) return; // the same text would be laid out again
    made.text = strong + rest;
    made.caption.replaceChildren(node("b", {}, strong), ` ${rest}`);
    made.canvas.setAttribute("aria-label", `${strong} ${rest}`);
  };
  const drawRows = (made, title, data, width, rest = "") => {
    const scale = drawing.signed(made.canvas, T, width, data, width, 1);
    said(made, title, `${rest}${rest ? " " : ""}Largest size ${plain(scale, 2)}.`);
    made.read = (x, y) => `${called(x)}, number ${y + 1}: ${plain(data[x * width + y])}`;
  };
  const drawTokens = (made) => {
    drawing.strip(made.canvas, Array.from({ length: T }, (_, t) => (kindOf(t) === "bit" ? state.bits[t - first] : null)));
    made.read = (x) => called(x);
    said(made, "The tokens,", task === "rhi" ? `${n} bits and the number: 1 dark, 0 light.` : `the number, ${n} bits, the end mark: 1 dark, 0 light.`);
  };
  const rowOf = (map) => map.subarray(state.watch * T, (state.watch + 1) * T);
  const top = (row) => row.reduce((best, value, t) => (Math.abs(value) > Math.abs(row[best]) ? t : best), 0);
  const drawHead = (made, map, head, soft) => {
    const row = rowOf(map), best = top(row), shown = soft ? percent : (x) => plain(x, 2);
    drawing.bars(made.canvas, row, Math.max(drawing.most(row), soft ? 3 / T : 0), asked());
    const own = best === asked() ? "" : `; the bit asked for gets ${shown(row[asked()])}`;
    if (soft && row[best] < 2 / T) said(made, `Head ${head + 1} spreads out evenly:`, `no token gets more than ${shown(row[best])}.`);
    else said(made, `Head ${head + 1} looks ${soft && row[best] > 0.5 ? "mostly" : "most"} at ${called(best)}${best === asked() ? ", the one asked for" : ""}:`, `${shown(row[best])}${own}.`);
    made.read = (x) => `${called(x)}: ${shown(row[x])}`;
  };
  const drawMap = (made, map, head, soft) => {
    if (soft) drawing.weights(made.canvas, T, T, map, 1, T);
    else drawing.signed(made.canvas, T, T, map, 1, T);
    said(made, `Head ${head + 1}, all tokens:`, "a row looks at a column.");
    made.read = (x, y) => `${called(y)} looks at ${called(x)}: ${soft ? percent(map[y * T + x]) : plain(map[y * T + x])}`;
  };
  const drawChange = (made, data, width) => {
    const steps = Float64Array.from({ length: T }, (_, t) => {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += (data[t * width + i] - (t ? data[(t - 1) * width + i] : 0)) ** 2;
      return Math.sqrt(sum);
    });
    const highest = drawing.most(steps), best = top(steps);
    drawing.bars(made.canvas, steps, highest, asked());
    said(made, "How much the memory changes at each token.", `Most at ${called(best)}: ${plain(steps[best], 2)}. At the bit asked for: ${plain(steps[asked()], 2)}.`);
    made.read = (x) => `${called(x)}: changes by ${plain(steps[x])}`;
  };

  // ---- one model: made once, drawn at every change
  const build = (model, at) => {
    const { spec, net } = model, soft = spec.kind !== "mamba2", attention = spec.kind === "softmax" || spec.kind === "linear";
    const says = node("p", { class: "says" }), gauge = node("i"), ends = node("div", { class: "ends" }), inside = node("details", { class: "inside" });
    const places = picture("places", 14), find = node("button", { type: "button", class: "find" }, "Look for a wrong answer"), result = node("p", { class: "hint result", "aria-live": "polite" });
    const tools = node("div", { class: "tools" }, find), { standing, case: recorded } = model, drawn = [];
    if (recorded) {
      const text = standing.tone === "bad" ? "Show its counterexample on record" : "Show its least margin on record";
      const button = node("button", { type: "button", class: "recorded" }, text);
      button.addEventListener("click", () => change(caseOf(recorded)));
      tools.append(button);
    }
    // Whatever is drawn inside: a picture under a parent, and what draws it from the trace.
    const put = (parent, made, draw) => {
      parent.append(made.figure);
      drawn.push((trace) => draw(made, trace));
    };
    const rows = (name, layer) => (trace) => trace.rows.find((each) => each.name === name && each.layer === layer);
    const add = (parent, layer) => {
      put(parent, picture("", 12), drawTokens);
      const maps = node("div", { class: "maps" }), mapOf = (trace, head) => trace.maps.find((each) => each.layer === layer && each.head === head).data;
      if (spec.kind !== "gru")
        for (let head = 0; head < spec.heads; head++) {
          put(parent, picture("", 34), (made, trace) => drawHead(made, mapOf(trace, head), head, soft));
          put(maps, picture("map"), (made, trace) => drawMap(made, mapOf(trace, head), head, soft));
        }
      if (!attention) {
        const memory = spec.kind === "gru" ? (trace) => ({ data: trace.stream[layer + 1], width: spec.d }) : rows("state", layer);
        put(parent, picture("", 34), (made, trace) => drawChange(made, memory(trace).data, memory(trace).width));
        if (spec.kind === "mamba2") put(parent, picture("", 128), (made, trace) => drawRows(made, "What the state holds along the sequence.", memory(trace).data, memory(trace).width));
        else put(parent, picture("", 84), (made, trace) => {
          const { data, width } = rows("update gate", layer)(trace);
          drawing.weights(made.canvas, T, width, data, width, 1);
          said(made, "How much of the old is kept (update gate).", "Dark keeps, light overwrites.");
          made.read = (x, y) => `${called(x)}, number ${y + 1}: keeps ${percent(data[x * width + y])}`;
        });
      }
      if (maps.children.length) parent.append(maps);
      const held = spec.kind === "gru" ? "What the memory holds after each token." : `What each token holds after layer ${layer + 1}.`;
      put(parent, picture("", 84), (made, trace) => drawRows(made, held, trace.stream[layer + 1], spec.d, `${spec.d} numbers a token.`));
    };
    inside.append(node("summary", {}, "Inside the model"), node("p", {}, model.how), node("h3", {}, "Before the first layer"));
    put(inside, picture("", 84), (made, trace) => drawRows(made, "What each token holds at first:", trace.stream[0], spec.d, "its bit or number, and its position."));
    for (let layer = 0; layer < spec.layers; layer++) {
      inside.append(node("h3", {}, `Layer ${layer + 1} of ${spec.layers}`));
      add(inside, layer);
    }
    // Everything else, made when it is opened.
    const rest = node("details", {}, node("summary", {}, "Every other activation")), weights = node("details", { class: "weights" }, node("summary", {}, "The weights"));
    let more = null;
    rest.addEventListener("toggle", () => draw());
    weights.addEventListener("toggle", () => weights.open && drawWeights(weights, net));
    inside.append(rest, weights);
    inside.addEventListener("toggle", () => draw());
    inside.open = innerWidth >= 900 || at === 0;

    const card = node("article", { class: "card", "data-model": at },
      node("h2", {}, node("span", { class: "letter" }, letters[at]), model.label), node("p", {}, model.title), node("p", { class: "note" }, model.origin), node("p", { class: "mono" }, model.name),
      says, node("div", { class: "gauge" }, gauge), ends, node("div", { class: "steady" }, places.figure), tools, result,
      node("div", { class: `verdict tone-${standing.tone}` }, node("b", {}, standing.verdict), node("p", {}, standing.meaning), ...(model.samples ? [node("p", { class: "hint" }, model.samples)] : []), node("details", {}, node("summary", {}, "What it rests on"), node("p", { class: "hint" }, standing.record))),
      inside);
    byId("models").append(card);
    const short = node("div", { class: "says" });
    byId("summary").append(short);
    find.addEventListener("click", () => look(model, at, find, result));

    const draw = () => {
      const trace = ithbit.explain(net, state.bits, state.index), truth = state.bits[state.index - 1];
      const answer = Number(trace.logit > 0), margin = truth ? trace.logit : -trace.logit, right = margin > 0;
      for (const each of [says, short]) each.className = `says ${right ? "right" : "wrong"}`;
      short.replaceChildren(node("span", { class: "letter" }, letters[at]), `${model.label}: answers `, node("b", {}, `${answer}, ${right ? "right" : "wrong"}`));
      says.replaceChildren("Answers ", node("b", {}, `${answer}, ${right ? "right" : "wrong"}`), right ? "." : `, bit ${state.index} is ${truth}.`, ` Logit ${plain(trace.logit)}, margin ${plain(margin)}.`);
      const scale = Math.max(16, Math.abs(margin)), size = (50 * Math.abs(margin)) / scale;
      Object.assign(gauge.style, { left: `${right ? 50 : 50 - size}%`, width: `${Math.max(0.5, size)}%`, background: `var(--${right ? "good" : "bad"})` });
      ends.replaceChildren(...["wrong, margin " + plain(-scale, 0), "0", "right, " + plain(scale, 0)].map((text) => node("span", {}, text)));
      if (!inside.open) return;
      for (const each of drawn) each(trace);
      if (!rest.open) return;
      more ||= trace.rows.filter((each) => each.name !== "state").map((each) => {
        const made = picture("", Math.min(160, 6 * each.width));
        rest.append(made.figure);
        return made;
      });
      trace.rows.filter((each) => each.name !== "state").forEach(({ layer, name, data, width }, k) => drawRows(more[k], `Layer ${layer + 1}, ${name}.`, data, width));
    };
    return { draw, net, places, letter: letters[at] };
  };
  const drawWeights = (parent, net) => {
    parent.replaceChildren(parent.firstElementChild);
    for (const [name, shape] of net.shapes) {
      const data = net.weights[name], width = shape[shape.length - 1], height = data.length / width, made = picture("bare", Math.max(8, Math.min(240, 5 * height)));
      made.figure.style.maxWidth = `${Math.min(100, 3 + 1.5 * width)}%`;
      const scale = drawing.signed(made.canvas, width, height, data, 1, width);
      said(made, name, `${shape.join(" × ")}, largest size ${plain(scale, 2)}.`);
      made.read = (x, y) => `row ${y + 1}, column ${x + 1}: ${plain(data[y * width + x], 4)}`;
      parent.append(made.figure);
    }
  };

  // ---- what takes longer than a click: in slices, until the input changes or it is stopped
  const SLICE = 8; // milliseconds
  const inSlices = (step, every, stopped) => {
    const go = () => {
      if (stopped()) return;
      const end = performance.now() + SLICE;
      let done = false;
      while (!done && performance.now() < end) done = step();
      every(done);
      if (!done) setTimeout(go);
    };
    setTimeout(go);
  };
  let version = 0;
  const tryPlaces = (view) => {
    const margins = new Array(n), mine = version;
    let index = 0;
    inSlices(
      () => {
        margins[index] = ithbit.margin(view.net, state.bits, index + 1);
        return ++index === n;
      },
      (done) => {
        drawing.verdicts(view.places.canvas, margins);
        view.places.read = (x) => (margins[x] === undefined ? "" : `asked for bit ${x + 1}: ${margins[x] > 0 ? "right" : "wrong"}, margin ${plain(margins[x])}`);
        const wrong = margins.flatMap((margin, at) => (margin > 0 ? [] : [at + 1])), right = index - wrong.length;
        if (done) said(view.places, "The same bits, asked for every number:", `${right} of ${n} right${wrong.length ? `; wrong at ${wrong.slice(0, 8).join(", ")}${wrong.length > 8 ? ", …" : ""}` : ""}.`);
      },
      () => mine !== version,
    );
  };
  const hunts = new Map();
  const look = (model, at, button, result) => {
    if (hunts.delete(model)) {
      button.textContent = "Look for a wrong answer";
      result.textContent += " Stopped.";
      return;
    }
    const going = hunting.hunt(model.net, ithbit.margin, n);
    hunts.set(model, going);
    button.textContent = "Stop";
    let now;
    inSlices(
      () => {
        now = going.next();
        return now.done;
      },
      (done) => {
        const { tried, stage, least, found } = now.value;
        if (!done) {
          result.textContent = `Tried ${counted(tried)}, now ${stage}; least margin ${plain(least)}.`;
          return;
        }
        hunts.delete(model);
        button.textContent = "Look for a wrong answer";
        result.textContent = found
          ? `Found at try ${counted(tried)}: asked for bit ${found.index}, it answers ${1 - found.bits[found.index - 1]}. The input above is that one.`
          : `Nothing found in ${counted(tried)} tries; least margin ${plain(least)}. ${model.standing.tone === "good" ? `None can be: ${model.standing.verdict}.` : "That is no proof that there is none."}`;
        if (found) change({ bits: found.bits, index: found.index });
      },
      () => hunts.get(model) !== going,
    );
  };

  // ---- all together
  const caseOf = ({ bits, index }) => ({ bits: [...bits].map(Number), index });
  const drawNote = () => {
    const bits = state.bits.join(""), named = models.flatMap(({ case: each, standing }, at) => {
      if (!each || each.bits !== bits || each.index !== state.index) return [];
      const what = standing.tone === "bad" ? "a wrong answer" : "the least margin found";
      return [`This input is on record as ${what} of ${letters[at]}${each.margin === null ? "" : ` (margin ${plain(each.margin)})`}.`];
    });
    byId("note").textContent = named.join(" ");
  };
  const views = [];
  const change = (to) => {
    const moved = "bits" in to || "index" in to;
    Object.assign(state, to);
    drawInput();
    for (const view of views) view.draw();
    if (!moved) return;
    drawNote();
    version++;
    views.forEach(tryPlaces);
  };

  // ---- light and dark: as the system has it, until the button is pressed
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let theme = null;
  const dress = () => {
    document.documentElement.dataset.theme = theme || (dark.matches ? "dark" : "light");
    drawing.readColours();
    if (views.length) change({ index: state.index });
    for (const open of document.querySelectorAll(".weights")) open.dispatchEvent(new Event("toggle"));
  };
  byId("theme").addEventListener("click", () => {
    theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    dress();
  });
  dark.addEventListener("change", dress);

  dress();
  buildBits();
  const refuted = models.find(({ standing, case: each }) => standing.tone === "bad" && each);
  Object.assign(state, { bits: Array.from({ length: n }, () => Number(Math.random() < 0.5)) }, refuted ? caseOf(refuted.case) : { index: 1 + Math.floor(n / 2) });
  models.forEach((model, at) => views.push(build(model, at)));
  change({ bits: state.bits });
})();
