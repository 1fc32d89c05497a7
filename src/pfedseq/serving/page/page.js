"use strict";

const at = (id) => document.getElementById(id);
let example = null; // a Blob: an image's file, or a text
let asked = 0;

function headers() {
  const token = at("token").value;
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function complain(sentence) {
  at("problem").textContent = sentence;
  at("problem").hidden = !sentence;
}

function counted(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

async function sentenceOf(response) {
  try {
    return (await response.json()).detail;
  } catch {
    return `The service answered ${response.status}.`;
  }
}

async function loadClients() {
  const response = await fetch("/clients", { headers: headers() });
  if (response.status === 401) {
    at("token").hidden = at("token-label").hidden = false;
    at("about").textContent = "This service requires a token.";
    return;
  }
  if (!response.ok) {
    complain(await sentenceOf(response));
    return;
  }
  const found = await response.json();
  const chosen = at("client").value;
  at("client").replaceChildren(...found.clients.map((name) => new Option(name, name)));
  if (found.clients.includes(chosen)) at("client").value = chosen;
  at("about").textContent =
    `${counted(found.clients.length, "client", "clients")}, ` +
    counted(found.class_names.length, "class", "classes") +
    (found.method ? `, tuned with ${found.method}.` : ".");
  const texts = found.unit === "text";
  at("drop").hidden = at("file").hidden = texts;
  at("text").hidden = at("text-label").hidden = at("ask").hidden = !texts;
  at("global-is").textContent = `Here: ${found.global_is}.`;
}

function show(list, prediction) {
  list.replaceChildren(
    ...prediction.map(({ name, probability }) => {
      const item = document.createElement("li");
      const row = document.createElement("div");
      row.className = "row";
      const label = document.createElement("span");
      label.className = "name";
      label.textContent = name;
      const share = document.createElement("span");
      share.className = "share";
      share.textContent = `${(100 * probability).toFixed(1)} %`;
      row.append(label, share);
      const bar = document.createElement("meter");
      bar.value = probability;
      bar.setAttribute("aria-hidden", "true");
      item.append(row, bar);
      return item;
    }),
  );
}

async function predict() {
  if (!example || !at("client").value) return;
  const mine = ++asked;
  complain("");
  const client = at("client").value;
  const query = new URLSearchParams({ client, top: 5, compare: true });
  let response;
  try {
    response = await fetch(`/predict?${query}`, {
      method: "POST",
      body: example,
      headers: { ...headers(), "Content-Type": example.type || "application/octet-stream" },
    });
  } catch {
    complain("The service cannot be reached.");
    return;
  }
  if (mine !== asked) return; // another example or client was chosen meanwhile
  if (!response.ok) {
    at("results").hidden = true;
    complain(await sentenceOf(response));
    return;
  }
  const answer = await response.json();
  at("personal-title").textContent = `Personal: ${answer.client}`;
  show(at("personal"), answer.prediction);
  show(at("global"), answer.global_prediction);
  at("results").hidden = false;
}

function take(file) {
  if (!file) return;
  example = file;
  const preview = at("preview");
  if (preview.src) URL.revokeObjectURL(preview.src);
  preview.src = URL.createObjectURL(file);
  preview.alt = file.name;
  preview.hidden = false;
  at("hint").textContent = file.name;
  predict();
}

at("preview").addEventListener("error", () => { at("preview").hidden = true; });
at("file").addEventListener("change", (event) => take(event.target.files[0]));
at("client").addEventListener("change", predict);
at("token").addEventListener("change", () => loadClients().then(predict));
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value;
  if (at("text").hidden || !text.trim()) return;
  example = new Blob([text], { type: "text/plain" });
  predict();
});
for (const kind of ["dragenter", "dragover"]) {
  at("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.add("over");
  });
}
for (const kind of ["dragleave", "drop"]) {
  at("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.remove("over");
  });
}
at("drop").addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
loadClients().catch(() => complain("The service cannot be reached."));
