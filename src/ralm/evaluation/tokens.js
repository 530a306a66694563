const FULL = 3;                                 // nats at which a token is shaded most

const tone = x => x > 0 ? "up" : x < 0 ? "down" : "soft";
const percent = p => p >= .1 ? (100 * p).toFixed(0) + "%" : p >= .001 ? (100 * p).toFixed(1) + "%" : p > 0 ? "<0.1%" : "0%";
const isKnown = x => x !== null;
const side = gain => !isKnown(gain) ? "" : gain >= 0 ? "h" : "d";

function bar(share, kind) {
  return make("span", {class: "bar"}, make("i", {class: kind, style: `width:${(100 * share).toFixed(1)}%`}));
}

// A text in `text`, token by token, with the sources of the token that is pointed at or has the focus in `card`.
// A token has `text`, `log_prob`, `baseline_log_prob`, `gain`, and its `passages`, numbers in the map `passages`, with
// their `posteriors`. What is not known is null. The element of a token is called t and its place.
class TracedText {
  constructor(text, card, passages, before) {
    Object.assign(this, {text, card, passages, tokens: [], spans: [], kept: -1, shown: -1, traced: null, line: null});
    const at = (name, act) => text.addEventListener(name, event => {
      if (event.target.place !== undefined) act(event.target.place);
    });
    at("pointerover", place => this.show(place));
    at("click", place => this.keep(place, true));
    at("focusin", place => this.keep(place, false));
    text.addEventListener("pointerleave", () => this.isOpen && this.show(this.kept));
    text.addEventListener("keydown", event => {
      const last = this.tokens.length - 1;
      const to = {ArrowRight: this.kept + 1, ArrowLeft: this.kept - 1, Home: 0, End: last}[event.key];
      if (to !== undefined) { event.preventDefault(); this.keep(to, true); }
    });
    this._put(make("span", {class: "before"}, before));
  }

  _put(node) {                                  // each line of the text is a block of its own, laid out when it becomes visible
    if (!this.line) this.text.append(this.line = make("p"));
    this.line.append(node);
  }

  _lines(text) {
    text.split(/(?<=\n)/).forEach(part => {
      const shown = part.replace(/\n$/, "");
      if (shown) this._put(shown);
      if (part.endsWith("\n")) { if (!this.line) this._put("\u200b"); this.line = null; }
    });
  }

  add(token) {
    const space = /\S/.test(token.text) ? token.text.match(/^\s*/)[0] : "";
    this._lines(space);
    const rest = token.text.slice(space.length);
    const breaks = !rest.trim() && rest.includes("\n");  // the indentation after a line break belongs to the next line
    const place = this.tokens.length;
    const shade = isKnown(token.gain)
      ? {class: "t " + side(token.gain), style: `--g: ${Math.min(1, Math.abs(token.gain) / FULL).toFixed(2)}`} : {class: "t"};
    const span = make("span", {...shade, id: "t" + place, tabindex: place ? "-1" : "0"}, breaks ? "" : rest.replace(/\n/g, ""));
    span.place = place;
    this.tokens.push(token);
    this.spans.push(span);
    if (breaks) span.classList.add("nl");
    this._put(span);
    this._lines(rest.replace(/[^\n]/g, ""));
    if (breaks) this._lines(rest.slice(rest.lastIndexOf("\n") + 1));
  }

  best(among) {                                 // the token that passages helped most
    const gains = this.tokens.slice(0, among).map(token => token.gain ?? 0);
    return gains.indexOf(Math.max(...gains));
  }

  keep(place, focus) {                          // go on showing a token
    if (!this.tokens[place]) return;
    this.spans[Math.max(this.kept, 0)].tabIndex = -1;
    this.kept = place;
    this.isOpen = true;
    this.spans[place].tabIndex = 0;
    if (focus) this.spans[place].focus();
    this.show(place);
  }

  show(place) {
    if (place === this.shown || !this.tokens[place]) return;
    this.unmark();
    this.shown = place;
    this.spans[place].classList.add("on");
    const token = this.tokens[place], kind = side(token.gain);
    const row = (label, log_prob, kind) => !isKnown(log_prob) ? [] : [make("span", {class: "soft"}, label),
      bar(Math.exp(log_prob), kind), make("span", {class: "number"}, percent(Math.exp(log_prob)))];
    const docs = make("ul", {class: "docs"});
    const share = weight => isKnown(weight) ? [bar(weight, kind), make("span", {class: "number"}, percent(weight))] : [];
    token.passages.map((number, d) => [this.passages.get(number), token.posteriors[d]])
      .sort((a, b) => b[1] - a[1])
      .forEach(([passage, weight]) => docs.append(make("li", {}, this.traceButton(passage,
        make("span", {class: "name"}, nameOf(passage)), ...share(weight)))));
    if (token.passages.length && !isKnown(token.posteriors[0])) docs.append(make("li", {class: "soft"}, "mixed as no average: no shares"));
    if (!token.passages.length) docs.append(make("li", {class: "soft"}, "read without a passage"));
    const word = token.text.trim() ? token.text.trim() : JSON.stringify(token.text).slice(1, -1).replace(/ /g, "␣") || "(part of a character)";
    const gain = isKnown(token.gain) ? [make("b", {class: "number " + tone(token.gain)}, nats(token.gain) + " nats")] : [];
    const close = make("button", {type: "button", class: "close", "aria-label": "close the sources of this token"}, "×");
    close.onclick = () => this.close();
    this.card.replaceChildren(make("div", {class: "token"}, make("q", {}, word), ...gain, close),
      make("div", {class: "odds"}, ...row("with", token.log_prob, kind), ...row("without", token.baseline_log_prob, "")),
      make("h2", {}, "Where it came from"), docs);
  }

  unmark() {
    this.spans[this.shown]?.classList.remove("on");
    this.shown = -1;
  }

  close() {                                     // show no token, until one is pointed at or gets the focus
    this.spans[this.shown].focus({preventScroll: true});   // which the button had
    this.unmark();
    this.card.replaceChildren();
    this.isOpen = false;
  }

  traceButton(passage, ...children) {
    const button = make("button", {type: "button", "aria-pressed": String(this.traced === passage.passage),
      title: nameOf(passage) + ": mark its tokens", "data-passage": passage.passage}, ...children);
    button.onclick = () => this.trace(this.traced === passage.passage ? null : passage.passage);
    return button;
  }

  trace(number) {                               // mark the tokens that came from one passage, or none
    this.traced = number;
    this.text.classList.toggle("traced", number !== null);
    const marked = this.spans.filter((span, place) => {
      const d = this.tokens[place].passages.indexOf(number);
      const weight = d < 0 ? 0 : this.tokens[place].posteriors[d];
      span.classList.toggle("by", weight >= .05);
      if (weight >= .05) span.style.setProperty("--w", weight.toFixed(2));
      return weight >= .05;
    });
    document.querySelectorAll("[data-passage]").forEach(button =>
      button.setAttribute("aria-pressed", String(Number(button.dataset.passage) === number)));
    const isSeen = span => { const box = span.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
    if (marked.length && !marked.some(isSeen)) marked[0].scrollIntoView({block: "center"});
  }
}

function isLink(text) {
  try { return ["http:", "https:"].includes(new URL(text).protocol); } catch { return false; }
}
function metadataOf(passage) {                  // the other fields of its document; an address of the web is a link
  const rows = Object.entries(passage.metadata).filter(([name]) => name !== ORIGIN).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const shown = text.length > 300 ? text.slice(0, 300) + "…" : text;
    return make("div", {}, make("dt", {}, name), make("dd", {}, isLink(text)
      ? make("a", {href: text, target: "_blank", rel: "noopener noreferrer"}, shown) : shown));
  });
  return rows.length ? [make("dl", {class: "settings"}, ...rows)] : [];
}

function passageItem(passage, figures, ...foot) {   // a line with the name and figures of a passage; it opens on the passage
  const details = make("details", {}, make("summary", {}, make("span", {class: "name"}, nameOf(passage)), ...figures));
  details.ontoggle = () => {
    if (details.childElementCount > 1) return;
    details.append(make("p", {}, passage.text), ...metadataOf(passage), make("div", {class: "foot"}, ...foot));
  };
  return make("li", {}, details);
}

const largestGain = passages => Math.max(1e-9, ...passages.slice(0, 1).concat(passages.slice(-1)).map(p => Math.abs(p.gain)));

function contributionItem(passage, largest, traced) {   // a passage with what it gave to a text
  const button = traced.traceButton(passage, "mark its tokens");
  button.className = "trace";
  const told = `passage ${passage.passage} of ${placeOf(passage)}`;
  if (!isKnown(passage.gain)) return passageItem(passage, [], make("span", {}, told), button);
  return passageItem(passage, [bar(Math.abs(passage.gain) / largest, side(passage.gain)),
    make("span", {class: "number " + tone(passage.gain)}, nats(passage.gain))],
    make("span", {}, `${told}; main source of ${count(passage.tokens)} tokens: ${count(passage.helped)} helped, ` +
      `${count(passage.hurt)} hurt`), button);
}
