"use strict";

function element(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function rows(pairs) {
  const table = document.createElement("table");
  for (const [left, right] of pairs) {
    table.append(element("tr", "", element("td", "", element("code", left)), element("td", right)));
  }
  return table;
}

function article(path, verb, operation) {
  const made = element("article", "", element("h2", `${verb.toUpperCase()} ${path}`));
  made.append(element("p", operation.description || operation.summary));
  const parameters = (operation.parameters || []).map((one) => [
    one.name + (one.required ? "" : " (optional)"),
    one.description || "",
  ]);
  if (parameters.length) made.append(rows(parameters));
  const responses = Object.entries(operation.responses).map(([status, one]) => [status, one.description]);
  made.append(element("p", "Answers"), rows(responses));
  let command = `curl '${location.origin}${path}'`;
  if (operation.requestBody) {
    command = `curl --data-binary @photo.jpg '${location.origin}${path}?client=0'`;
  }
  if (operation.security) command += " \\\n  -H 'Authorization: Bearer TOKEN'  # where one is set";
  made.append(element("pre", command));
  return made;
}

fetch("/openapi.json")
  .then((response) => response.json())
  .then((described) => {
    for (const [path, verbs] of Object.entries(described.paths)) {
      for (const [verb, operation] of Object.entries(verbs)) {
        document.getElementById("operations").append(article(path, verb, operation));
      }
    }
  });
