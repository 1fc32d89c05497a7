// The page's script: reads the content, fills tables as text, and hands numbers to ECharts.
"use strict";
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
const signed = (value) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(2);
const narrow = () => innerWidth < 700;
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
  byId("lede").textContent = `${board.lines.length} methods, ${seeds.size} seed${seeds.size > 1 ? "s" : ""}, ` +
    `${board.clients.length} clients, ${board.classes.length} classes, ` +
    `${board.images.toLocaleString("en")} images in the data set. ${board.notes.join(". ")}`;
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
  const ranked = [...board.lines].sort((a, b) => b.scores.client_mean[0] - a.scores.client_mean[0]);
  const fairest = [...board.lines].sort((a, b) => b.scores.worst_client[0] - a.scores.worst_client[0])[0];
  const cards = [
    [ranked[0].scores.client_mean[0].toFixed(2) + " %", `highest client mean: ${ranked[0].title}`],
    [fairest.scores.worst_client[0].toFixed(2) + " %", `highest worst client: ${fairest.title}`],
  ];
  const rival = board.leads.length ? [...board.leads].sort((a, b) => a.mean - b.mean)[0] : null;
  if (rival) {
    const ours = board.lines.find((line) => line.label === board.reference).title;
    const sure = rival.low !== null && rival.low * rival.high > 0;
    cards.push([signed(rival.mean), `${ours} against ${rival.title}, its strongest rival` +
      (rival.low === null ? "" : sure ? "; beyond doubt at 95 %" : "; not decided at 95 %")]);
  }
  const unfinished = board.lines.filter((line) => line.rounds.at(-1) < line.planned);
  if (unfinished.length) cards.push([String(unfinished.length), "not finished: " + unfinished.map((l) => l.title).join(", ")]);
  byId("cards").replaceChildren(...cards.map(([value, text]) => {
    const card = element("div", undefined, "card");
    card.append(element("b", value), element("span", text));
    return card;
  }));
}

function showScoreboard() {
  const columns = [["client mean", "client_mean"], ["by samples", "sample_weighted"],
    ["worst client", "worst_client"], ["bottom decile", "bottom_decile"],
    ["best on validation", "best_on_validation"], ["best on test*", "best_on_test_optimistic"]];
  const head = element("tr");
  head.append(element("th", "method"));
  for (const [title, key] of columns) head.append(element("th", title, key === "best_on_test_optimistic" ? "optimistic" : ""));
  head.append(element("th", "s / round"), element("th", "bytes"), element("th", "round"));
  const rows = [head];
  const places = columns.map(([, key]) => {
    const values = board.lines.map((l) => l.scores[key] ? l.scores[key][0].toFixed(2) : null);
    return [...new Set(values.filter((v) => v !== null))].sort((a, b) => b - a);
  });
  for (const line of board.lines) {
    const row = element("tr", undefined, line.label === board.reference ? "ours" : "");
    row.append(element("td", line.title, "name"));
    columns.forEach(([, key], number) => {
      const value = line.scores[key];
      const text = value === null ? "–" : value[0].toFixed(2) +
        (value.length > 1 && line.seeds.length > 1 ? " ±" + value[1].toFixed(2) : "");
      const place = value === null ? -1 : places[number].indexOf(value[0].toFixed(2));
      const mark = key === "best_on_test_optimistic" ? "optimistic" : place === 0 ? "best" : place === 1 ? "second" : "";
      row.append(element("td", text, mark));
    });
    row.append(element("td", line.seconds.toFixed(2)), element("td", bytes(line.bytes)),
      element("td", `${line.rounds.at(-1)}/${line.planned}`));
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
    tooltip: tooltip({ trigger: "axis", order: "valueDesc", valueFormatter: (v) => v === undefined ? "–" : v.toFixed(2) + " %" }),
    xAxis: axis({ type: "value", name: "round", nameLocation: "middle", nameGap: 28, min: "dataMin", max: "dataMax",
      minInterval: 1, splitLine: { show: false } }),
    yAxis: axis({ type: "value", scale: true, axisLabel: { color: css("--muted"), formatter: "{value} %" } }),
    series,
  }, phone ? 330 + legendHeight : 460);
  chart.off("legendselectchanged");
  chart.on("legendselectchanged", (event) => {
    off.clear();
    for (const [name, on] of Object.entries(event.selected)) if (!on) off.add(name);
  });
}

function showLeads() {
  const reference = board.lines.find((line) => line.label === board.reference);
  byId("leads-title").textContent = `${reference.title} against the others`;
  byId("leads").parentElement.hidden = !board.leads.length;
  if (!board.leads.length) return;
  const leads = [...board.leads].sort((a, b) => b.mean - a.mean);
  const whiskers = leads.map((lead, row) => lead.low === null ? null : [lead.low, lead.high, row]).filter(Boolean);
  draw("leads", {
    grid: { left: 110, right: 24, top: 8, bottom: 40 },
    tooltip: tooltip({ formatter: (p) => { const l = leads[p.data[1] ?? p.data[2]];
      return `${l.title}: ${signed(l.mean)}` + (l.low === null ? "" : ` [${signed(l.low)}, ${signed(l.high)}]`) + `, ${l.seeds} seed(s)`; } }),
    xAxis: axis({ type: "value", name: "points ahead", nameLocation: "middle", nameGap: 26 }),
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
}
function showClients() {
  const [line, run] = chosenRun();
  const last = run.cells.at(-1);
  const order = last.map((value, i) => [value, i]).sort((a, b) => (a[0] ?? -1) - (b[0] ?? -1)).map((pair) => pair[1]);
  const names = order.map((i) => board.clients[i]);
  const room = narrow() ? 12 : 22, tilted = names.length > 8 || narrow();
  const scale = { min: 0, max: 1, show: false, inRange: { color: ["#7b2d26", "#d98e4a", "#f2e8c9", "#6fae8f", "#1f6f78"] } };
  const present = run.cells.flat().filter((v) => v !== null);
  const lowest = Math.min(...present), highest = Math.max(...present, lowest + 1);
  draw("bars", {
    grid: { left: 48, right: 10, top: 10, bottom: tilted ? 96 : 28 },
    tooltip: tooltip({ formatter: (p) => `${names[p.dataIndex]}: ${p.value} %, ${board.sizes[order[p.dataIndex]]} training images` }),
    xAxis: axis({ type: "category", data: names, axisLabel: { color: css("--muted"), rotate: tilted ? 55 : 0, formatter: (v) => short(v, room), hideOverlap: true } }),
    yAxis: axis({ type: "value", axisLabel: { color: css("--muted"), formatter: "{value} %" } }),
    series: [{ type: "bar", itemStyle: { color: colour(line), borderRadius: [4, 4, 0, 0] }, barMaxWidth: 46,
      data: order.map((i) => last[i] === null ? null : last[i]),
      markLine: { silent: true, symbol: "none", data: [{ type: "average" }], lineStyle: { color: css("--ink"), type: "dashed" }, label: { formatter: "mean", color: css("--muted"), position: "insideEndTop" } } }],
  });
  draw("heat", {
    grid: { left: narrow() ? 84 : 150, right: 12, top: 8, bottom: 46 },
    tooltip: tooltip({ formatter: (p) => `${names[p.data[1]]}, round ${run.rounds[p.data[0]]}: ${p.data[2]} %` }),
    xAxis: axis({ type: "category", data: run.rounds.map(String), name: "round", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "category", data: names, splitLine: { show: false }, axisLabel: { color: css("--muted"), formatter: (v) => short(v, room) } }),
    visualMap: { ...scale, min: lowest, max: highest },
    series: [{ type: "heatmap", itemStyle: { borderColor: css("--card"), borderWidth: run.rounds.length > 45 ? 0 : 1 },
      data: run.cells.flatMap((row, x) => order.map((i, y) => [x, y, row[i]])).filter((cell) => cell[2] !== null) }],
  }, Math.min(900, 90 + 20 * Math.max(6, names.length)));
  byId("absent").textContent = run.absent.length
    ? "Absent: " + run.absent.map(([t, who]) => `round ${t}: ` + who.map((i) => board.clients[i]).join(", ")).join("; ")
    : "Nobody was absent from a round.";
}

function showFair() {
  const lines = [...board.lines].sort((a, b) => b.scores.worst_client[0] - a.scores.worst_client[0]);
  const value = (line, key) => line.scores[key][0];
  draw("fair", {
    grid: { left: 110, right: 24, top: 8, bottom: 40 },
    tooltip: tooltip({ trigger: "axis", axisPointer: { type: "none" }, formatter: (all) => { const l = lines[all[0].dataIndex];
      return `${l.title}\nworst ${value(l, "worst_client").toFixed(2)} %, bottom decile ${value(l, "bottom_decile").toFixed(2)} %\n` +
        `mean ${value(l, "client_mean").toFixed(2)} %, best ${l.scores.best_client.toFixed(2)} %\nstandard deviation over clients ${l.scores.spread.toFixed(2)}`; } }),
    xAxis: axis({ type: "value", scale: true, axisLabel: { color: css("--muted"), formatter: "{value} %" } }),
    yAxis: axis({ type: "category", inverse: true, data: lines.map((l) => l.title), splitLine: { show: false } }),
    series: [
      { type: "bar", stack: "range", silent: true, itemStyle: { color: "transparent" }, data: lines.map((l) => value(l, "worst_client")) },
      { type: "bar", stack: "range", barWidth: 8, itemStyle: { borderRadius: 4, opacity: .45 },
        data: lines.map((l) => ({ value: l.scores.best_client - value(l, "worst_client"), itemStyle: { color: colour(l) } })) },
      { type: "scatter", symbolSize: 11, z: 5, data: lines.map((l, row) => ({ value: [value(l, "client_mean"), row], itemStyle: { color: colour(l) } })) },
      { type: "scatter", symbol: "diamond", symbolSize: 9, z: 4, data: lines.map((l, row) => ({ value: [value(l, "bottom_decile"), row], itemStyle: { color: css("--ink") } })) },
    ],
  }, 90 + 26 * lines.length);
}

function showBehind() {
  const head = element("tr");
  for (const title of ["client", "seed", "method", "accuracy", "worse than", "accuracy", "points"]) head.append(element("th", title));
  const rows = board.behind.slice(0, 200).map((entry) => {
    const row = element("tr");
    row.append(element("td", entry.client, "name"), element("td", String(entry.seed)), element("td", entry.title),
      element("td", entry.ours.toFixed(2)), element("td", entry.than), element("td", entry.theirs.toFixed(2)),
      element("td", signed(entry.ours - entry.theirs), "bad"));
    return row;
  });
  const table = byId("behind");
  if (rows.length) { table.replaceChildren(head, ...rows); return; }
  const row = element("tr");
  row.append(element("td", "Nobody, as far as these runs tell.", "name"));
  table.replaceChildren(row);
}

function showCosts() {
  for (const [id, key, label] of [["cost-seconds", "seconds", (v) => v.toFixed(2) + " s"], ["cost-bytes", "bytes", bytes]]) {
    draw(id, {
      grid: { left: 52, right: 30, top: 22, bottom: 34 },
      tooltip: tooltip({ formatter: (p) => `${p.name}: ${p.data.value[1].toFixed(2)} %, ${label(p.data.value[0])}` }),
      xAxis: axis({ type: "value", axisLabel: { color: css("--muted"), formatter: label, hideOverlap: true }, splitNumber: 4 }),
      yAxis: axis({ type: "value", scale: true, axisLabel: { color: css("--muted"), formatter: "{value} %" } }),
      series: [{ type: "scatter", symbolSize: 12, labelLayout: { hideOverlap: true, moveOverlap: "shiftY" },
        label: { show: true, position: "top", formatter: (p) => p.name, color: css("--muted"), fontSize: 11 },
        data: board.lines.map((l) => ({ name: l.title, value: [l[key], l.scores.client_mean[0]], itemStyle: { color: colour(l) } })) }],
    });
  }
}

function showSizes() {
  const found = board.lines.flatMap((line) => line.runs.map((run) => [line, run])).filter(([, run]) => run.server);
  byId("sizes-section").hidden = !found.length;
  if (!found.length) return;
  const entries = found.flatMap(([line, run]) => Object.keys(run.server.sizes).map((name) => [line, run, name]));
  options(byId("size-name"), entries.map(([line, run, name], k) => [String(k), `${name} (${line.title}, seed ${run.seed})`]), byId("size-name").value);
  const [, run, name] = entries[Number(byId("size-name").value) || 0];
  const layers = run.server.sizes[name];
  const cells = layers.flatMap((row, x) => row.map((value, layer) => [x, layer, value]));
  const values = cells.map((c) => c[2]);
  draw("sizes", {
    grid: { left: 56, right: 92, top: 8, bottom: 46 },
    tooltip: tooltip({ formatter: (p) => `round ${run.server.rounds[p.data[0]]}, layer ${p.data[1] + 1}: ${p.data[2].toExponential(2)}` }),
    xAxis: axis({ type: "category", data: run.server.rounds.map(String), name: "round", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "category", data: layers[0].map((_, k) => String(k + 1)), name: "layer", splitLine: { show: false } }),
    visualMap: { min: Math.min(...values), max: Math.max(...values, 1e-12), right: 0, top: "center", calculable: true, precision: 4,
      formatter: (v) => v.toExponential(1), textStyle: { color: css("--muted") }, inRange: { color: ["#f3ecd8", "#e0a458", "#b04a3a", "#4a1e3d"] } },
    series: [{ type: "heatmap", data: cells }],
  });
}

function matrix(id, rows, across, down, names) {
  const most = Math.max(1e-9, ...rows.flat().map(Math.abs));
  const room = narrow() ? 9 : 14;
  draw(id, {
    grid: { left: narrow() ? 74 : 104, right: 10, top: 6, bottom: 96 },
    tooltip: tooltip({ formatter: (p) => names(p.data[1], p.data[0]) + `: ${(100 * p.data[2]).toFixed(1)} %` }),
    xAxis: axis({ type: "category", data: across, splitLine: { show: false }, axisLabel: { color: css("--muted"), rotate: across.length > 6 ? 60 : 0, formatter: (v) => short(v, room) } }),
    yAxis: axis({ type: "category", data: down, inverse: true, splitLine: { show: false }, axisLabel: { color: css("--muted"), formatter: (v) => short(v, room) } }),
    visualMap: { min: -most, max: most, orient: "horizontal", left: "center", bottom: 0, precision: 2, itemHeight: 90, itemWidth: 10,
      text: [`+${(100 * most).toFixed(0)} %`, `−${(100 * most).toFixed(0)} %`], textStyle: { color: css("--muted") }, inRange: { color: ["#b3361f", "#f0ede4", "#1f5fbf"] } },
    series: [{ type: "heatmap", label: { show: across.length <= 8 && !narrow(), formatter: (p) => (100 * p.data[2]).toFixed(0), fontSize: 10, color: "#222" },
      itemStyle: { borderColor: css("--card"), borderWidth: 1 },
      data: rows.flatMap((row, y) => row.map((value, x) => [x, y, value])) }],
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
    "its cells say what part of it came from whose updates (gradient × input; negative parts pull the other way). " +
    "Left out: how much of ξ is gone when that client's updates are really zero. " +
    (found.agreement === null ? "" : `The two accounts correlate with ${found.agreement.toFixed(2)}.`);
  const from = (i, j) => `ξ of ${found.clients[i]} from ${found.clients[j]}`;
  matrix("origins-client", found.by_client, found.clients, found.clients, from);
  matrix("origins-left", found.left_out, found.clients, found.clients, from);
  matrix("origins-round", found.by_round, found.rounds.map(String), found.clients, (i, r) => `ξ of ${found.clients[i]} from round ${found.rounds[r]}`);
}

function showMaking() {
  byId("config").textContent = board.config;
  byId("environment").textContent = board.environment || "The run wrote down none.";
  byId("data").textContent = board.clients.map((name, i) => `${name}: ${board.sizes[i]} training images`).join("\n") +
    "\n\nclasses: " + board.classes.join(", ");
  byId("made").textContent = `Made by pfedseq ${content.version}; charts by Apache ECharts.`;
}

function showAll() {
  showHead(); showScoreboard(); showCurves(); showLeads(); showClientTools(); showClients(); showFair();
  showBehind(); showCosts(); showSizes(); showOrigins(); showMaking();
}
function setTheme(name) { document.documentElement.dataset.theme = name; }

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (e) => { setTheme(e.matches ? "dark" : "light"); showAll(); });
byId("theme").onclick = () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); showAll(); };
byId("all").onclick = () => { off.clear(); showCurves(); };
byId("none").onclick = () => { for (const line of board.lines) if (line.label !== board.reference) off.add(line.title); showCurves(); };
byId("client-method").onchange = () => { showClientTools(); showClients(); };
byId("client-seed").onchange = showClients;
byId("size-name").onchange = showSizes;
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(showAll, 120); });
showAll();
