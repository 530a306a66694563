"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name === "style") node.style.cssText = value;    // a strict policy rejects the attribute
    else node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function drawTitle() {                          // the name of what was run, and its settings
  $("title").textContent = data.title;
  for (const [label, value] of Object.entries(data.settings))
    $("settings").append(make("div", {}, make("dt", {}, label), make("dd", {}, value)));
}
