"use strict";
// The page: the input, and what each model does with it. Text from records only ever becomes text nodes.
(() => {
  const { models, n, T, state, node, plain, called, asked, picture, draw } = pictures;
  const LETTERS = "ABC", SLICE = 8; // milliseconds of work between two looks at the mouse
  const byId = (id) => document.getElementById(id);
  const counted = (x) => x.toLocaleString("en");

  // ---- the input
  const cells = [];
  const buildBits = () => {
    for (let at = 0; at < n; at++) {
      const bit = node("button", { type: "button", class: "bit", "data-at": at, tabindex: at ? -1 : 0 });
      const label = `Ask for bit ${at + 1}`;
      const place = node("button", { type: "button", class: "place", tabindex: -1, "aria-label": label }, `${at + 1}`);
      bit.addEventListener("click", () => flip(at));
      place.addEventListener("click", () => change({ index: at + 1 }));
      cells.push({ cell: node("div", { class: "cell" }, bit, place), bit, value: null });
      byId("bits").append(cells[at].cell);
    }
    const fit = () => {
      const most = innerWidth < 600 ? 8 : innerWidth < 1100 ? 16 : 32;
      byId("bits").style.setProperty("--columns", Math.min(n, most));
    };
    addEventListener("resize", fit);
    fit();
  };
  const columns = () => Number(byId("bits").style.getPropertyValue("--columns"));
  const moveTo = (at) => {
    cells[state.cursor].bit.tabIndex = -1;
    state.cursor = Math.min(n - 1, Math.max(0, at));
    cells[state.cursor].bit.tabIndex = 0;
    if (document.activeElement !== cells[state.cursor].bit) cells[state.cursor].bit.focus(); // costs a layout
  };
  const flip = (at) => {
    moveTo(at);
    change({ bits: state.bits.map((bit, k) => (k === at ? 1 - bit : bit)) });
  };
  byId("bits").addEventListener("keydown", (event) => {
    const at = Number(event.target.dataset.at), down = columns();
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -down, ArrowDown: down, Home: -n, End: n };
    if (event.key in steps) moveTo(at + steps[event.key]);
    else if (event.key === "Enter") change({ index: at + 1 });
    else return;
    event.preventDefault(); // Enter would click, and arrows scroll
  });
  const bitsBy = (rule) => ({ bits: state.bits.map((bit, at) => Number(rule(at + 1, bit))) });
  const presets = {
    random: () => bitsBy(() => Math.random() < 0.5),
    zeros: () => bitsBy(() => 0),
    ones: () => bitsBy(() => 1),
    single: () => bitsBy((place) => place === state.index),
    gap: () => bitsBy((place) => place !== state.index),
    cut: () => bitsBy((place) => place >= state.index),
    invert: () => bitsBy((_, bit) => !bit),
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

  const shared = {};
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
    if (document.activeElement !== byId("index")) byId("index").value = state.index;
    byId("slide").value = state.index;
    byId("truth").replaceChildren("? It is ", node("b", {}, String(state.bits[state.index - 1])), ".");
    byId("watch").value = state.watch;
    byId("watched").textContent = `${called(state.watch)}${state.watch === T - 1 ? ", where the answer is read" : ""}.`;
    const shares = { token: [1, T], asked: [asked(), T], watch: [state.watch, T], place: [state.index - 1, n], "one-place": [1, n] };
    for (const [name, [at, of]] of Object.entries(shares)) {
      if (shared[name] === at) continue; // every picture would be styled again
      shared[name] = at;
      document.documentElement.style.setProperty(`--${name}`, `${(100 * at) / of}%`);
    }
  };

  // ---- one model: made once, drawn at every change
  const watchColumn = (x) => change({ watch: x });
  // A click draws the pictures that are in view; the others are drawn when they come into view.
  const inView = new Set(), redraw = new WeakMap();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      inView[isIntersecting ? "add" : "delete"](target);
      if (isIntersecting) redraw.get(target)();
    }
  }, { rootMargin: "50%" });
  // All pictures of the inside, each `put` in its place with what draws it from a trace.
  const buildInside = ({ spec, how }, inside, put) => {
    const attention = spec.kind === "softmax" || spec.kind === "linear", soft = attention;
    inside.append(node("p", {}, how), node("h3", {}, "Before the first layer"));
    put(inside, picture("", 84, watchColumn), (made, trace) =>
      draw.rows(made, "What each token holds at first:", trace.stream[0], spec.d, "its bit or number, and its position."));
    for (let layer = 0; layer < spec.layers; layer++) {
      const maps = node("div", { class: "maps" });
      const mapOf = (trace, head) => trace.maps.find((each) => each.layer === layer && each.head === head).data;
      const rowsOf = (trace, name) => trace.rows.find((each) => each.layer === layer && each.name === name);
      const memory = (trace) => (spec.kind === "gru" ? { data: trace.stream[layer + 1], width: spec.d } : rowsOf(trace, "state"));
      inside.append(node("h3", {}, `Layer ${layer + 1} of ${spec.layers}`));
      put(inside, picture("", 12, watchColumn), draw.tokens);
      for (let head = 0; spec.kind !== "gru" && head < spec.heads; head++) {
        put(inside, picture("", 34, watchColumn), (made, trace) => draw.head(made, mapOf(trace, head), head, soft));
        put(maps, picture("map", null, (x, y) => watchColumn(y)), (made, trace) => draw.map(made, mapOf(trace, head), head, soft));
      }
      if (!attention) put(inside, picture("", 34, watchColumn), (made, trace) => draw.change(made, memory(trace)));
      if (spec.kind === "gru") put(inside, picture("", 84, watchColumn), (made, trace) => draw.gate(made, rowsOf(trace, "update gate")));
      if (spec.kind === "mamba2")
        put(inside, picture("", 128, watchColumn), (made, trace) =>
          draw.rows(made, "What the state holds along the sequence.", memory(trace).data, memory(trace).width));
      if (maps.children.length) inside.append(maps);
      const held = spec.kind === "gru" ? "What the memory holds after each token." : `What each token holds after layer ${layer + 1}.`;
      put(inside, picture("", 84, watchColumn), (made, trace) =>
        draw.rows(made, held, trace.stream[layer + 1], spec.d, `${spec.d} numbers per token.`));
    }
  };
  const drawWeights = (parent, { shapes, weights }) => {
    parent.replaceChildren(parent.firstElementChild);
    for (const [name, shape] of shapes) {
      const made = picture("bare", Math.max(8, Math.min(240, (5 * weights[name].length) / shape[shape.length - 1])));
      draw.weight(made, name, shape, weights[name]);
      parent.append(made.figure);
    }
  };
  const build = (model, at) => {
    const { net, standing, case: recorded } = model, letter = node("span", { class: "letter" }, LETTERS[at]);
    const says = node("p", { class: "says" }), short = node("div", { class: "says" });
    const gauge = node("i"), ends = node("div", { class: "ends" });
    const places = picture("places", 14, (x) => change({ index: x + 1 }));
    const find = node("button", { type: "button", class: "find" }, "Look for a wrong answer");
    const result = node("p", { class: "hint result", "aria-live": "polite" }), tools = node("div", { class: "tools" }, find);
    find.addEventListener("click", () => look(model, find, result));
    if (recorded) {
      const what = standing.tone === "bad" ? "counterexample" : "least margin";
      tools.append(node("button", { type: "button", class: "recorded" }, `Show its ${what} on record`));
      tools.lastChild.addEventListener("click", () => change(caseOf(recorded)));
    }
    const verdict = node("div", { class: `verdict tone-${standing.tone}` }, node("b", {}, standing.verdict), node("p", {}, standing.meaning));
    if (model.samples) verdict.append(node("p", { class: "hint" }, model.samples));
    verdict.append(node("details", {}, node("summary", {}, "What it rests on"), node("p", { class: "hint" }, standing.record)));

    const odd = node("details", { class: "odd" }, node("summary", {}, "Where does it fail? One bit unlike all others"));
    odd.addEventListener("toggle", () => odd.open && tryOddOnes(odd, net));
    const inside = node("details", { class: "inside" }, node("summary", {}, "Inside the model"));
    const drawn = [];
    let trace = null; // of the input as it is, once a picture wants it
    const traced = () => (trace ||= ithbit.explain(net, state.bits, state.index));
    const put = (parent, made, how) => {
      let shown = null; // the trace that the picture is of
      const again = () => {
        if (shown !== traced()) how(made, (shown = trace));
      };
      parent.append(made.figure);
      drawn.push({ figure: made.figure, again });
      redraw.set(made.figure, again);
      observer.observe(made.figure);
    };
    buildInside(model, inside, put);
    // Everything else, made when it is opened.
    const rest = node("details", {}, node("summary", {}, "Every other activation"));
    const weights = node("details", { class: "weights" }, node("summary", {}, "The weights"));
    weights.addEventListener("toggle", () => weights.open && drawWeights(weights, net));
    rest.addEventListener("toggle", () => {
      if (!rest.open || rest.querySelector("figure")) return;
      traced().rows.forEach(({ layer, name, width }, k) =>
        put(rest, picture("", Math.min(160, 6 * width), watchColumn), (made, { rows }) =>
          draw.rows(made, `Layer ${layer + 1}, ${name}.`, rows[k].data, width)));
      show(true);
    });
    inside.addEventListener("toggle", () => inside.open && show(true));
    inside.append(rest, weights);
    inside.open = innerWidth >= 900 || at === 0;

    const head = [node("h2", {}, letter, ` ${model.label}`), node("p", {}, model.title), node("p", { class: "note" }, model.origin)];
    const answer = [says, node("div", { class: "gauge" }, gauge), ends, node("div", { class: "steady" }, places.figure)];
    const name = node("p", { class: "mono" }, model.name);
    byId("models").append(node("article", { class: "card" }, ...head, name, ...answer, tools, result, odd, verdict, inside));
    byId("summary").append(short);

    const showAnswer = (logit) => {
      const truth = state.bits[state.index - 1], margin = ithbit.marginOf(logit, truth), right = margin > 0;
      const answer = Number.isFinite(logit) ? Number(logit > 0) : "no finite number";
      const strong = () => node("b", {}, `${answer}, ${right ? "right" : "wrong"}`);
      for (const each of [says, short]) each.className = `says ${right ? "right" : "wrong"}`;
      short.replaceChildren(letter.cloneNode(true), ` ${model.label}: answers `, strong());
      const truly = right ? "." : `: bit ${state.index} is ${truth}.`;
      const why = net.finite ? "" : " Single precision may overflow with such weights, so this page does not answer for them.";
      says.replaceChildren("Answers ", strong(), `${truly} Logit ${plain(logit)}, margin ${plain(margin)}.${why}`);
      const far = Number.isFinite(margin) ? Math.abs(margin) : 16, scale = Math.max(16, far), size = (50 * far) / scale;
      const colour = `var(--${right ? "good" : "bad"})`;
      Object.assign(gauge.style, { left: `${right ? 50 : 50 - size}%`, width: `${Math.max(0.5, size)}%`, background: colour });
      const marks = [`confidently wrong, margin ${plain(-scale, 0)}`, "0", `confidently right, ${plain(scale, 0)}`];
      if (ends.textContent !== marks.join("")) ends.replaceChildren(...marks.map((text) => node("span", {}, text)));
    };
    const show = (all) => {
      trace = null;
      const wanted = drawn.filter(({ figure }) => (all ? inside.open : inView.has(figure)));
      showAnswer(wanted.length ? traced().logit : ithbit.logit(net, state.bits, state.index));
      for (const each of wanted) each.again();
    };
    return { show, net, places };
  };

  // ---- what takes longer than a click: in slices, until the input changes or it is stopped
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
  const tryPlaces = ({ net, places }) => {
    const margins = new Array(n), mine = version;
    let index = 0;
    const step = () => {
      margins[index] = ithbit.margin(net, state.bits, index + 1);
      return ++index === n;
    };
    inSlices(step, (done) => draw.places(places, margins, done), () => mine !== version);
  };
  const tryOddOnes = (parent, net) => {
    const maps = node("div", { class: "maps" });
    const hint = "A column is the place of that bit, a row the number asked for. Green is right; click a square to try it.";
    parent.replaceChildren(parent.firstElementChild, node("p", { class: "hint" }, hint), maps);
    for (const odd of [1, 0]) {
      const bitsAt = (x) => Array.from({ length: n }, (_, at) => (at === x ? odd : 1 - odd));
      const made = picture("bare map", null, (x, y) => change({ bits: bitsAt(x), index: y + 1 }));
      const margins = new Array(n * n);
      let at = 0;
      maps.append(made.figure);
      const step = () => {
        margins[at] = ithbit.margin(net, bitsAt(at % n), 1 + Math.floor(at / n));
        return ++at === n * n;
      };
      inSlices(step, (done) => draw.oddOne(made, margins, odd, done), () => !parent.open || !maps.isConnected);
    }
  };
  const hunts = new Map();
  const look = (model, button, result) => {
    const ended = () => {
      button.textContent = "Look for a wrong answer";
      return hunts.delete(model);
    };
    if (ended()) {
      result.textContent += " Stopped.";
      return;
    }
    const going = hunting.hunt(model.net, ithbit.margin, n);
    let now;
    hunts.set(model, going);
    button.textContent = "Stop";
    const step = () => (now = going.next()).done;
    const tell = (done) => {
      const { tried, stage, least, found } = now.value;
      if (!done) {
        result.textContent = `Tried ${counted(tried)}, now ${stage}; least margin ${plain(least)}.`;
        return;
      }
      ended();
      if (found) {
        const answer = Number.isFinite(found.margin) ? 1 - found.bits[found.index - 1] : "no finite number";
        result.textContent = `Found at try ${counted(tried)}: asked for bit ${found.index}, it answers ${answer}. It is now the input above.`;
        change({ bits: found.bits, index: found.index });
        return;
      }
      const { tone, verdict } = model.standing;
      const known = tone === "good" ? `It is ${verdict}.` : "That is no proof that there is none.";
      result.textContent = `Nothing found in ${counted(tried)} tries; least margin ${plain(least)}. ${known}`;
    };
    inSlices(step, tell, () => hunts.get(model) !== going);
  };

  // ---- all together
  const caseOf = ({ bits, index }) => ({ bits: [...bits].map(Number), index });
  const drawNote = () => {
    const named = models.flatMap(({ case: each, standing }, at) => {
      if (!each || each.bits !== state.bits.join("") || each.index !== state.index) return [];
      const what = standing.tone === "bad" ? "a wrong answer" : "the least margin found";
      return [`This input is on record as ${what} of ${LETTERS[at]}${each.margin === null ? "" : ` (margin ${plain(each.margin)})`}.`];
    });
    byId("note").textContent = named.join(" ");
  };
  const views = [];
  const change = (to, all = false) => {
    Object.assign(state, to);
    drawInput();
    for (const view of views) view.show(all);
    if (!("bits" in to || "index" in to)) return;
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
    if (views.length) change({ index: state.index }, true);
    for (const open of document.querySelectorAll(".weights, .odd")) open.dispatchEvent(new Event("toggle"));
  };
  byId("theme").addEventListener("click", () => {
    theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    dress();
  });
  dark.addEventListener("change", dress);

  dress();
  buildBits();
  const refuted = models.find(({ standing, case: each }) => standing.tone === "bad" && each);
  const start = { bits: Array.from({ length: n }, () => Number(Math.random() < 0.5)), index: 1 + Math.floor(n / 2) };
  Object.assign(state, refuted ? caseOf(refuted.case) : start);
  models.forEach((model, at) => views.push(build(model, at)));
  change({ bits: state.bits }, true);
})();
