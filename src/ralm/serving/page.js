// The page: a chat whose answers have sources, and a playground that shows what each token owes to passages.
const OF_READING = ["index", "retriever", "reader", "documents", "stride"];
const OF_SAMPLING = ["max_tokens", "temperature", "seed"];
const FIELDS = ["prompt", ...OF_READING, ...OF_SAMPLING];
const passages = new Map();
const read = new TracedText($("text"), $("card"), passages), plain = new TracedText($("plain"), $("card"), passages, "p");
let served = null, going = null;               // what the server said of itself; what stops the streams under way

const ask = async (path, more = {}) => {       // the answer of the server; an error that says what was wrong
  const key = $("key").value;
  const headers = {...(key ? {Authorization: "Bearer " + key} : {}), ...more.headers};
  const answer = await fetch(path, {...more, headers, credentials: "omit", cache: "no-store"});
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Error(said?.error?.message ?? `the server answered with status ${answer.status}.`);
};

// ---- what may be chosen

async function learn() {
  try { served = await (await ask("choices")).json(); }
  catch (error) { $("status").textContent = $("told").textContent = error.message; return; }
  $("status").textContent = $("told").textContent = "";
  $("title").textContent = document.title = [served.corpus, served.model].filter(Boolean).join(" · ");
  $("settings").replaceChildren(...Object.entries(served.defaults).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, String(value ?? "none")))));
  const reads = served.defaults.index !== null, compares = reads && "index" in served.choices;
  for (const name of ["with", "gave", "search", "legend"]) $(name).hidden = !reads;
  $("without").hidden = reads && !compares;
  $("columns").classList.toggle("one", !reads || !compares);
  OF_READING.forEach(name => offer($(name), reads ? served.choices[name] : undefined, served.defaults[name]));
  $("max_tokens").max = served.most_new_tokens ?? "";
  offerChat();
  followLink();
}

function offer(field, choice, usual) {          // let a field choose, if there is a choice
  const values = choice?.values;
  field.parentElement.hidden = !choice || (values && values.length < 2);
  if (!choice) return;
  if (!values) { Object.assign(field, {min: choice.least, max: choice.most, placeholder: usual ?? ""}); return; }
  field.replaceChildren(make("option", {value: ""}, `${usual} (default)`),
    ...values.filter(value => value !== usual).map(value => make("option", {value}, value)));
}

// ---- a link to a prompt and its options: they are in its fragment, which browsers send to nobody

function drawLink() {
  const old = new URLSearchParams(location.hash.slice(1));
  const value = name => served || !OF_READING.includes(name) ? $(name).value : old.get(name) ?? "";
  const told = FIELDS.filter(name => value(name) !== "").map(name => [name, value(name)]);
  $("link").href = "#" + new URLSearchParams([["tab", document.body.dataset.tab], ...told]);
  history.replaceState(null, "", $("link").href);
}

function followLink() {
  const told = new URLSearchParams(location.hash.slice(1));
  const usual = served && !served.passes_on ? {max_tokens: 64, temperature: 0} : {};
  FIELDS.forEach(name => { $(name).value = told.get(name) ?? usual[name] ?? ""; });
  tab((told.has("prompt") || told.get("tab") === "play") && told.get("tab") !== "chat" || served && !served.can.chat ? "play" : "chat");
  drawLink();
}

// ---- writing

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

async function write(column, text, more, signal, take) {
  const fault = $(column + "-fault");
  fault.hidden = true;
  text.setAttribute("aria-busy", "true");
  const asked = served.can.completions ? {prompt: $("prompt").value} : {messages: [{role: "user", content: $("prompt").value}]};
  const body = {model: served.model, ...asked, stream: true, ...numbers(OF_SAMPLING), ...more};
  try {
    const answer = await ask(served.can.completions ? "v1/completions" : "v1/chat/completions", {method: "POST", signal, body: JSON.stringify(body),
      headers: {"Content-Type": "application/json"}});
    for await (const event of eventsOf(answer)) {
      if (event.error) throw new Error(event.error.message);
      take(event);
    }
  } catch (error) {
    if (signal.aborted) return;
    fault.textContent = error.message;
    fault.hidden = false;
    throw error;
  } finally {
    if (!signal.aborted || going?.signal === signal) text.removeAttribute("aria-busy");
  }
}

const numbers = names => Object.fromEntries(names.filter(name => $(name).value !== "").map(name => [name, Number($(name).value)]));

function chosen(without = []) {                 // what differs from the operator's own
  const offered = name => !$(name).parentElement.hidden && !without.includes(name) && $(name).value !== "";
  const told = numbers(["documents", "stride"].filter(offered));
  for (const name of ["index", "retriever", "reader"].filter(offered)) told[name] = $(name).value;
  return told;
}

function takeRead(event) {                      // a piece of the text that reads passages
  const [choice] = event.choices, told = event.ralm?.choices[0];
  if (!choice) return;
  const piece = choice.text ?? choice.delta?.content ?? "";
  (event.ralm?.passages ?? []).forEach(passage => passages.set(passage.passage, passage));
  if (told?.contributions) { gained(told); return; }
  const tokens = choice.finish_reason === null ? told?.tokens ?? [] : [];
  tokens.forEach((token, place) => {
    const sources = token.passages.map((number, d) => [number, token.posteriors[d]]).filter(([number]) => number !== null);
    read.add({text: place === tokens.length - 1 ? piece : "", log_prob: token.log_prob, baseline_log_prob: null, gain: null,
      passages: sources.map(([number]) => number), posteriors: sources.map(([, share]) => share)});
  });
  if (!tokens.length && piece) read.extend(piece);
  if (read.kept < 0) read.keep(0, false);
  if (event.ralm?.passages?.length) listPassages([...passages.values()]);
}

function takePlain(event) {                     // a piece of the text without passages
  const choice = event.choices[0], log_probs = choice?.logprobs?.token_logprobs ?? [];
  log_probs.forEach((log_prob, place) => plain.add({text: place === log_probs.length - 1 ? choice.text : "",
    log_prob: null, baseline_log_prob: log_prob, gain: null, passages: [], posteriors: []}));
  const piece = choice?.text ?? choice?.delta?.content;
  if (!log_probs.length && piece) plain.extend(piece);
}

function gained(told) {                         // the gains are the last that a stream tells
  told.gains.forEach((gain, place) => {
    const token = read.tokens[place];
    Object.assign(token, {gain, baseline_log_prob: gain === null || token.log_prob === null ? null : token.log_prob - gain});
  });
  const isHere = $("card").keeps === read && document.activeElement !== read.spans[read.kept];
  if (isHere) read.keep(read.best(), false);    // nobody went to another token, or closed the card
  read.redraw();
  told.contributions.forEach(row => passages.set(row.passage, {...passages.get(row.passage), ...row}));
  listPassages(told.contributions.length ? told.contributions.map(row => passages.get(row.passage)) : [...passages.values()]);
  $("gain").textContent = nats(told.gain.nats) + " nats";
  $("gain").className = "number " + tone(told.gain.nats);
}

function listPassages(rows) {
  const largest = largestGain(rows);
  $("passages").replaceChildren(...rows.map(row => contributionItem(row, largest, read)));
}

async function send() {
  stop();
  if (!served) await learn();
  if (!served) return;
  drawLink();
  const own = going = new AbortController(), prompt = $("prompt").value;
  const reads = !$("with").hidden, works = [];
  passages.clear();
  $("passages").replaceChildren();
  $("gain").textContent = "";
  read.begin(prompt);
  plain.begin(prompt);
  document.body.classList.add("reading");
  $("stop").disabled = false;
  $("status").textContent = "writing …";
  if (reads) works.push(write("with", $("text"), {ralm: {...chosen(), ...("gain" in served.choices ? {gain: true} : {})}}, own.signal, takeRead));
  if (!$("without").hidden)
    works.push(write("without", $("plain"), {...(served.can.completions ? {logprobs: 0} : {}), ...(reads ? {ralm: {index: null}} : {})}, own.signal, takePlain));
  const ended = await Promise.allSettled(works);
  if (going !== own) return;
  going = null;
  $("stop").disabled = true;
  $("status").textContent = ended.every(one => one.status === "fulfilled") ? "done" : "not all could be written";
}

function stop() {
  if (!going) return;
  going.abort();
  going = null;
  for (const text of [$("text"), $("plain")]) text.removeAttribute("aria-busy");
  $("stop").disabled = true;
  $("status").textContent = "stopped";
}

// ---- searching

async function look() {
  const asked = new URLSearchParams({q: $("query").value});
  for (const name of ["index", "retriever"]) if ($(name).value) asked.set(name, $(name).value);
  try {
    const {hits} = await (await ask("search?" + asked)).json();
    $("found").textContent = `${count(hits.length)} ${hits.length === 1 ? "passage" : "passages"}`;
    $("hits").replaceChildren(...hits.map(hit => passageItem(hit,
      [make("span", {class: "number soft"}, hit.score.toFixed(2))],
      make("span", {}, `passage ${hit.passage} of ${placeOf(hit)}`))));
  } catch (error) {
    $("found").textContent = error.message;
    $("hits").replaceChildren();
  }
}

$("ask").addEventListener("submit", event => { event.preventDefault(); send(); });
$("look").addEventListener("submit", event => { event.preventDefault(); look(); });
$("stop").onclick = stop;
$("ask").addEventListener("input", event => { if (event.target.id !== "key") drawLink(); });
$("key").addEventListener("change", learn);
$("keyed").addEventListener("submit", event => { event.preventDefault(); learn(); });
$("options").addEventListener("input", drawLink);
addEventListener("hashchange", followLink);
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("play").hidden) { event.preventDefault(); send(); }
  if (event.key === "Escape") { if (writing) { halt(); drawChat(); } else if (going) stop(); else read.trace(null); }
});

// The chat: a conversation whose answers have sources. It is kept in this tab, until "new chat" or until the tab is closed.
const KEPT = "ralm-chat";
const turns = [];                               // {asked, answers: {with, without}, shown}; an answer has text, sources, ...
let writing = null;                             // {turn, way, stop}: the answer that is written

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
  if (last && !writing) act("retry", () => retry(turn, way));
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

const canCompare = () => Boolean(served?.choices.index && served.defaults.index !== null);

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
  const told = chosen(["stride"]);
  for (const name of Object.keys(told)) if (name !== "index" && way === "without") delete told[name];
  if (way === "without") told.index = null;
  if (way === "without" && !canCompare()) delete told.index;
  return {model: served.model, messages: messagesUpTo(turn, way), stream: true, ...numbers(OF_SAMPLING),
    ...(Object.keys(told).length ? {ralm: told} : {})};
}

function take(answer, event, turn) {            // a piece of an answer; the last has its sources
  const [choice] = event.choices ?? [];
  answer.text += choice?.delta?.content ?? "";
  const told = event.ralm?.choices?.find(one => one.sources);
  for (const passage of event.ralm?.passages ?? []) answer.passages[passage.passage] = passage;
  if (!told) return;
  const urls = new Map((event.search_results ?? []).map(one => [one.passage, one.url]));
  Object.assign(answer, {retriever: event.ralm.retriever, query: event.ralm.query ?? turn.asked});
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
  if (!asked.trim() || !served) return;
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

const retry = (turn, way) => answerTurn(turn, way);

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

function offerChat() {                          // what this server can do
  const reads = served.defaults.index !== null;
  $("tab-chat").disabled = !served.can.chat;
  $("tab-chat").title = served.can.chat ? "" : "this model has no chat template: start the server with another --prompt";
  $("reads").parentElement.hidden = !canCompare();
  $("reads").checked = reads;
  $("said").placeholder = served.can.turns ? "Ask" : "Ask one question; this prompt knows no earlier ones";
  if (!served.can.chat) tab("play");
  drawChat();
}

function tab(name) {
  for (const one of ["chat", "play"]) {
    $(one).hidden = one !== name;
    $("tab-" + one).setAttribute("aria-selected", String(one === name));
    $("tab-" + one).tabIndex = one === name ? 0 : -1;
  }
  document.body.dataset.tab = name;
  $(name === "chat" ? "chat-options" : "play-options").append($("options"));
  if (served) offer($("stride"), name === "play" && served.defaults.index !== null ? served.choices.stride : undefined, served.defaults.stride);
}

for (const one of ["chat", "play"]) {
  $("tab-" + one).onclick = () => { tab(one); drawLink(); };
  $("tab-" + one).onkeydown = event => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const other = one === "chat" ? "play" : "chat";
    if ($("tab-" + other).disabled) return;
    tab(other);
    drawLink();
    $("tab-" + other).focus();
  };
}
$("say").addEventListener("submit", event => { event.preventDefault(); say(); });
$("said").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); say(); }
});
$("halt").onclick = () => { halt(); drawChat(); };
$("fresh").onclick = fresh;
try { turns.push(...JSON.parse(sessionStorage.getItem(KEPT) ?? "[]").filter(one => one.answers[one.shown])); } catch { /* nothing is kept */ }

$("keyed").hidden = !data.has_key;
followLink();
(data.has_key ? Promise.resolve() : learn()).then(() => { document.body.dataset.ready = "true"; });
