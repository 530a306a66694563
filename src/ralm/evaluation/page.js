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

const commas = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const count = n => commas.format(n);
const signed = (x, digits) => (x < 0 ? "−" : "+") +
  Math.abs(x).toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const nats = x => signed(x, Math.abs(x) < 100 ? 2 : 0);
const nameOf = passage => passage.title || passage.document_id;
const ORIGIN = "_origin";                       // the path and line of a record whose id does not say them
const placeOf = ({document_id, metadata = {}}) => [document_id, ...(metadata[ORIGIN] ? [metadata[ORIGIN]] : []),
  ...(Number.isInteger(metadata.page) ? [`page ${metadata.page}`] : [])].join(", ");

function drawTitle() {                          // the name of what was run, and its settings
  $("title").textContent = data.title;
  for (const [label, value] of Object.entries(data.settings))
    $("settings").append(make("div", {}, make("dt", {}, label), make("dd", {}, value)));
}
