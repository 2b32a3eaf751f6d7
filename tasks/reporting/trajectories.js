"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const SPECIAL = 1, BYTES = 2;
  const JOINS = {
    start: "the first prompt",
    append: "a clean append: what is new is read behind the tokens so far",
    realign: "realigned: the agent did not take over the end of the answer, which is cut off here",
    fork: "a fork: context was folded or thinking cleared, so that a new run of tokens begins",
  };
  const state = { shown: [], at: 0, colour: "probability" };

  // Texts are written as text alone. Characters that are invisible or turn the direction of writing are named.
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]|\p{Cn}/u;
  const named = (char) => "⟨U+" + char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "⟩";
  const visible = (text) => Array.from(text, (char) => (HIDDEN.test(char) ? named(char) : char)).join("");

  function make(tag, kind, ...inside) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.append(...inside.filter((one) => one !== null && one !== ""));
    return element;
  }
  const spread = (runs) => runs.flatMap(([value, count]) => Array(count).fill(value));
  const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
  const signed = (value) => (value > 0 ? "+" : "") + short(value).replace("-", "−");
  const short = (value) => String(Number(value.toFixed(3)));
  const rewardText = (value) => (value === null ? "none" : value.toFixed(2));
  const rewardKind = (value) => (value === null ? "unknown" : value > 0 ? "good" : "bad");

  /* ---- which ones ---- */

  const REWARDS = {
    "": ["any", () => true],
    good: ["above 0", (value) => value !== null && value > 0],
    bad: ["0 or below", (value) => value !== null && value <= 0],
    unknown: ["none", (value) => value === null],
  };

  function options(select, values) {
    const before = select.value;
    select.replaceChildren(...values.map(([value, text]) => new Option(text, value)));
    if (values.some(([value]) => value === before)) select.value = before;
  }

  function choices(key) {
    const stage = find("stage").value;
    const here = data.items.filter((item) => !stage || item.stage === stage);
    return [...new Set(here.map((item) => item[key]))];
  }

  function fill() {
    options(find("stage"), [["", "all"], ...data.stages.map((stage) => [stage.name, stage.name])]);
    options(find("family"), [["", "all"], ...choices("family").sort().map((name) => [name, visible(name)])]);
    const steps = choices("step").sort((a, b) => a - b);
    options(find("step"), [["", "all"], ...steps.map((step) => [String(step), String(step + 1)])]);
    options(find("reward"), Object.entries(REWARDS).map(([key, [text]]) => [key, text]));
  }

  function choose() {
    fill();
    const { stage, family, step, reward } = Object.fromEntries(
      ["stage", "family", "step", "reward"].map((id) => [id, find(id).value]),
    );
    const item = state.shown[state.at];
    state.shown = data.items.filter(
      (one) =>
        (!stage || one.stage === stage) && (!family || one.family === family) &&
        (!step || String(one.step) === step) && REWARDS[reward][1](one.reward),
    );
    state.at = Math.max(0, state.shown.indexOf(item));
    notes(stage);
    list();
    show();
  }

  function notes(stage) {
    const about = data.stages.filter((one) => !stage || one.name === stage);
    const lines = about.flatMap((one) => one.notes.map((note) => make("div", "", `${one.name}: ${visible(note)}`)));
    find("notes").replaceChildren(...lines);
    find("notes").hidden = lines.length === 0;
  }

  function list() {
    const several = new Set(state.shown.map((item) => item.stage)).size > 1;
    let before = "";
    const rows = state.shown.flatMap((item, at) => {
      const head = `${several ? item.stage + " · " : ""}step ${item.step + 1}`;
      const row = make("button", "", make("span", "", visible(item.family)), pill(item.reward));
      row.type = "button";
      row.dataset.at = at;
      const title = head === before ? [] : [make("div", "step-of", head)];
      before = head;
      return [...title, row];
    });
    find("list").replaceChildren(...rows);
  }

  const pill = (reward) => make("span", "pill " + rewardKind(reward), rewardText(reward));

  /* ---- one of them ---- */

  function show() {
    const item = state.shown[state.at];
    find("where").textContent = item ? `${state.at + 1} of ${state.shown.length}` : "";
    find("previous").disabled = state.at === 0;
    find("next").disabled = state.at + 1 >= state.shown.length;
    find("token").hidden = true;
    if (!item) {
      const why = data.items.length ? "No trajectory fits these choices." : "There are no trajectories here.";
      find("shown").replaceChildren(make("p", "soft", why));
      return;
    }
    history.replaceState(null, "", "#" + address(item));
    for (const row of find("list").querySelectorAll("button")) {
      const current = Number(row.dataset.at) === state.at;
      row.classList.toggle("current", current);
      if (current) row.scrollIntoView({ block: "nearest" });
    }
    find("shown").replaceChildren(title(item), figures(item), talk(item), ...tokens(item));
  }

  const address = (item) => [item.stage, item.step + 1, item.id].map(encodeURIComponent).join("/");

  function title(item) {
    const line = [item.stage, `step ${item.step + 1}`, `thinking ${item.mode}`, item.task].map(visible).join(" · ");
    return make("div", "title", make("h2", "", visible(item.family)), make("div", "small soft", line));
  }

  function figures(item) {
    const rows = [["Reward", make("span", "", pill(item.reward), " ", visible(item.reason))]];
    for (const [name, value] of Object.entries(item.extra)) rows.push([name, value === null ? "–" : short(value)]);
    if (item.rewards.length) rows.push([`Group of ${item.rewards.length}`, group(item)]);
    rows.push(["Advantage", advantage(item)]);
    const sampled = sum(item.segments, "all_sampled");
    const of = `of ${plural(sum(item.segments, "whole"), "token")} in ${plural(item.segments.length, "segment")}`;
    rows.push(["Sampled", `${sampled.toLocaleString("en")} ${of}`], ["Weights", versions(item)]);
    if (item.seconds !== null) rows.push(["Time", `${item.seconds.toFixed(1)} s`]);
    const list = make("dl", "figures");
    for (const [name, value] of rows) list.append(make("dt", "", visible(name)), make("dd", "", value));
    return list;
  }

  const sum = (segments, key) => segments.reduce((total, segment) => total + segment[key], 0);

  function group(item) {
    const known = item.rewards.filter((value) => value !== null);
    const line = make("span", "group", ...item.rewards.map(pill));
    if (known.length) line.append(`mean ${short(known.reduce((a, b) => a + b, 0) / known.length)}`);
    return line;
  }

  function advantage(item) {
    if (!item.known) return "not in this artifact";
    const values = item.segments.flatMap((s) => s.advantages.map(([value]) => value)).filter((v) => v !== null);
    if (!values.length) {
      const even = new Set(item.rewards).size === 1 && item.reward !== null;
      return even ? "none: all rewards of its group are equal" : "none: it was left out of training";
    }
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return low === high ? signed(low) : `${signed(low)} to ${signed(high)}, a token each`;
  }

  function versions(item) {
    const all = item.segments.flatMap((segment) => segment.versions.map(([version]) => version));
    if (!all.length) return "nothing was sampled";
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const by = low === high ? `sampled by version ${low}` : `sampled by versions ${low} to ${high}`;
    if (item.version === null) return by;
    return `${by}, taken up at version ${item.version} (${plural(item.version - low, "version")} old)`;
  }

  function talk(item) {
    const turns = item.messages.map((message) => {
      const said = make("div", "said");
      if (message.thinking) said.append(make("div", "thinking", make("small", "", "thinking"), visible(message.thinking)));
      if (message.content) said.append(make("div", "content", visible(message.content)));
      for (const call of message.calls) {
        const args = call.arguments === "{}" ? "" : visible(call.arguments);
        said.append(make("div", "call", make("b", "", visible(call.name)), args));
      }
      if (!said.childNodes.length) said.append(make("div", "soft", "(empty)"));
      return make("div", "message " + (message.role === "assistant" ? "own" : ""), make("div", "role", visible(message.role)), said);
    });
    if (!turns.length) turns.push(make("p", "soft", "No message: the environment failed before the first."));
    return make("section", "talk", make("h3", "", "Conversation"), ...turns);
  }

  /* ---- its tokens ---- */

  const COLOURS = {
    probability: "the deeper, the less likely the engine held a sampled token",
    advantage: "green was made likelier, red less likely",
    version: "a colour a version of the weights",
    mask: "coloured tokens were sampled and carry the loss, the others were read",
  };

  function tokens(item) {
    if (!item.segments.length) {
      return [make("section", "", make("h3", "", "Tokens"), make("p", "soft", "Nothing was sampled."))];
    }
    const bar = make("div", "colours");
    for (const name of Object.keys(COLOURS)) {
      const button = make("button", name === state.colour ? "current" : "", name);
      button.type = "button";
      button.dataset.colour = name;
      bar.append(button);
    }
    const legend = make("div", "small soft", COLOURS[state.colour], ...versionKeys(item));
    const head = make("section", "", make("div", "token-head", make("h3", "", "Tokens"), bar), legend);
    return [head, ...item.segments.map((segment, number) => segmentOf(item, segment, number))];
  }

  function versionKeys(item) {
    if (state.colour !== "version") return [];
    const all = new Set(item.segments.flatMap((segment) => segment.versions.map(([version]) => version)));
    return [...all].sort((a, b) => a - b).map((version) => {
      const key = make("span", "sampled key", String(version));
      paint(key, { version });
      return key;
    });
  }

  function segmentOf(item, segment, number) {
    const kind = segment.turns.length ? segment.turns[0][0] : "";
    const counts = `${plural(segment.whole, "token")}, ${segment.all_sampled.toLocaleString("en")} sampled`;
    const name = `Segment ${number + 1} of ${item.segments.length}`;
    const head = make("div", "segment-head", make("b", "", name), make("span", "soft", counts));
    const body = make("div", "tokens");
    body.dataset.segment = number;
    const joins = new Map(segment.turns.map(([join, place]) => [shownPlace(segment, place), join]));
    const most = scale(item);
    rows(segment).forEach((token, at) => {
      if (joins.has(at)) body.append(joinMark(joins.get(at)));
      if (at === segment.gap) body.append(gapMark(segment));
      body.append(span(token, at, most));
    });
    const about = kind === "fork" ? make("div", "small soft", JOINS.fork) : null;
    return make("section", "segment", head, about, body);
  }

  const leftOut = (segment) => segment.whole - segment.tokens.length;
  const shownPlace = (segment, place) =>
    segment.gap === null || place < segment.gap ? place : Math.max(segment.gap, place - leftOut(segment));
  const truePlace = (segment, at) => (segment.gap === null || at < segment.gap ? at : at + leftOut(segment));

  function joinMark(join) {
    const mark = make("span", "join " + (join in JOINS ? join : ""), visible(join));
    mark.title = JOINS[join] || "";
    return mark;
  }

  const gapMark = (segment) => make("span", "join gap", `${plural(leftOut(segment), "token")} left out`);

  function rows(segment) {
    const sampled = spread(segment.sampled), versions = spread(segment.versions), gains = spread(segment.advantages);
    let next = 0;
    return segment.tokens.map((place, at) => {
      const [id, text, kind] = data.pieces[place];
      const token = { id, text, kind, sampled: sampled[at] === 1 };
      if (token.sampled) {
        Object.assign(token, { logprob: segment.logprobs[next], version: versions[next], advantage: gains[next] });
        next += 1;
      }
      return token;
    });
  }

  function scale(item) {
    const gains = item.segments.flatMap((segment) => segment.advantages.map(([value]) => Math.abs(value || 0)));
    return Math.max(1e-9, ...gains);
  }

  function span(token, at, most) {
    const kinds = [token.sampled ? "sampled" : "", { [SPECIAL]: "special", [BYTES]: "bytes" }[token.kind] || ""];
    const text = token.kind === BYTES ? `⟨${token.text}⟩` : visible(token.text).replaceAll("\n", "⏎\n");
    const element = make("span", kinds.join(" ").trim(), text);
    element.dataset.at = at;
    if (token.sampled) paint(element, token, most);
    return element;
  }

  function paint(element, token, most) {
    const [colour, depth] = {
      probability: ["c2", typeof token.logprob !== "number" ? 1 : Math.min(1, -token.logprob / 5)],
      advantage: [token.advantage > 0 ? "good" : "bad", Math.abs(token.advantage || 0) / most],
      version: ["c" + (1 + (token.version % 6)), 0.6],
      mask: ["accent", 0.45],
    }[state.colour];
    element.style.setProperty("--hue", `var(--${colour})`);
    element.style.setProperty("--depth", `${Math.round(60 * depth)}%`);
  }

  function tell(element) {
    const segment = state.shown[state.at].segments[Number(element.parentNode.dataset.segment)];
    const at = Number(element.dataset.at), token = rows(segment)[at];
    for (const other of document.querySelectorAll(".tokens .chosen")) other.classList.remove("chosen");
    element.classList.add("chosen");
    const text = token.kind === BYTES ? `bytes ${token.text}` : visible(token.text).replaceAll("\n", "⏎").replaceAll(" ", "␣");
    const facts = [`id ${token.id}`, `place ${truePlace(segment, at)}`];
    if (token.sampled) {
      const share = token.logprob === null ? "log-prob unknown" : `log-prob ${signed(token.logprob)} (${(100 * Math.exp(token.logprob)).toFixed(1)} %)`;
      const gain = token.advantage === null ? "no advantage" : `advantage ${signed(token.advantage)}`;
      facts.push("sampled", share, `version ${token.version}`, gain);
    } else facts.push("read, no loss on it");
    find("token").replaceChildren(make("code", "", text || "(no text)"), make("span", "", facts.join(" · ")));
    find("token").hidden = false;
  }

  /* ---- what a reader does ---- */

  function go(by) {
    const to = state.at + by;
    if (to < 0 || to >= state.shown.length) return;
    state.at = to;
    show();
    if (find("reader").getBoundingClientRect().top < 0) find("reader").scrollIntoView();
  }

  function openAddress() {
    const wanted = location.hash.slice(1);
    const at = data.items.findIndex((item) => address(item) === wanted);
    if (at < 0) return;
    for (const id of ["stage", "family", "step", "reward"]) find(id).value = "";
    choose();
    state.at = at;
    show();
  }

  find("filters").addEventListener("change", choose);
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  find("previous").addEventListener("click", () => go(-1));
  find("next").addEventListener("click", () => go(1));
  find("list").addEventListener("click", (event) => {
    const row = event.target.closest("button");
    if (row) go(Number(row.dataset.at) - state.at);
  });
  find("shown").addEventListener("click", (event) => {
    const token = event.target.closest(".tokens [data-at]"), colour = event.target.closest("[data-colour]");
    if (token) tell(token);
    if (colour) {
      state.colour = colour.dataset.colour;
      show();
      find("shown").querySelector(`[data-colour=${state.colour}]`).focus();
    }
  });
  find("shown").addEventListener("mouseover", (event) => {
    const token = event.target.closest(".tokens [data-at]");
    if (token) tell(token);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
    const by = { ArrowLeft: -1, k: -1, ArrowRight: 1, j: 1 }[event.key];
    if (by) {
      event.preventDefault();
      go(by);
    } else if (event.key === "Escape") find("token").hidden = true;
  });
  window.addEventListener("hashchange", openAddress);
  const asked = location.hash;
  choose();
  if (asked) {
    location.hash = asked;
    openAddress();
  }
})();
