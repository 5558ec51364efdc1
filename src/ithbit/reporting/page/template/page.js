"use strict";
// The list of runs, its curves, and the two switches. Text from records only ever becomes text nodes.
(() => {
  const PAGE = 100;
  const TOGETHER = 30; // so many curves can still be distinguished
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = Object.fromEntries(data.columns.map((name, index) => [name, index]));
  const form = document.getElementById("filters");
  const body = document.querySelector("#run-table tbody");
  const count = document.getElementById("count");
  const overlay = document.getElementById("overlay");
  const more = document.getElementById("more");
  const byId = new Map(data.rows.map((row) => [row[at.run_id], row]));
  const place = new Map(data.rows.map((row, index) => [row, index]));
  document.getElementById("points").textContent = data.points;

  const node = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const svgNode = (name, attributes = {}, text = null) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    return made;
  };

  // ---- columns of the list
  const fixed = (places) => (value) => (value === null ? "–" : value.toFixed(places));
  // To the nearest, but 1 only if it is all.
  const share = (places) => (value) => {
    const text = fixed(places)(value);
    return value !== null && value < 1 && Number(text) >= 1 ? (1 - 10 ** -places).toFixed(places) : text;
  };
  const plain = (value) => (value === null ? "–" : String(value));
  const COLUMNS = [
    ["task", "Task", (value) => value.toUpperCase()],
    ["family", "Family", (value) => data.labels[value]],
    ["n_layers", "L", plain, true],
    ["n_bits", "n", plain, true],
    ["positions", "Encoding", plain],
    ["seed", "Seed", plain, true],
    ["status", "Status", plain],
    ["solved", "Solved", (value) => (value === null ? "–" : value ? "yes" : "no")],
    ["max_accuracy", "Max. accuracy", share(4), true],
    ["epochs", "Epochs", plain, true],
    ["first_solved_epoch", "First perfect", plain, true],
    ["half_length_accuracy", "at n/2", share(3), true],
    ["double_length_accuracy", "at 2n", share(3), true],
    ["n_parameters", "Parameters", plain, true],
    ["seconds_per_epoch", "s/epoch", fixed(3), true],
    ["standing", "Standing", plain],
    ["settings", "Settings", (value) => (data.settingsText[value] || "").slice(2) || value],
  ].filter(([key]) => key !== "settings" || data.rows.some((row) => !["paper", "early stop"].includes(row[at.settings])));
  let sort = null;
  let descending = false;
  let shown = PAGE;
  let current = [];

  const head = document.querySelector("#run-table thead tr");
  for (const [key, title, , numeric] of COLUMNS) {
    const button = node("button", { type: "button", "data-sort": key }, title);
    button.addEventListener("click", () => {
      descending = sort === key ? !descending : false;
      sort = key;
      update();
    });
    head.append(node("th", numeric ? { class: "num", scope: "col" } : { scope: "col" }, button));
  }

  const compareValues = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  // ---- filters: only what occurs can be chosen
  const SELECTS = ["task", "family", "n_layers", "n_bits", "positions", "group", "solved", "standing", "status", "settings"];
  const shape = Object.fromEntries(COLUMNS.map(([key, , show]) => [key, show]));
  for (const key of SELECTS) {
    const values = [...new Set(data.rows.map((row) => row[at[key]]))].filter((value) => value !== null);
    values.sort(compareValues);
    form.elements[key].append(node("option", { value: "" }, "all"));
    for (const value of values) {
      form.elements[key].append(node("option", { value: String(value) }, (shape[key] || plain)(value)));
    }
  }

  const choose = () => {
    const text = form.elements.text.value.trim().toLowerCase();
    const wanted = SELECTS.map((key) => [at[key], form.elements[key].value]).filter(([, value]) => value);
    current = data.rows.filter(
      (row) =>
        wanted.every(([column, value]) => String(row[column]) === value) &&
        (!text ||
          [at.name, at.run_id, at.error].some((column) => String(row[column] ?? "").toLowerCase().includes(text))),
    );
    if (sort !== null) {
      const column = at[sort];
      current.sort((one, other) => {
        const a = one[column];
        const b = other[column];
        // What has no value stands last whichever way the list runs.
        if (a === null || b === null) return (a === null) - (b === null) || place.get(one) - place.get(other);
        return (descending ? -1 : 1) * compareValues(a, b) || place.get(one) - place.get(other);
      });
    }
  };

  const dotOf = (colour) => {
    const dot = node("span", { class: "dot" });
    dot.style.background = colour;
    return dot;
  };
  const cells = (row) =>
    COLUMNS.map(([key, , show, numeric]) => {
      const cell = node("td", numeric ? { class: "num" } : {});
      if (key === "family") cell.append(dotOf(data.colours[row[at.family]]));
      if (key === "status" && row[at.status] === "failed") cell.className = "failed";
      const text = show(row[at[key]]);
      const long = text.length > 36;
      if (long) cell.className = "long";
      cell.append(long ? text.replaceAll(" = ", "\u00a0=\u00a0") : text);
      return cell;
    });

  const update = () => {
    choose();
    body.replaceChildren(
      ...current.slice(0, shown).map((row) =>
        node("tr", { class: "run", "data-run": row[at.run_id], tabindex: "0", "aria-expanded": "false", title: row[at.name] }, ...cells(row)),
      ),
    );
    const solved = current.filter((row) => row[at.solved]).length;
    const finished = current.filter((row) => row[at.status] === "finished").length;
    count.textContent = `${current.length} of ${data.rows.length} runs, ${finished} finished, ${solved} solved`;
    more.hidden = current.length <= shown;
    const drawn = current.filter((row) => row[at.curve]);
    overlay.replaceChildren(...(drawn.length > 1 && drawn.length <= TOGETHER ? [charts(drawn)] : []));
    for (const header of head.children) {
      const key = header.firstChild.dataset.sort;
      if (key === sort) header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    }
  };

  // ---- curves: seven base-64 digits a point, see report/page/curves.py
  const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const decode = (text) => {
    const number = (from, places) => {
      let value = 0;
      for (let index = from; index < from + places; index += 1) value = 64 * value + DIGITS.indexOf(text[index]);
      return value;
    };
    const points = [];
    for (let index = 0; index < text.length; index += 7) {
      const accuracy = number(index + 3, 2);
      const loss = number(index + 5, 2);
      points.push({
        epoch: number(index, 3),
        accuracy: accuracy === 4095 ? null : accuracy / 4000,
        loss: loss === 4095 ? null : -9 + (12 * loss) / 4094,
      });
    }
    return points;
  };

  // `lines` holds one list of points a run, `strokes` how each is drawn.
  const DASHES = ["", "7 3", "2 3", "7 3 2 3", "12 3"];
  const chart = (title, lines, key, low, high, ticks, label, strokes) => {
    const width = 440;
    const height = 236;
    const box = { left: 48, right: 422, top: 26, bottom: 198 };
    const last = Math.max(1, ...lines.flat().map((point) => point.epoch));
    const x = (epoch) => box.left + ((box.right - box.left) * epoch) / last;
    const y = (value) => box.bottom - ((box.bottom - box.top) * (value - low)) / (high - low);
    const made = svgNode("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    made.append(svgNode("text", { x: box.left, y: 16, "font-weight": "bold" }, title));
    for (const tick of ticks) {
      made.append(svgNode("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), stroke: "var(--line)" }));
      made.append(svgNode("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, label(tick)));
    }
    for (const tick of new Set([0, Math.round(last / 2), last])) {
      made.append(svgNode("text", { class: "tick", x: x(tick), y: box.bottom + 16, "text-anchor": "middle" }, String(tick)));
    }
    made.append(svgNode("text", { x: (box.left + box.right) / 2, y: height - 2, "text-anchor": "middle" }, "epoch"));
    lines.forEach((points, index) => {
      const path = points
        .filter((point) => point[key] !== null)
        .map((point) => `${x(point.epoch).toFixed(1)},${y(Math.min(high, Math.max(low, point[key]))).toFixed(1)}`);
      made.append(svgNode("polyline", { points: path.join(" "), fill: "none", ...strokes[index] }));
    });
    return made;
  };

  const charts = (rows) => {
    const lines = rows.map((row) => decode(row[at.curve]));
    // A family has one colour everywhere on the page. Dash and width are those of its settings or,
    // where all settings are the same, of a run.
    const settingsOf = (row) => data.settingsText[row[at.settings]] ?? "";
    const settings = [...new Set(rows.map(settingsOf))];
    const stroke = (row, index) => ({
      stroke: data.colours[row[at.family]],
      "stroke-width": ["1.8", "3.2", "0.9"][Math.floor(index / DASHES.length) % 3],
      "stroke-dasharray": DASHES[index % DASHES.length],
    });
    const alike = settings.length === 1;
    const strokes = rows.map((row, index) => stroke(row, alike ? index % DASHES.length : settings.indexOf(settingsOf(row))));
    const kinds = new Map(rows.map((row, index) => [`${data.labels[row[at.family]]}${settingsOf(row)}`, strokes[index]]));
    const losses = lines.flat().map((point) => point.loss).filter((loss) => loss !== null);
    const low = Math.floor(Math.min(-1, ...losses));
    const high = Math.ceil(Math.max(0, ...losses));
    const ticks = [];
    for (let tick = low; tick <= high; tick += Math.max(1, Math.ceil((high - low) / 6))) ticks.push(tick);
    const named = [...kinds].map(([name, look]) => {
      if (alike) return node("span", {}, dotOf(look.stroke), name);
      const line = svgNode("svg", { class: "line", viewBox: "0 0 36 10" });
      line.append(svgNode("line", { x1: 0, x2: 36, y1: 5, y2: 5, ...look }));
      return node("span", {}, line, name);
    });
    return node(
      "div",
      { class: "pair" },
      ...(kinds.size > 1 ? [node("p", { class: "key" }, ...named)] : []),
      chart("Held-out accuracy", lines, "accuracy", 0.4, 1.02, [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1], (tick) => tick.toFixed(1), strokes),
      chart("Held-out loss", lines, "loss", low, high, ticks, (tick) => `1e${tick}`, strokes),
    );
  };

  const detail = (row) => {
    const inside = node("div", { class: "inside" });
    inside.append(node("p", { class: "mono" }, `${row[at.name]}-${row[at.run_id]}`));
    if (row[at.error]) inside.append(node("p", { class: "failed" }, row[at.error]));
    inside.append(row[at.curve] ? charts([row]) : node("p", {}, "This run has no history."));
    const facts = node("dl");
    for (const [key, title] of [
      ["group", "group"], ["settings", "settings"], ["stopped_by", "stopped by"], ["final_accuracy", "final accuracy"],
      ["final_loss", "final loss"], ["d_model", "width"], ["n_heads", "heads"],
    ]) {
      const value = row[at[key]];
      if (value !== null) {
        const text = typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
        facts.append(node("div", {}, node("dt", {}, title), node("dd", {}, text)));
      }
    }
    inside.append(facts);
    return node("tr", { class: "detail" }, node("td", { colspan: COLUMNS.length }, inside));
  };

  const toggle = (line) => {
    const open = line.classList.toggle("open");
    line.setAttribute("aria-expanded", String(open));
    if (open) line.after(detail(byId.get(line.dataset.run)));
    else line.nextSibling.remove();
  };
  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr.run");
    if (line) toggle(line);
  });
  body.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && event.target.matches("tr.run")) {
      event.preventDefault();
      toggle(event.target);
    }
  });

  const restart = () => {
    shown = PAGE;
    update();
  };
  form.addEventListener("input", restart);
  form.addEventListener("reset", () => setTimeout(restart));
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    shown += 5 * PAGE;
    update();
  });

  // ---- a cell of a table leads to its runs
  const lookUp = (cell) => {
    form.reset();
    for (const [key, value] of Object.entries(JSON.parse(cell.dataset.lookUp))) {
      const field = form.elements[key];
      if ([...field.options].some((option) => option.value === String(value))) field.value = String(value);
    }
    // The reset's own update comes later and keeps what is chosen here.
    document.getElementById("runs").scrollIntoView();
  };
  const tables = document.querySelector("main");
  tables.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-look-up]");
    if (cell) lookUp(cell);
  });
  tables.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("td[data-look-up]")) lookUp(event.target);
  });

  // ---- switches
  const buttons = document.querySelectorAll(".switch button");
  for (const button of buttons) {
    button.addEventListener("click", () => {
      document.body.dataset.show = button.dataset.show;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    });
  }
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const THEMES = ["auto", "light", "dark"];
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("ithbit-theme") || "auto";
  } catch {
    // A page opened from disk may have no storage; then the choice lasts as long as the page.
  }
  const dress = () => {
    const dark = chosen === "dark" || (chosen === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    theme.textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[chosen];
    theme.title = chosen === "auto" ? "Colours: as in the system settings" : `Colours: ${chosen}`;
  };
  theme.addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    try {
      localStorage.setItem("ithbit-theme", chosen);
    } catch {
      // As above.
    }
    dress();
  });
  system.addEventListener("change", dress);
  dress();
  update();
})();
