// The page: settings, the line one writes in, keys.

import { Conversation } from "./conversation.js";
import { listModels, setKey } from "./server.js";
import { EXAMPLES, TOOLS } from "./tools.js";
import { element, showFault } from "./view.js";

const $ = (id) => document.getElementById(id);
const STORE = "glm5-settings";
// Stages before the chats: their checkpoints continue text and do not answer.
const BASE = ["pretrain", "midtrain", "dsa_warmup", "dsa_adapt"];
let contexts = {};

const chosenTools = () => [...document.querySelectorAll("#tools input:checked")].map((box) => box.value);
const settings = () => ({
  model: $("model").value || undefined,
  temperature: Number($("temperature").value),
  most: Number($("most").value) || null,
  thinking: $("thinking").checked,
  tools: chosenTools(),
});
const conversation = new Conversation(settings, draw);

function draw() {
  const empty = conversation.messages.length === 0;
  $("empty").hidden = !empty;
  $("send").hidden = conversation.running;
  $("stop").hidden = !conversation.running;
  $("send").disabled = !$("text").value.trim();
  $("model").disabled = conversation.running;
  const context = contexts[$("model").value];
  const parts = [];
  if (!empty && conversation.used) parts.push(`${conversation.used}${context ? ` of ${context}` : ""} tokens used`);
  if (BASE.includes($("model").value.split("/").at(-1))) parts.push("not trained to chat yet");
  if (chosenTools().length) parts.push(`tools: ${chosenTools().join(", ")}`);
  $("count").textContent = parts.join(" · ");
}

/** `told`: a failure is shown. After an answer it is not: what went wrong there has been said. */
async function loadModels(told = true) {
  try {
    const models = await listModels();
    contexts = Object.fromEntries(models.map((model) => [model.id, model.max_model_len]));
    const before = $("model").value;
    $("model").replaceChildren(...models.map((model) => element("option", { value: model.id }, model.id)));
    const wanted = models.find((model) => model.id === before) ?? models.find((model) => model.loaded);
    if (wanted) $("model").value = wanted.id;
    draw();
  } catch (error) {
    if (error.status === 401) askKey();
    else if (told) showFault(error.message, "Try again", loadModels);
  }
}

function askKey() {
  $("key").value = "";
  $("key-dialog").showModal();
}

function setTools(names) {
  for (const box of document.querySelectorAll("#tools input")) box.checked = names.includes(box.value);
}

function fit() {
  const text = $("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
  draw();
}

async function send(text) {
  if (!text.trim() || conversation.running) return;
  $("text").value = "";
  fit();
  toggleSettings(false);
  await conversation.send(text.trim());
  await loadModels(false); // another checkpoint may be loaded now
}

function toggleSettings(open) {
  $("settings").hidden = !open;
  $("settings-button").setAttribute("aria-expanded", String(open));
}

function showTheme() {
  const chosen = document.querySelector("input[name=theme]:checked").value;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
}

function remember() {
  const { temperature, most, thinking } = settings();
  const theme = document.querySelector("input[name=theme]:checked").value;
  localStorage.setItem(STORE, JSON.stringify({ temperature, most, thinking, theme }));
}

function recall() {
  const stored = JSON.parse(localStorage.getItem(STORE) ?? "{}");
  $("temperature").value = stored.temperature ?? 0;
  $("most").value = stored.most ?? "";
  $("thinking").checked = stored.thinking ?? true;
  document.querySelector(`input[name=theme][value="${stored.theme ?? ""}"]`).checked = true;
  $("temperature-value").textContent = $("temperature").value;
}

function build() {
  for (const [name, tool] of Object.entries(TOOLS)) {
    const box = element("input", { type: "checkbox", value: name, onchange: draw });
    $("tools").append(element("label", {}, box, element("code", {}, name), element("small", {}, tool.text)));
  }
  for (const { text, prompt, tools = [] } of EXAMPLES) {
    const start = () => { setTools(tools); send(prompt); };
    $("examples").append(element("li", {}, element("button", { type: "button", onclick: start }, element("span", {}, text), element("code", {}, prompt))));
  }
}

function listen() {
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send($("text").value); });
  $("text").addEventListener("input", fit);
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send($("text").value); }
  });
  $("stop").addEventListener("click", () => conversation.stop());
  $("fresh").addEventListener("click", () => { conversation.clear(); setTools([]); draw(); $("text").focus(); });
  $("settings-button").addEventListener("click", () => toggleSettings($("settings").hidden));
  $("settings").addEventListener("change", () => { remember(); showTheme(); });
  $("thinking").addEventListener("change", remember);
  $("temperature").addEventListener("input", () => { $("temperature-value").textContent = $("temperature").value; });
  $("model").addEventListener("change", draw);
  $("key-dialog").addEventListener("close", () => { setKey($("key").value); loadModels(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (!$("settings").hidden) { toggleSettings(false); $("settings-button").focus(); } else conversation.stop();
  });
  document.addEventListener("click", (event) => {
    if (!$("settings").hidden && !event.target.closest("#settings, #settings-button")) toggleSettings(false);
  });
}

build();
recall();
showTheme();
listen();
loadModels();
