// What one sees of a conversation. Text of people and models only ever becomes text nodes.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const scroller = document.getElementById("scroll");
const log = document.getElementById("log");

/** Adds to the log, or changes it, and stays at the end if that is where the reader is. */
function keepingEnd(change) {
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
  change();
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}

export function clearLog() {
  log.replaceChildren();
  scroller.scrollTop = 0;
}

export function showUser(text) {
  for (const button of log.querySelectorAll(".meta button")) button.remove(); // only the last answer is sampled again
  log.append(element("div", { class: "user" }, element("p", {}, text)));
  scroller.scrollTop = scroller.scrollHeight;
}

export function showFault(message, label, action) {
  const box = element("div", { class: "fault", role: "alert" }, element("span", {}, message));
  if (action) box.append(element("button", { type: "button", onclick: () => { box.remove(); action(); } }, label));
  keepingEnd(() => log.append(box));
}

/** One answer of the model, while it grows. */
export class AnswerView {
  constructor() {
    this.content = element("div", { class: "content" });
    this.root = element("article", { class: "answer waiting" }, this.content);
    keepingEnd(() => log.append(this.root));
  }

  reason(text) {
    keepingEnd(() => {
      if (!this.thought) {
        this.thoughtText = element("div");
        this.thoughtTitle = element("summary", {}, "Thinking…");
        this.thought = element("details", { class: "thought" }, this.thoughtTitle, this.thoughtText);
        this.root.prepend(this.thought);
      }
      this.thoughtText.append(text);
    });
  }

  endThought(tokens, seconds) {
    if (this.thought) this.thoughtTitle.textContent = `Thought for ${seconds.toFixed(1)} s, ${tokens} tokens`;
  }

  say(text) {
    keepingEnd(() => this.content.append(text));
  }

  call(name, argumentsText) {
    let shown = argumentsText;
    try {
      shown = Object.entries(JSON.parse(argumentsText)).map(([k, v]) => `${k} = ${typeof v === "string" ? v : JSON.stringify(v)}`).join(", ");
    } catch { /* shown as it is */ }
    const asked = element("div", { class: "asked" }, element("small", {}, "calls"), element("b", {}, name), element("code", {}, shown));
    const card = element("div", { class: "call" }, asked);
    keepingEnd(() => this.root.append(card));
    return card;
  }

  rest() {
    this.root.classList.remove("waiting");
  }

  finish(parts, again) {
    this.rest();
    keepingEnd(() => {
      if (!parts.length) return;
      const meta = element("p", { class: "meta" }, ...parts.map((part) => element("span", {}, part)));
      if (again) meta.append(element("button", { type: "button", onclick: again }, "Try again"));
      this.root.append(meta);
    });
  }

  remove() {
    this.root.remove();
  }
}

export function showResult(card, text) {
  keepingEnd(() => card.append(element("div", { class: "result" }, element("small", {}, "result"), element("code", {}, text))));
}

/** A field in a call's card; resolves with what the person writes, or null when `signal` ends it. */
export function askResult(card, name, signal) {
  return new Promise((resolve) => {
    const field = element("input", { "aria-label": `Result of ${name}`, placeholder: "What did it find? For instance e9=655", autocomplete: "off" });
    const form = element("form", {}, field, element("button", { class: "primary" }, "Give"));
    const box = element("div", { class: "result" }, form);
    const end = (text) => { box.remove(); resolve(text); };
    form.addEventListener("submit", (event) => { event.preventDefault(); end(field.value); });
    signal.addEventListener("abort", () => end(null), { once: true });
    keepingEnd(() => card.append(box));
    field.focus();
  });
}
