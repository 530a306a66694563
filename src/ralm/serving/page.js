// The page: a chat whose answers have sources. It is kept in this tab, until "new chat" or until the tab is closed.
const KEPT = "ralm-chat";
const turns = [];                               // {asked, answers: {with, without}, shown}; an answer has text, sources, ...
let served = null;                              // what the server said of itself
let writing = null;                             // {turn, way, stop}: the answer that is written

const ask = async (path, more = {}) => {       // the answer of the server; an error that says what was wrong
  const key = $("key").value;
  const headers = {...(key ? {Authorization: "Bearer " + key} : {}), ...more.headers};
  const answer = await fetch(path, {...more, headers, credentials: "omit", cache: "no-store"});
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Error(said?.error?.message ?? `the server answered with status ${answer.status}.`);
};

async function learn() {
  try { served = await (await ask("choices")).json(); }
  catch (error) { $("told").textContent = error.message; return; }
  $("told").textContent = served.can.chat ? "" : "this model has no chat template: start the server with another --prompt";
  $("title").textContent = document.title = [served.corpus, served.model].filter(Boolean).join(" · ");
  const {stride, ...shown} = served.defaults;   // a chat retrieves once
  $("settings").replaceChildren(...Object.entries(shown).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, String(value ?? "none")))));
  $("tell").disabled = !served.can.chat;
  $("reads").parentElement.hidden = !canCompare();
  $("reads").checked = served.defaults.index !== null;
  $("said").placeholder = served.can.turns ? "Ask" : "Ask one question; this prompt knows no earlier ones";
  drawChat();
}

async function* eventsOf(answer) {              // the JSON of server-sent events
  const decoder = new TextDecoder();
  let held = "";
  for (const reader = answer.body.getReader();;) {
    const {done, value} = await reader.read();
    if (done) return;
    const events = (held + decoder.decode(value, {stream: true})).split("\n\n");
    held = events.pop();
    for (const event of events)
      if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
  }
}

const characters = text => [...text];           // spans count characters, not UTF-16 units
const kindOf = source => source.known === "measured"
  ? `measured: ${nats(source.gain)} nats${source.quotes.length ? "" : ", no words quoted"}` : {retrieved: "retrieved only"}[source.known] ?? source.known;
const EXPLAINED = {
  measured: "the answer is likelier with this passage than with the same prompt without passages",
  cited: "the model wrote its number; nothing was measured",
  quoted: "words of the answer stand in this passage; nothing was measured",
  retrieved: "found for the question; nothing shows that the answer comes from it",
};

const spansOf = source => source.known === "measured" ? source.spans : source.known === "cited" ? source.cited
  : source.known === "quoted" ? source.quotes.map(one => one.answer) : [];

function citedText(answer, turn, way) {         // the text with its citations as buttons, and the cited words marked
  const all = characters(answer.text), ends = new Map(), edges = new Set([0, all.length]), parts = [];
  answer.sources.forEach((source, place) => {
    for (const [begin, end] of [...spansOf(source), ...source.cited]) {
      edges.add(begin).add(end);
      ends.set(end, [...new Set([...ends.get(end) ?? [], place])]);
    }
  });
  const within = (spans, begin) => spans.some(([first, last]) => first <= begin && begin < last);
  const sorted = [...edges].sort((one, other) => one - other);
  sorted.forEach((begin, number) => {
    for (const place of ends.get(begin) ?? []) {
      const source = answer.sources[place], label = `source ${source.label}: ${nameOf(source.passage)}, ${kindOf(source)}`;
      const button = make("button", {type: "button", class: "cite", "aria-label": label, title: label}, String(source.label));
      button.onclick = () => openSource(turn, way, place);
      parts.push(button);
    }
    const text = all.slice(begin, sorted[number + 1]).join("");
    if (!text || answer.sources.some(source => within(source.cited, begin))) return;
    const marks = answer.sources.some(source => source.known !== "cited" && within(spansOf(source), begin));
    parts.push(marks ? make("mark", {}, text) : text);
  });
  return parts;
}

function markedText(text, spans) {              // a passage with the words that the answer quotes marked
  const all = characters(text), parts = [];
  let at = 0;
  for (const [begin, end] of [...spans].sort((one, other) => one[0] - other[0])) {
    if (end <= at) continue;
    parts.push(all.slice(at, Math.max(at, begin)).join(""), make("mark", {}, all.slice(Math.max(at, begin), end).join("")));
    at = end;
  }
  return [...parts, all.slice(at).join("")];
}

const wordsOf = text => new Set((text.toLowerCase().match(/[\p{L}\p{N}]{3,}/gu) ?? []));

function sourceItem(source, query) {
  const {passage} = source, url = source.url ?? "";
  const shared = [...wordsOf(query)].filter(word => wordsOf(`${passage.title} ${passage.text}`).has(word));
  const details = make("details", {}, make("summary", {}, make("b", {}, `[${source.label}]`), make("span", {}, nameOf(passage)),
    make("span", {class: `kind ${source.known}`, title: EXPLAINED[source.known]}, kindOf(source))));
  details.ontoggle = () => {
    if (details.childElementCount > 1) return;
    const words = shared.length ? `; it shares with the query: ${shared.join(", ")}` : "";
    details.append(make("div", {class: "why"}, `${source.known}: ${EXPLAINED[source.known]}. Found at rank ${source.rank}${words}, in ${placeOf(passage)}.`),
      make("p", {tabindex: "0"}, ...markedText(passage.text, source.quotes.map(one => one.passage))));
    if (/^https?:\/\//i.test(url)) details.append(make("div", {class: "why"}, make("a", {href: url, rel: "noreferrer", target: "_blank"}, url)));
  };
  return make("li", {}, details);
}

function drawAnswer(turn, way, node) {          // an answer, what was retrieved for it, and what can be done
  const answer = turn.answers[way], busy = writing?.turn === turn && writing.way === way;
  const text = make("div", {class: "answer", ...(busy ? {"aria-busy": "true"} : {})}, ...(answer.sources ? citedText(answer, turn, way) : [answer.text]));
  node.replaceChildren(text);
  if (answer.fault) node.append(make("p", {class: "fault", role: "alert"}, answer.fault));
  if (busy) return;
  const acts = make("div", {class: "acts"}), last = turn === turns[turns.length - 1];
  const act = (name, run, attributes = {}) => {
    const button = make("button", {type: "button", ...attributes}, name);
    button.onclick = run;
    acts.append(button);
  };
  act("copy", () => copy(answer.text));
  if (last && !writing) act("retry", () => answerTurn(turn, way));
  if (canCompare() && !writing)
    for (const [name, other] of [["with passages", "with"], ["without", "without"]])
      act(name, () => show(turn, other), {"aria-pressed": String(way === other)});
  if (answer.stopped) acts.append(make("span", {}, "stopped"));
  node.append(acts);
  if (!answer.sources?.length) return;
  const used = answer.sources.filter(source => source.known !== "retrieved").length;
  const found = make("details", {class: "found"}, make("summary", {}, `${count(answer.sources.length)} ${answer.sources.length === 1 ? "passage" : "passages"} retrieved, ${count(used)} known to be used`),
    make("div", {class: "why"}, `by ${answer.retriever ?? "the server"} for “${answer.query}”`),
    make("ol", {}, ...answer.sources.map(source => sourceItem(source, answer.query))));
  found.open = used > 0;
  node.append(found);
}

function openSource(turn, way, place) {
  const found = turn.node.querySelector(".found"), details = found?.querySelectorAll("li > details")[place];
  if (!details) return;
  found.open = details.open = true;
  details.querySelector("summary").focus();
  details.scrollIntoView({block: "nearest"});
}

function drawTurn(turn) {
  if (!turn.node) {
    turn.node = make("div");
    $("log").append(make("li", {}, make("div", {class: "asked"}, turn.asked), turn.node));
  }
  drawAnswer(turn, turn.shown, turn.node);
}

function drawChat() {
  $("hello").hidden = turns.length > 0;
  $("fresh").disabled = !turns.length;
  $("halt").disabled = !writing;
  turns.forEach(drawTurn);
  const kept = turns.map(({asked, answers, shown}) => ({asked, answers, shown}));
  try { sessionStorage.setItem(KEPT, JSON.stringify(kept)); } catch { /* a browser may keep nothing */ }
}

const canCompare = () => Boolean(served && served.defaults.index !== null);

async function copy(text) {
  try { await navigator.clipboard.writeText(text); $("told").textContent = "copied"; }
  catch { $("told").textContent = "this browser does not let the page copy"; }
}

// ---- asking

function messagesUpTo(turn, way) {
  const said = [];
  for (const one of turns.slice(0, turns.indexOf(turn))) {
    const answer = one.answers[way] ?? one.answers[one.shown];
    if (answer.text) said.push({role: "user", content: one.asked}, {role: "assistant", content: answer.text});
  }
  return [...(served.can.turns ? said : []), {role: "user", content: turn.asked}];
}

function chatBody(turn, way) {
  return {model: served.model, messages: messagesUpTo(turn, way), stream: true,
    ...(way === "without" && canCompare() ? {ralm: {index: null}} : {})};
}

function take(answer, event, turn) {            // a piece of an answer; the last has its sources
  const [choice] = event.choices ?? [];
  answer.text += choice?.delta?.content ?? "";
  const told = event.ralm?.choices?.find(one => one.sources);
  for (const passage of event.ralm?.passages ?? []) answer.passages[passage.passage] = passage;
  if (!told) return;
  const urls = new Map((event.search_results ?? []).map(one => [one.passage, one.url]));
  Object.assign(answer, {retriever: event.ralm.retriever, query: turn.asked});
  answer.sources = told.sources.map((source, place) => ({...source, rank: place + 1, label: source.number ?? place + 1,
    passage: answer.passages[source.passage], url: urls.get(source.passage)}));
}

async function answerTurn(turn, way) {
  halt();
  if (!served) await learn();
  if (!served) return;
  const stop = new AbortController(), answer = turn.answers[way] = {text: "", passages: {}};
  turn.shown = way;
  const own = writing = {turn, way, stop};
  $("told").textContent = "writing …";
  drawChat();
  turn.node.scrollIntoView({block: "nearest"});
  try {
    const response = await ask("v1/chat/completions", {method: "POST", signal: stop.signal, body: JSON.stringify(chatBody(turn, way)),
      headers: {"Content-Type": "application/json"}});
    for await (const event of eventsOf(response)) {
      if (event.error) throw new Error(event.error.message);
      take(answer, event, turn);
      if (turn.shown === way) turn.node.querySelector(".answer").textContent = answer.text;
    }
    if (writing === own) $("told").textContent = "done";
  } catch (error) {
    if (!stop.signal.aborted) { answer.fault = error.message; $("told").textContent = "no answer"; }
  } finally {
    if (stop.signal.aborted) answer.stopped = true;
    if (writing === own) writing = null;
    drawChat();
  }
}

function say() {
  const asked = $("said").value;
  if (!asked.trim() || !served?.can.chat) return;
  halt();
  const turn = {asked, answers: {}, shown: $("reads").checked ? "with" : "without"};
  turns.push(turn);
  $("said").value = "";
  answerTurn(turn, turn.shown);
}

function halt() {
  if (!writing) return;
  const {turn, stop} = writing;
  writing = null;
  stop.abort();
  $("told").textContent = "stopped";
  drawTurn(turn);
  $("halt").disabled = true;
}

function show(turn, way) {                      // the other answer, which is written when it is first asked for
  if (turn.answers[way]) { turn.shown = way; drawChat(); turn.node.querySelector("[aria-pressed=true]")?.focus(); }
  else answerTurn(turn, way);
}

function fresh() {
  halt();
  turns.length = 0;
  $("log").replaceChildren();
  $("told").textContent = "";
  drawChat();
  $("said").focus();
}

$("say").addEventListener("submit", event => { event.preventDefault(); say(); });
$("said").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); say(); }
});
$("halt").onclick = () => { halt(); drawChat(); };
document.addEventListener("keydown", event => { if (event.key === "Escape" && writing) { halt(); drawChat(); } });
$("key").addEventListener("change", learn);
$("keyed").addEventListener("submit", event => { event.preventDefault(); learn(); });
$("fresh").onclick = fresh;
try { turns.push(...JSON.parse(sessionStorage.getItem(KEPT) ?? "[]").filter(one => one.answers[one.shown])); } catch { /* nothing is kept */ }

$("keyed").hidden = !data.has_key;
drawChat();
(data.has_key ? Promise.resolve() : learn()).then(() => { document.body.dataset.ready = "true"; });
