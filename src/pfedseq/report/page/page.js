// The page's script: reads the content, fills tables as text, and hands numbers to ECharts.
const content = JSON.parse(document.getElementById("content").textContent);
const PALETTE = ["#e07a3f", "#3f9e6e", "#8e6bbf", "#c2a02e", "#2f9ab0", "#c25572", "#7c8a4a",
  "#8d6e5a", "#5d7fb8", "#b06fa8", "#5b9f8f", "#a85f3c", "#77808f"];
const byId = (id) => document.getElementById(id);
const charts = new Map();
const off = new Set();
let board = content.boards[0];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function element(kind, text, className) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;  // never as HTML: names are the user's
  if (className) made.className = className;
  return made;
}
function bytes(value) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") return (unit === "B" ? value.toFixed(0) : value.toFixed(1)) + " " + unit;
    value /= 1000;
  }
}
function short(name, letters) {
  return name.length > letters ? name.slice(0, letters - 1) + "…" : name;
}
const plural = (number, thing, many) => `${number.toLocaleString("en")} ${number === 1 ? thing : many ?? thing + "s"}`;
const signed = (value) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(2);
const fixed = (value) => value.toFixed(board.headline.digits);
const written = (value) => fixed(value) + (board.headline.unit ? " " + board.headline.unit : "");
const better = (a, b) => board.headline.higher ? b - a : a - b;  // sorts the best first
const scale = () => ({ color: css("--muted"), formatter: (v) => v + (board.headline.unit ? " " + board.headline.unit : "") });
const room = (titles) => Math.min(narrow() ? 110 : 190, 24 + 7 * Math.max(...titles.map((t) => t.length)));
const severalSeeds = () => board.lines.some((line) => line.seeds.length > 1);
const narrow = () => innerWidth < 700;
// Dark or white, whichever is easier to read on the colour at this share of the scale.
function legible(share, shades) {
  const at = Math.max(0, Math.min(share, 1)) * (shades.length - 1), k = Math.min(Math.floor(at), shades.length - 2);
  const light = [1, 3, 5].map((place) => {
    const [low, high] = [shades[k], shades[k + 1]].map((shade) => parseInt(shade.slice(place, place + 2), 16) / 255);
    const value = low + (high - low) * (at - k);
    return value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  });
  return .2126 * light[0] + .7152 * light[1] + .0722 * light[2] > .2 ? "#1c2430" : "#fff";
}
function colour(line) {
  if (line.label === board.reference) return css("--accent");
  return PALETTE[board.lines.indexOf(line) % PALETTE.length];
}
// Tooltips are drawn as text within the picture, so that no name is ever read as HTML.
const tooltip = (extra) => Object.assign({
  renderMode: "richText", backgroundColor: css("--card"), borderColor: css("--line"),
  textStyle: { color: css("--ink"), fontSize: 12 }, confine: true,
}, extra);
const axis = (extra) => Object.assign({
  axisLabel: { color: css("--muted") }, axisLine: { lineStyle: { color: css("--line") } },
  nameTextStyle: { color: css("--muted") }, splitLine: { lineStyle: { color: css("--line") } },
  axisTick: { show: false },
}, extra);
function draw(id, option, height) {
  const place = byId(id);
  if (height) place.style.height = height + "px";
  if (!charts.has(id)) charts.set(id, echarts.init(place, null, { renderer: "svg" }));
  const chart = charts.get(id);
  chart.resize();
  chart.setOption(Object.assign({ animation: false, textStyle: { fontFamily: "system-ui, sans-serif" } }, option), true);
  return chart;
}

function showHead() {
  byId("name").textContent = board.name;
  const seeds = new Set(board.lines.flatMap((line) => line.seeds));
  const tested = !board.classes.length ? 0 : board.tests.filter(Boolean).reduce((sum, one) => sum + one.examples, 0);
  byId("lede").textContent = `${plural(board.lines.length, "method")}, ${plural(seeds.size, "seed")}, ` +
    `${plural(board.clients.length, "client")}, ` + (board.classes.length ? `${plural(board.classes.length, "class", "classes")}, ` : "") +
    `${plural(board.images, board.unit)} in the data set` + (tested ? `, ${tested.toLocaleString("en")} of them for testing` : "") +
    `. ${board.notes.join(". ")}`;
  for (const place of document.querySelectorAll(".headline")) place.textContent = board.headline.title;
  for (const place of document.querySelectorAll(".headline-unit")) place.textContent = board.headline.unit ? ` in ${board.headline.unit}` : "";
  for (const place of document.querySelectorAll(".over-seeds")) place.hidden = !severalSeeds();
  for (const place of document.querySelectorAll(".better-side")) place.textContent = board.headline.higher ? "right" : "left";
  const nav = byId("boards");
  nav.replaceChildren();
  if (content.boards.length > 1) {
    for (const other of content.boards) {
      const button = element("button", other.name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(other === board));
      button.onclick = () => { board = other; off.clear(); showAll(); };
      nav.append(button);
    }
  }
  const cards = [
    first("client_mean", `best ${board.headline.title}, mean over clients`),
    first("worst_client", `best worst-client ${board.headline.title}`),
  ];
  const rival = board.leads.length ? [...board.leads].sort((a, b) => a.mean - b.mean)[0] : null;
  if (rival) {
    const ours = board.lines.find((line) => line.label === board.reference).title;
    const sure = rival.low !== null && rival.low * rival.high > 0;
    cards.push([signed(rival.mean), `${ours} minus ${rival.title}, its closest rival` +
      (rival.low === null ? "" : sure ? "; the 95 % interval excludes zero" : "; the 95 % interval includes zero")]);
  }
  const unfinished = board.lines.filter((line) => line.rounds.at(-1) < line.planned);
  if (unfinished.length) cards.push([String(unfinished.length), "not finished: " + unfinished.map((l) => l.title).join(", ")]);
  byId("cards").replaceChildren(...cards.map(([value, text]) => {
    const card = element("div", undefined, "card");
    card.append(element("b", value), element("span", text));
    return card;
  }));
}

// The best value of a score, and the methods that have it when written out.
function first(key, said) {
  const values = board.lines.map((line) => line.scores[key][0]), best = [...values].sort(better)[0];
  const names = board.lines.filter((_, k) => fixed(values[k]) === fixed(best)).map((line) => line.title);
  const more = names.length > 3 ? ` and ${names.length - 2} more` : "";
  return [written(best), `${said}: ${(more ? names.slice(0, 2) : names).join(", ")}${more}`];
}

function showScoreboard() {
  const columns = [["client mean", "client_mean"], ["sample-weighted", "sample_weighted"],
    ["worst client", "worst_client"], ...(board.clients.length < 10 ? [] : [["bottom decile", "bottom_decile"]]),
    ["best on validation", "best_on_validation"], ["best on test*", "best_on_test_optimistic"]];
  const head = element("tr");
  head.append(element("th", "method"));
  for (const [title, key] of columns) head.append(element("th", title, key === "best_on_test_optimistic" ? "optimistic" : ""));
  head.append(element("th", "s / round"), element("th", "bytes"), element("th", "rounds"));
  const older = board.lines.some((line) => line.kept.some((t) => t !== line.rounds.at(-1)));
  if (older) head.append(element("th", "models of round"));
  const rows = [head];
  const places = columns.map(([, key]) => {
    const values = board.lines.map((l) => l.scores[key] ? fixed(l.scores[key][0]) : null);
    return [...new Set(values.filter((v) => v !== null))].sort(better);
  });
  for (const line of board.lines) {
    const row = element("tr", undefined, line.label === board.reference ? "ours" : "");
    row.append(element("td", line.title, "name"));
    columns.forEach(([, key], number) => {
      const value = line.scores[key];
      const text = value === null ? "–" : fixed(value[0]) + (line.seeds.length > 1 ? " ±" + fixed(value[1]) : "");
      const place = value === null || board.lines.length < 2 ? -1 : places[number].indexOf(fixed(value[0]));
      const mark = key === "best_on_test_optimistic" ? "optimistic" : place === 0 ? "best" : place === 1 ? "second" : "";
      row.append(element("td", text, mark));
    });
    row.append(element("td", line.seconds.toFixed(2)), element("td", bytes(line.bytes)),
      element("td", `${line.rounds.at(-1)}/${line.planned}`));
    if (older) row.append(element("td", [...new Set(line.kept)].join(", ")));
    rows.push(row);
  }
  byId("scoreboard").replaceChildren(...rows);
}

function showCurves() {
  const series = [];
  for (const line of board.lines) {
    const tint = colour(line), ours = line.label === board.reference;
    if (line.seeds.length > 1) {
      const area = { type: "line", name: line.title, symbol: "none", silent: true, tooltip: { show: false }, lineStyle: { opacity: 0 } };
      series.push({ ...area, stack: line.label, stackStrategy: "all", data: line.rounds.map((t, k) => [t, line.low[k]]) });
      series.push({ ...area, stack: line.label, stackStrategy: "all", areaStyle: { color: tint, opacity: .13 },
        data: line.rounds.map((t, k) => [t, line.high[k] - line.low[k]]) });
    }
    series.push({ type: "line", name: line.title, color: tint, symbol: "circle", symbolSize: 5,
      showSymbol: line.rounds.length < 25, lineStyle: { width: ours ? 3.2 : 1.6 }, z: ours ? 5 : 3,
      emphasis: { focus: "series" }, data: line.rounds.map((t, k) => [t, line.mean[k]]) });
  }
  const shown = {};
  for (const line of board.lines) shown[line.title] = !off.has(line.title);
  const phone = narrow();
  const legendHeight = 26 * Math.ceil(board.lines.length / 3);
  const chart = draw("curves", {
    color: board.lines.map(colour),
    grid: phone ? { left: 44, right: 10, top: 16, bottom: 56 + legendHeight } : { left: 56, right: 190, top: 16, bottom: 48 },
    legend: { type: phone ? "plain" : "scroll", orient: phone ? "horizontal" : "vertical", right: phone ? "center" : 6,
      top: phone ? undefined : 10, bottom: phone ? 0 : 10, textStyle: { color: css("--ink") },
      inactiveColor: css("--line"), pageTextStyle: { color: css("--muted") }, selected: shown,
      data: board.lines.map((line) => ({ name: line.title, itemStyle: { color: colour(line) } })) },
    tooltip: tooltip({ trigger: "axis", order: "valueDesc", valueFormatter: (v) => v === undefined ? "–" : written(v) }),
    xAxis: axis({ type: "value", name: "round", nameLocation: "middle", nameGap: 28, min: "dataMin", max: "dataMax",
      minInterval: 1, splitLine: { show: false } }),
    yAxis: axis({ type: "value", scale: true, axisLabel: scale() }),
    series,
  }, phone ? 330 + legendHeight : 460);
  byId("identical").textContent = coinciding().map(([titles, same]) =>
    `${titles.join(", ")}: ${same ? "identical" : "almost identical"} curves, which lie on top of each other.`).join(" ");
  chart.off("legendselectchanged");
  chart.on("legendselectchanged", (event) => {
    off.clear();
    for (const [name, on] of Object.entries(event.selected)) if (!on) off.add(name);
  });
}

// Groups of methods whose curves cannot be told apart in the picture, and whether they are equal.
function coinciding() {
  const all = board.lines.flatMap((line) => line.mean);
  const width = (Math.max(...all) - Math.min(...all)) / 100;  // a line is about this thick
  const apart = (a, b) => JSON.stringify(a.rounds) === JSON.stringify(b.rounds) ? Math.max(...a.mean.map((v, k) => Math.abs(v - b.mean[k]))) : Infinity;
  const groups = [];
  for (const line of board.lines) {
    const group = groups.find((one) => apart(one[0], line) <= width);
    if (group) group.push(line); else groups.push([line]);
  }
  return groups.filter((one) => one.length > 1).map((one) => [one.map((l) => l.title), one.every((l) => apart(one[0], l) === 0)]);
}

function showLeads() {
  const reference = board.lines.find((line) => line.label === board.reference);
  byId("leads-title").textContent = `${reference.title} against the others`;
  byId("leads").parentElement.hidden = !board.leads.length;
  if (!board.leads.length) return;
  const leads = [...board.leads].sort((a, b) => b.mean - a.mean);
  const whiskers = leads.map((lead, row) => lead.low === null ? null : [lead.low, lead.high, row]).filter(Boolean);
  draw("leads", {
    grid: { left: room(leads.map((l) => l.title)), right: 24, top: 8, bottom: 40 },
    tooltip: tooltip({ formatter: (p) => { const l = leads[p.data[1] ?? p.data[2]];
      return `${l.title}: ${signed(l.mean)}` + (l.low === null ? "" : ` [${signed(l.low)}, ${signed(l.high)}]`) + `, ${plural(l.seeds, "seed")}`; } }),
    xAxis: axis({ type: "value", name: board.headline.unit === "%" ? "points ahead" : `ahead in ${board.headline.title}`, nameLocation: "middle", nameGap: 26 }),
    yAxis: axis({ type: "category", data: leads.map((l) => l.title), inverse: true, splitLine: { show: false } }),
    series: [
      { type: "custom", silent: true, data: whiskers, encode: { x: [0, 1], y: 2 }, renderItem: (params, api) => {
        const a = api.coord([api.value(0), api.value(2)]), b = api.coord([api.value(1), api.value(2)]);
        return { type: "line", shape: { x1: a[0], y1: a[1], x2: b[0], y2: b[1] }, style: { stroke: css("--muted"), lineWidth: 2 } };
      } },
      { type: "scatter", symbolSize: 11, data: leads.map((l, row) => ({ value: [l.mean, row],
        itemStyle: { color: l.low !== null && l.low > 0 ? css("--good") : l.high !== null && l.high < 0 ? css("--bad") : css("--muted") } })),
        markLine: { silent: true, symbol: "none", lineStyle: { color: css("--ink"), type: "dashed", opacity: .5 }, label: { show: false }, data: [{ xAxis: 0 }] } },
    ],
  }, 90 + 26 * leads.length);
}

function options(select, values, chosen) {
  select.replaceChildren(...values.map(([value, text]) => {
    const option = element("option", text);
    option.value = value;
    return option;
  }));
  if (values.some(([value]) => value === chosen)) select.value = chosen;
}
function chosenRun() {
  const line = board.lines.find((l) => l.label === byId("client-method").value);
  return [line, line.runs.find((r) => String(r.seed) === byId("client-seed").value) || line.runs[0]];
}
function showClientTools() {
  options(byId("client-method"), board.lines.map((l) => [l.label, l.title]), byId("client-method").value || board.reference);
  if (!board.lines.some((l) => l.label === byId("client-method").value)) byId("client-method").value = board.reference;
  const line = board.lines.find((l) => l.label === byId("client-method").value);
  options(byId("client-seed"), line.seeds.map((s) => [String(s), String(s)]), byId("client-seed").value);
  byId("client-seed").parentElement.hidden = !severalSeeds();
}
function showFair() {
  const lines = [...board.lines].sort((a, b) => better(a.scores.worst_client[0], b.scores.worst_client[0]));
  const value = (line, key) => line.scores[key][0];
  const ends = (line) => [value(line, "worst_client"), line.scores.best_client].sort((a, b) => a - b);
  draw("fair", {
    grid: { left: room(lines.map((l) => l.title)), right: 24, top: 8, bottom: 40 },
    tooltip: tooltip({ trigger: "axis", axisPointer: { type: "none" }, formatter: (all) => { const l = lines[all[0].dataIndex];
      return `${l.title}\nworst ${written(value(l, "worst_client"))}, bottom decile ${written(value(l, "bottom_decile"))}\n` +
        `mean ${written(value(l, "client_mean"))}, best ${written(l.scores.best_client)}\nstandard deviation over clients ${fixed(l.scores.spread)}`; } }),
    xAxis: axis({ type: "value", scale: true, axisLabel: scale() }),
    yAxis: axis({ type: "category", inverse: true, data: lines.map((l) => l.title), splitLine: { show: false } }),
    series: [
      { type: "bar", stack: "range", silent: true, itemStyle: { color: "transparent" }, data: lines.map((l) => ends(l)[0]) },
      { type: "bar", stack: "range", barWidth: 8, itemStyle: { borderRadius: 4, opacity: .45 },
        data: lines.map((l) => ({ value: ends(l)[1] - ends(l)[0], itemStyle: { color: colour(l) } })) },
      { type: "scatter", symbolSize: 11, z: 5, data: lines.map((l, row) => ({ value: [value(l, "client_mean"), row], itemStyle: { color: colour(l) } })) },
      { type: "scatter", symbol: "diamond", symbolSize: 9, z: 4, data: lines.map((l, row) => ({ value: [value(l, "bottom_decile"), row], itemStyle: { color: css("--ink") } })) },
    ],
  }, 90 + 26 * lines.length);
}

function showCosts() {
  for (const [id, key, label] of [["cost-seconds", "seconds", (v) => v.toFixed(2) + " s"], ["cost-bytes", "bytes", bytes]]) {
    const data = board.lines.map((l) => ({ name: l.title, value: [l[key], l.scores.client_mean[0]], itemStyle: { color: colour(l) } }));
    const series = { type: "scatter", symbolSize: 12, data,
      label: { show: true, position: "right", formatter: (p) => p.name, color: css("--muted"), fontSize: 11 } };
    const chart = draw(id, {
      grid: { left: 56, right: 92, top: 22, bottom: 34 },
      tooltip: tooltip({ formatter: (p) => `${p.name}: ${written(p.data.value[1])}, ${label(p.data.value[0])}` }),
      xAxis: axis({ type: "value", axisLabel: { color: css("--muted"), formatter: label, hideOverlap: true }, splitNumber: narrow() ? 2 : 4 }),
      yAxis: axis({ type: "value", scale: true, axisLabel: scale() }),
      series: [series],
    });
    chart.setOption({ series: [{ ...series, data: spaced(chart, data) }] });
  }
}
// Places each label beside its dot where it covers neither another dot nor another label.
function spaced(chart, data) {
  const high = 13, gap = 11, at = data.map((one) => chart.convertToPixel("grid", one.value));
  const taken = at.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
  const shared = (a, b) => Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
  const beyond = ([left, top, right, bottom]) => Math.max(0, -left, -top, right - chart.getWidth(), bottom - chart.getHeight());
  return data.map((one, k) => {
    const [x, y] = at[k], wide = 6.2 * one.name.length, places = [];
    for (const lines of [0, 1, -1, 2, -2, 3, -3, 4, -4]) {
      const shift = high * lines, beside = [y - high / 2 + shift, y + high / 2 + shift];
      places.push(["right", shift, [x + gap, beside[0], x + gap + wide, beside[1]]], ["left", shift, [x - gap - wide, beside[0], x - gap, beside[1]]]);
      if (lines === 0) places.push(["top", 0, [x - wide / 2, y - gap - high, x + wide / 2, y - gap]], ["bottom", 0, [x - wide / 2, y + gap, x + wide / 2, y + gap + high]]);
    }
    const covered = ([, , box]) => taken.reduce((sum, other) => sum + shared(box, other), 100 * beyond(box));
    const [position, shift, box] = places.reduce((a, b) => covered(b) < covered(a) ? b : a);  // the first of equals
    taken.push(box);
    return { ...one, label: { position, offset: [0, shift] } };
  });
}

function showSizes() {
  const found = board.lines.flatMap((line) => line.runs.map((run) => [line, run])).filter(([, run]) => run.server);
  byId("sizes-section").hidden = !found.length;
  if (!found.length) return;
  const entries = found.flatMap(([line, run]) => Object.keys(run.server.sizes).map((name) => [line, run, name]));
  const several = new Set(entries.map(([line]) => line.label)).size > 1;
  const called = ([line, run, name]) => (board.quantities[name] ?? name.replaceAll("_", " ")) +
    (several ? `, ${line.title}` : "") + (severalSeeds() ? `, seed ${run.seed}` : "");
  options(byId("size-name"), entries.map((entry, k) => [String(k), called(entry)]), byId("size-name").value);
  const [, run, name] = entries[Number(byId("size-name").value) || 0];
  const layers = run.server.sizes[name];
  const number = (k) => board.layers && board.layers.length === layers[0].length ? board.layers[k] : k;
  const cells = layers.flatMap((row, x) => row.map((value, layer) => [x, layer, value]));
  const values = cells.map((c) => c[2]);
  draw("sizes", {
    grid: { left: 56, right: 112, top: 30, bottom: 46 },
    tooltip: tooltip({ formatter: (p) => `round ${run.server.rounds[p.data[0]]}, layer ${number(p.data[1])}: ${p.data[2].toExponential(2)}` }),
    xAxis: axis({ type: "category", data: run.server.rounds.map(String), name: "round", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "category", data: layers[0].map((_, k) => String(number(k))), name: "layer", splitLine: { show: false } }),
    visualMap: { min: Math.min(...values), max: Math.max(...values, 1e-12), right: 0, top: "center", calculable: true, precision: 4,
      formatter: (v) => v.toExponential(1), textStyle: { color: css("--muted") }, inRange: { color: ["#f3ecd8", "#e0a458", "#b04a3a", "#4a1e3d"] } },
    series: [{ type: "heatmap", data: cells }],
  });
}

function matrix(id, rows, across, down, names) {
  const most = Math.max(1e-9, ...rows.flat().map(Math.abs));
  const room = narrow() ? 9 : 14, shades = ["#b3361f", "#f0ede4", "#1f5fbf"];
  draw(id, {
    grid: { left: narrow() ? 74 : 104, right: 10, top: 6, bottom: 96 },
    tooltip: tooltip({ formatter: (p) => names(p.value[1], p.value[0]) + `: ${(100 * p.value[2]).toFixed(1)} %` }),
    xAxis: axis({ type: "category", data: across, splitLine: { show: false }, axisLabel: { color: css("--muted"), rotate: across.length > 6 ? 60 : 0, formatter: (v) => short(v, room) } }),
    yAxis: axis({ type: "category", data: down, inverse: true, splitLine: { show: false }, axisLabel: { color: css("--muted"), formatter: (v) => short(v, room) } }),
    visualMap: { min: -most, max: most, orient: "horizontal", left: "center", bottom: 0, precision: 2, itemHeight: 90, itemWidth: 10,
      text: [`+${(100 * most).toFixed(0)} %`, `−${(100 * most).toFixed(0)} %`], textStyle: { color: css("--muted") }, inRange: { color: shades } },
    series: [{ type: "heatmap", label: { show: across.length <= 8 && !narrow(), formatter: (p) => String(Math.round(100 * p.value[2])).replace("-", "−"), fontSize: 10 },
      itemStyle: { borderColor: css("--card"), borderWidth: 1 },
      data: rows.flatMap((row, y) => row.map((value, x) => ({ value: [x, y, value],
        label: { color: legible((value / most + 1) / 2, shades) } }))) }],
  }, Math.max(240, 120 + 24 * down.length));
}
function showOrigins() {
  const found = board.origins;
  byId("origins-section").hidden = !found;
  if (!found) return;
  const said = found.problem ?? (found.silent ? "The learner's calibrations are all zero." : null);
  for (const part of byId("origins-section").querySelectorAll(".chart, h3")) part.hidden = said !== null;
  byId("origins-text").textContent = said;
  if (said !== null) return;
  byId("origins-text").textContent = `pFedSeq, seed ${found.seed}, round ${found.round}. Each row is a client's calibration ξ; ` +
    "each cell is the share of it that came from another client's updates (gradient × input; negative shares pull the other way). " +
    "Left out: the share of ξ that is lost when that client's updates are set to zero. " +
    (found.agreement === null ? "" : `The correlation of the two attributions is ${found.agreement.toFixed(2)}.`);
  const from = (i, j) => `ξ of ${found.clients[i]} from ${found.clients[j]}`;
  matrix("origins-client", found.by_client, found.clients, found.clients, from);
  matrix("origins-left", found.left_out, found.clients, found.clients, from);
  matrix("origins-round", found.by_round, found.rounds.map(String), found.clients, (i, r) => `ξ of ${found.clients[i]} from round ${found.rounds[r]}`);
}

function showMaking() {
  byId("config").textContent = board.config;
  byId("environment").textContent = board.environment || "Not recorded: the run has no checkpoint.";
  byId("data").textContent = board.clients.map((name, i) => `${name}: ${board.sizes[i]} ${board.unit}s to train` +
    (board.tests[i] ? `, ${board.tests[i].examples} ${board.classes.length ? "" : "tokens "}to test` : "")).join("\n") +
    (board.classes.length ? "\n\nclasses: " + board.classes.join(", ") : "");
  byId("made").textContent = `Made by pfedseq ${content.version}; charts by Apache ECharts.`;
}

function showAll() {
  showHead(); showScoreboard(); showMeasures(); showCurves(); showLeads(); showClientTools(); showClients();
  showClientTable(); showPredictions(); showFair(); showWorseOff(); showCosts(); showSizes(); showOrigins(); showMaking();
  hintAtMore();
}
function setTheme(name) { document.documentElement.dataset.theme = name; }

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (e) => { setTheme(e.matches ? "dark" : "light"); showAll(); });
byId("theme").onclick = () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); showAll(); };
byId("all").onclick = () => { off.clear(); showCurves(); };
byId("none").onclick = () => { for (const line of board.lines) if (line.label !== board.reference) off.add(line.title); showCurves(); };
byId("client-method").onchange = () => { showClientTools(); showClients(); showClientTable(); };
byId("client-seed").onchange = () => { showClients(); showClientTable(); };
byId("client-search").oninput = () => { clientPage = 0; showClientTable(); };
byId("prediction-method").onchange = showPredictions;
byId("prediction-client").onchange = showPredictions;
byId("worse-search").oninput = () => { worsePage = 0; showWorseOff(); };
byId("size-name").onchange = showSizes;
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(showAll, 120); });
showAll();
