// The page's parts about single clients and their predictions; with many clients they aggregate.
"use strict";
const ROWS = 25;         // of a table's page
const MOST_BARS = 60;    // with more clients: their distribution in place of a bar for each
const MOST_MATRIX = 30;  // with more classes: the most frequent mistakes in place of a matrix
let clientPage = 0, worsePage = 0;

function showMeasures() {
  const names = [...new Set(board.lines.flatMap((line) => Object.keys(line.measures)))];
  const head = element("tr");
  head.append(element("th", "measure"), ...board.lines.map((line) => element("th", line.title)));
  const rows = names.map((name) => {
    const row = element("tr", undefined, name === board.headline.name ? "ours" : "");
    const known = board.lines.map((line) => line.measures[name]);
    row.append(element("td", known.find(Boolean).title, "name"));
    const best = [...new Set(known.filter(Boolean).map((one) => one.mean))].sort((a, b) => known.find(Boolean).higher ? b - a : a - b)[0];
    for (const one of known) {
      const text = one ? one.mean + (one.pooled === null ? "" : ` (${one.pooled})`) + (one.undefined ? `, not defined for ${one.undefined}` : "") : "–";
      row.append(element("td", text, one && one.mean === best && board.lines.length > 1 ? "best" : ""));
    }
    return row;
  });
  byId("measures").replaceChildren(head, ...rows);
}

function showClients() {
  const [line, run] = chosenRun();
  const many = board.clients.length > MOST_BARS;
  byId("bars-title").textContent = many ? "Distribution over clients" : "Every client, worst first";
  byId("heat-title").textContent = many ? "Clients by round: lowest, deciles, median and highest" : "Every client by round";
  if (many) { showSpread(line, run); showBands(line, run); } else showEach(line, run);
  byId("absent").textContent = [absences("Absent", run.absent), absences("Update refused", run.refused)].filter(Boolean).join(" ") ||
    "Every client took part in every round.";
}

// Names the absent clients while they are few, and counts them otherwise.
function absences(title, list) {
  if (!list.length) return "";
  const numbers = list.map(([, number]) => number), least = Math.min(...numbers), most = Math.max(...numbers);
  if (list.length > 12 || most > 8) {
    const range = least === most ? String(most) : `${least} to ${most}`;
    return `${title}: ${range} of ${board.clients.length.toLocaleString("en")} clients in ${list.length} of ${chosenRun()[1].clock.length} rounds.`;
  }
  return `${title}: ` + list.map(([t, , some]) => `round ${t}: ` + some.map((i) => board.clients[i]).join(", ")).join("; ") + ".";
}

function showEach(line, run) {
  const last = run.final;
  const order = last.map((value, i) => [value, i]).sort((a, b) => -better(a[0] ?? -1e9, b[0] ?? -1e9)).map((pair) => pair[1]);
  const names = order.map((i) => board.clients[i]);
  const letters = narrow() ? 12 : 22, longest = Math.min(letters, Math.max(...names.map((n) => n.length)));
  const tilted = names.length * (7 * longest + 8) > byId("bars").clientWidth - 66;
  const present = run.cells.flat().filter((v) => v !== null);
  const lowest = Math.min(...present), highest = Math.max(...present, lowest + 1e-6);
  const shades = ["#7b2d26", "#d98e4a", "#f2e8c9", "#6fae8f", "#1f6f78"];  // worst to best
  const tests = (i) => board.tests[i] ? `, n = ${board.tests[i].examples}` : "";
  draw("bars", {
    grid: { left: 56, right: 10, top: 10, bottom: tilted ? 24 + 5 * longest : 28 },
    tooltip: tooltip({ formatter: (p) => `${names[p.dataIndex]}: ${written(p.value)}${tests(order[p.dataIndex])}, ${board.sizes[order[p.dataIndex]]} training ${board.unit}s` }),
    xAxis: axis({ type: "category", data: names, axisLabel: { color: css("--muted"), rotate: tilted ? 55 : 0, formatter: (v) => short(v, letters), hideOverlap: true } }),
    yAxis: axis({ type: "value", axisLabel: scale() }),
    series: [{ type: "bar", itemStyle: { color: colour(line), borderRadius: [4, 4, 0, 0] }, barMaxWidth: 46, data: order.map((i) => last[i]),
      markLine: { silent: true, symbol: "none", data: [{ type: "average" }], lineStyle: { color: css("--ink"), type: "dashed" }, label: { formatter: "mean", color: css("--ink"), backgroundColor: css("--card"), padding: 2, position: "insideStartTop" } } }],
  });
  draw("heat", {
    grid: { left: narrow() ? 84 : 150, right: 12, top: 8, bottom: 84 },
    tooltip: tooltip({ formatter: (p) => `${names[p.data[1]]}, round ${run.rounds[p.data[0]]}: ${written(p.data[2])}` }),
    xAxis: axis({ type: "category", data: run.rounds.map(String), name: "round", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "category", data: names, splitLine: { show: false }, axisLabel: { color: css("--muted"), formatter: (v) => short(v, letters) } }),
    visualMap: { min: lowest, max: highest, orient: "horizontal", left: "center", bottom: 0, itemHeight: 90, itemWidth: 10,
      text: [written(highest), written(lowest)], textStyle: { color: css("--muted") }, inRange: { color: board.headline.higher ? shades : [...shades].reverse() } },
    series: [{ type: "heatmap", itemStyle: { borderColor: css("--card"), borderWidth: run.rounds.length > 45 ? 0 : 1 },
      data: run.cells.flatMap((row, x) => order.map((i, y) => [x, y, row[i]])).filter((cell) => cell[2] !== null) }],
  }, Math.min(940, 130 + 20 * Math.max(6, names.length)));
}

function showSpread(line, run) {
  const values = run.final.filter((v) => v !== null);
  const low = Math.min(...values), width = (Math.max(...values) - low || 1) / 20;
  const counts = new Array(20).fill(0);
  for (const value of values) counts[Math.min(19, Math.floor((value - low) / width))] += 1;
  draw("bars", {
    grid: { left: 56, right: 10, top: 10, bottom: 44 },
    tooltip: tooltip({ formatter: (p) => `${written(low + p.dataIndex * width)} to ${written(low + (p.dataIndex + 1) * width)}: ${p.value} clients` }),
    xAxis: axis({ type: "category", name: board.headline.title, nameLocation: "middle", nameGap: 28, data: counts.map((_, k) => fixed(low + (k + .5) * width)) }),
    yAxis: axis({ type: "value", name: "clients", minInterval: 1 }),
    series: [{ type: "bar", barCategoryGap: "8%", itemStyle: { color: colour(line) }, data: counts }],
  });
}

function showBands(line, run) {
  const parts = [0, .1, .5, .9, 1], titles = ["lowest", "1st decile", "median", "9th decile", "highest"];
  const sorted = run.cells.map((row) => row.filter((v) => v !== null).sort((a, b) => a - b));
  draw("heat", {
    grid: { left: 56, right: 110, top: 12, bottom: 46 },
    tooltip: tooltip({ trigger: "axis", valueFormatter: (v) => written(v) }),
    xAxis: axis({ type: "category", data: run.rounds.map(String), name: "round", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "value", scale: true, axisLabel: scale() }),
    series: parts.map((part, k) => ({ type: "line", name: titles[k], color: colour(line), symbol: run.rounds.length > 1 ? "none" : "circle",
      lineStyle: { width: part === .5 ? 3 : 1.4, type: part === 0 || part === 1 ? "dotted" : "solid" }, endLabel: { show: true, formatter: titles[k], color: css("--muted") },
      labelLayout: { moveOverlap: "shiftY" }, data: sorted.map((row) => row[Math.round(part * (row.length - 1))] ?? null) })),
  }, 340);
}

function showClientTable() {
  const seed = byId("client-seed").value;
  const columns = board.lines.map((line) => line.runs.find((run) => String(run.seed) === seed) ?? line.runs[0]);
  const wanted = byId("client-search").value.toLowerCase();
  const first = board.lines.findIndex((line) => line.label === byId("client-method").value);
  const found = board.clients.map((_, i) => i).filter((i) => board.clients[i].toLowerCase().includes(wanted))
    .sort((a, b) => -better(columns[first].final[a] ?? -1e9, columns[first].final[b] ?? -1e9));
  const pages = Math.max(1, Math.ceil(found.length / ROWS));
  clientPage = Math.min(clientPage, pages - 1);
  byId("client-search").parentElement.hidden = board.clients.length <= ROWS;
  const head = element("tr");
  const byClass = board.tests.some((one) => one && one.classes !== null);
  byId("largest").hidden = !byClass;
  head.append(element("th", "client"), element("th", board.classes.length ? "n test" : "test tokens"), element("th", "n train"),
    ...(byClass ? [element("th", "test classes"), element("th", "largest class, %")] : []),
    ...board.lines.map((line) => element("th", line.title)));
  const rows = found.slice(clientPage * ROWS, (clientPage + 1) * ROWS).map((i) => {
    const row = element("tr"), test = board.tests[i];
    row.append(element("td", board.clients[i], "name"), element("td", test ? String(test.examples) : "–"), element("td", String(board.sizes[i])),
      ...(byClass ? [element("td", String(test?.classes ?? "–")), element("td", test?.largest?.toFixed(1) ?? "–")] : []),
      ...columns.map((run) => element("td", run.final[i] === null ? "–" : fixed(run.final[i]))));
    return row;
  });
  byId("client-table").replaceChildren(head, ...rows);
  turnPages("client-pages", clientPage, found.length, (page) => { clientPage = page; showClientTable(); });
}

function turnPages(id, page, entries, show) {
  const pages = Math.ceil(entries / ROWS);
  const turn = (text, to) => {
    const button = element("button", text);
    button.type = "button";
    button.disabled = to < 0 || to >= pages;
    button.onclick = () => show(to);
    return button;
  };
  byId(id).replaceChildren(...(pages > 1 ? [turn("◀", page - 1),
    element("span", `page ${page + 1} of ${pages}, ${entries.toLocaleString("en")} entries`), turn("▶", page + 1)] : []));
}

function showWorseOff() {
  const seeds = severalSeeds(), { total, listed, pairs } = board.worse_off;
  const table = (id, titles, rows) => {
    const head = element("tr");
    head.append(...titles.map((title) => element("th", title)));
    byId(id).replaceChildren(...(rows.length ? [head] : []), ...rows);
  };
  const row = (cells) => {
    const made = element("tr");
    made.append(...cells.map((text, k) => element("td", text, k === 0 ? "name" : k === cells.length - 1 ? "bad" : "")));
    return made;
  };
  byId("worse-none").hidden = total > 0;
  byId("worse-list").hidden = total === 0;
  table("worse-pairs", ["method", "worse than", seeds ? "clients × seeds" : "clients", "mean difference"],
    pairs.map((one) => row([one.title, one.than, one.number.toLocaleString("en"), signed(board.headline.higher ? -one.mean : one.mean)])));
  const wanted = byId("worse-search").value.toLowerCase();
  const found = listed.filter((entry) => entry.client.toLowerCase().includes(wanted));
  byId("worse-search").parentElement.hidden = listed.length <= ROWS;
  byId("worse-listed").textContent = listed.length < total ? `The ${listed.length.toLocaleString("en")} largest of ${total.toLocaleString("en")} differences.` : "";
  worsePage = Math.min(worsePage, Math.max(0, Math.ceil(found.length / ROWS) - 1));
  table("worse", ["client", ...(seeds ? ["seed"] : []), "method", board.headline.title, "worse than", board.headline.title, "difference"],
    found.slice(worsePage * ROWS, (worsePage + 1) * ROWS).map((entry) => row([entry.client, ...(seeds ? [String(entry.seed)] : []), entry.title,
      fixed(entry.ours), entry.than, fixed(entry.theirs), signed(entry.ours - entry.theirs)])));
  turnPages("worse-pages", worsePage, found.length, (page) => { worsePage = page; showWorseOff(); });
}

function showPredictions() {
  const lines = board.lines.filter((line) => line.predictions);
  byId("predictions-section").hidden = !lines.length;
  if (!lines.length) return;
  options(byId("prediction-method"), lines.map((l) => [l.label, l.title]), byId("prediction-method").value || board.reference);
  const line = lines.find((l) => l.label === byId("prediction-method").value) ?? lines[0];
  const each = line.predictions.clients;
  options(byId("prediction-client"), [["", "all clients together"], ...(each ? board.clients.map((name, i) => [String(i), name]).filter(([i]) => each[i]) : [])],
    byId("prediction-client").value);
  const chosen = byId("prediction-client").value;
  const counts = chosen && each ? each[chosen] : line.predictions.together;
  const total = counts.reliability.reduce((sum, [n]) => sum + n, 0);
  byId("predictions-text").textContent = `${line.title}, models of round ${line.predictions.round}` +
    (severalSeeds() ? `, seed ${line.seeds[0]}` : "") + `, ${chosen ? board.clients[chosen] : "all clients together"}: n = ${total.toLocaleString("en")}.` +
    (each ? "" : " With this many clients and classes, the page has no counts by client.");
  showClasses(counts.confusion);
  showConfusion(counts.confusion);
  showReliability(line, counts.reliability);
}

function showClasses(confusion) {
  const there = new Map(), taken = new Map(), right = new Map();
  const add = (map, key, n) => map.set(key, (map.get(key) ?? 0) + n);
  for (const [t, p, n] of confusion) { add(there, t, n); add(taken, p, n); if (t === p) add(right, t, n); }
  const total = [...there.values()].reduce((a, b) => a + b, 0);
  const seen = [...new Set([...there.keys(), ...taken.keys()])].sort((a, b) => a - b);
  const head = element("tr");
  for (const title of ["class", "n", "share, %", "recall, %", "precision, %", "F1, %"]) head.append(element("th", title));
  const share = (a, b) => b ? (100 * a / b).toFixed(1) : "–";
  const rows = seen.slice(0, 200).map((c) => {
    const row = element("tr"), hits = right.get(c) ?? 0, n = there.get(c) ?? 0, m = taken.get(c) ?? 0;
    row.append(element("td", board.classes[c], "name"), element("td", String(n)), element("td", share(n, total)),
      element("td", share(hits, n)), element("td", share(hits, m)), element("td", share(2 * hits, n + m)));
    return row;
  });
  byId("classes").replaceChildren(head, ...rows);
}

function showConfusion(confusion) {
  const seen = [...new Set(confusion.flatMap(([t, p]) => [t, p]))].sort((a, b) => a - b);
  const matrixFits = seen.length <= MOST_MATRIX;
  byId("confusion").hidden = !matrixFits;
  byId("mistakes").parentElement.hidden = matrixFits;
  if (!matrixFits) {
    const head = element("tr");
    for (const title of ["true class", "predicted class", "examples"]) head.append(element("th", title));
    const worst = confusion.filter(([t, p]) => t !== p).sort((a, b) => b[2] - a[2]).slice(0, ROWS);
    byId("mistakes").replaceChildren(head, ...worst.map(([t, p, n]) => {
      const row = element("tr");
      row.append(element("td", board.classes[t], "name"), element("td", board.classes[p]), element("td", String(n)));
      return row;
    }));
    return;
  }
  const sums = new Map();
  for (const [t, , n] of confusion) sums.set(t, (sums.get(t) ?? 0) + n);
  const letters = narrow() ? 8 : 14, place = new Map(seen.map((c, k) => [c, k])), names = seen.map((c) => board.classes[c]);
  const longest = Math.min(letters, Math.max(...names.map((n) => n.length)));
  const shades = [css("--paper"), "#9cc3ef", "#1f5fbf"];
  draw("confusion", {
    grid: { left: narrow() ? 70 : 110, right: 10, top: 6, bottom: seen.length > 6 ? 44 + 5 * longest : 48 },
    tooltip: tooltip({ formatter: (p) => `${names[p.value[1]]} predicted as ${names[p.value[0]]}: ${p.value[3]} of ${sums.get(seen[p.value[1]])}` }),
    xAxis: axis({ type: "category", data: names, name: "predicted class", nameLocation: "middle", nameGap: seen.length > 6 ? 22 + 5 * longest : 30, splitLine: { show: false },
      axisLabel: { color: css("--muted"), interval: 0, rotate: seen.length > 6 ? 60 : 0, formatter: (v) => short(v, letters) } }),
    yAxis: axis({ type: "category", data: names, inverse: true, splitLine: { show: false }, axisLabel: { color: css("--muted"), interval: 0, formatter: (v) => short(v, letters) } }),
    visualMap: { show: false, min: 0, max: 1, dimension: 2, inRange: { color: shades } },
    series: [{ type: "heatmap", itemStyle: { borderColor: css("--line"), borderWidth: 1 },
      label: { show: seen.length <= (narrow() ? 6 : 14), formatter: (p) => p.value[3], fontSize: 10 },
      data: confusion.map(([t, p, n]) => ({ value: [place.get(p), place.get(t), n / sums.get(t), n], label: { color: legible(n / sums.get(t), shades) } })) }],
  }, Math.max(220, 120 + 24 * seen.length));
}

function showReliability(line, bins) {
  const points = bins.map(([n, right, confidence], k) => n ? [100 * confidence / n, 100 * right / n, n] : null).filter(Boolean);
  draw("reliability", {
    grid: { left: 56, right: 16, top: 10, bottom: 44 },
    tooltip: tooltip({ formatter: (p) => p.seriesType === "line" ? "" : `confidence ${p.data[0].toFixed(0)} %, accuracy ${p.data[1].toFixed(0)} %, n = ${p.data[2]}` }),
    xAxis: axis({ type: "value", min: 0, max: 100, name: "confidence, %", nameLocation: "middle", nameGap: 28 }),
    yAxis: axis({ type: "value", min: 0, max: 100, axisLabel: { color: css("--muted"), formatter: "{value} %" } }),
    series: [
      { type: "line", silent: true, symbol: "none", lineStyle: { type: "dashed", color: css("--muted"), width: 1 }, data: [[0, 0], [100, 100]] },
      { type: "line", silent: true, symbol: "none", lineStyle: { color: colour(line), width: 2 }, data: points.map(([x, y]) => [x, y]) },
      { type: "scatter", itemStyle: { color: colour(line) }, data: points, symbolSize: (v) => 5 + 16 * Math.sqrt(v[2] / Math.max(...points.map((p) => p[2]))) },
    ],
  }, 300);
}

function hintAtMore() {
  for (const place of document.querySelectorAll(".scroll")) {
    if (place.previousElementSibling?.className === "more") place.previousElementSibling.remove();
    if (place.scrollWidth > place.clientWidth + 4) place.before(element("p", "Scroll the table sideways for more columns →", "more"));
  }
}
