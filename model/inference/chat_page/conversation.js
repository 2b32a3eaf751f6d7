// The dialogue: what was said, and the rounds of sampling and tool calls that answer a message.

import { chat } from "./server.js";
import { runTool, TOOLS } from "./tools.js";
import { AnswerView, askResult, clearLog, showFault, showResult, showUser } from "./view.js";

const MOST_ROUNDS = 8; // of tool calls before the page stops the model

export class Conversation {
  /** `settings()` gives {model, temperature, most, thinking, tools}; `changed` is told of every change. */
  constructor(settings, changed) {
    Object.assign(this, { settings, changed, messages: [], used: 0, stopping: null });
  }

  get running() {
    return this.stopping !== null;
  }

  clear() {
    this.stop();
    this.messages = [];
    this.used = 0;
    clearLog();
    this.changed();
  }

  stop() {
    this.stopping?.abort();
  }

  async send(text) {
    this.messages.push({ role: "user", content: text });
    showUser(text);
    await this.answer();
  }

  /** Answer what stands last. Failures are shown, with what can be done. */
  async answer() {
    const stopping = (this.stopping = new AbortController());
    this.changed();
    const views = [];
    const turns = [];
    const start = this.messages.length;
    const again = () => {
      if (this.running) return;
      this.messages.length = start;
      for (const view of views) view.remove();
      this.answer();
    };
    try {
      for (let round = 0; round < MOST_ROUNDS; round++) {
        const view = new AnswerView();
        views.push(view);
        const turn = await this.sample(view, stopping.signal);
        turns.push(turn);
        if (!turn.calling || !(await this.useTools(turn.cards, stopping.signal))) {
          view.finish(facts(turns), again);
          return;
        }
      }
      showFault("The model kept calling tools, so it was stopped.");
    } catch (error) {
      views.at(-1)?.rest();
      const busy = error.status === 429 || error.status === 503 || error.status === 0;
      showFault(error.message, busy ? "Try again" : null, busy ? again : null);
    } finally {
      if (this.stopping === stopping) this.stopping = null;
      this.changed();
    }
  }

  /** One answer of the model, put behind the messages, a stopped one with what it had. */
  async sample(view, signal) {
    const { model, temperature, most, thinking, tools } = this.settings();
    const request = {
      model, temperature, messages: this.messages,
      chat_template_kwargs: { enable_thinking: thinking },
      ...(most ? { max_tokens: most } : {}),
      ...(tools.length ? { tools: tools.map((name) => TOOLS[name].schema) } : {}),
    };
    const turn = new Turn(view);
    try {
      for await (const chunk of chat(request, signal)) turn.take(chunk);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      turn.stopped = true;
    } finally {
      this.used = turn.usage?.total_tokens ?? this.used;
    }
    this.messages.push(turn.message());
    view.rest();
    return turn;
  }

  /** Run the calls, or let the person answer them. Returns whether all have a result; if not, they are forgotten. */
  async useTools(cards, signal) {
    const asking = this.messages.at(-1);
    const before = this.messages.length;
    for (const { call, card } of cards) {
      let result = runTool(call.function.name, call.function.arguments);
      if (result === null) result = await askResult(card, call.function.name, signal);
      if (result === null || signal.aborted) {
        this.messages.length = before;
        delete asking.tool_calls;
        return false;
      }
      showResult(card, result);
      this.messages.push({ role: "tool", tool_call_id: call.id, content: result });
    }
    return true;
  }
}

/** The chunks of one answer, joined. */
class Turn {
  constructor(view) {
    Object.assign(this, { view, content: "", reasoning: "", cards: [], tokens: 0, usage: null, reason: null });
    this.started = performance.now();
  }

  get calling() {
    return this.cards.length > 0 && !this.stopped;
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const [choice] = chunk.choices;
    if (!choice) return;
    const now = performance.now();
    if (choice.token_ids.length) {
      this.first ??= now;
      this.last = now;
      this.tokens += choice.token_ids.length;
      this.version = choice.weight_versions.at(-1);
    }
    this.reason = choice.finish_reason ?? this.reason;
    this.grow(choice.delta, now);
  }

  grow(delta, now) {
    if (delta.reasoning_content) {
      this.reasoning += delta.reasoning_content;
      this.view.reason(delta.reasoning_content);
      this.thoughtTokens = this.tokens;
    } else if (this.reasoning && !this.thoughtEnded && (delta.content || delta.tool_calls || this.reason)) {
      this.thoughtEnded = true;
      this.view.endThought(this.thoughtTokens, (now - this.started) / 1000);
    }
    if (delta.content) {
      this.content += delta.content;
      this.view.say(delta.content);
    }
    for (const part of delta.tool_calls ?? []) {
      if (part.id) this.cards.push({ call: { id: part.id, type: "function", function: { ...part.function } } });
      else this.cards[part.index].call.function.arguments += part.function.arguments;
      const entry = this.cards[part.index];
      if (!part.id) entry.card = this.view.call(entry.call.function.name, entry.call.function.arguments);
    }
  }

  message() {
    const calls = this.calling ? this.cards.map(({ call }) => call) : null;
    return {
      role: "assistant", content: this.content,
      ...(this.reasoning ? { reasoning_content: this.reasoning } : {}),
      ...(calls ? { tool_calls: calls } : {}),
    };
  }
}

/** Short facts for the line below an answer that took these turns. */
function facts(turns) {
  const last = turns.at(-1);
  const timed = turns.filter((turn) => turn.tokens > 1);
  const seconds = timed.reduce((sum, turn) => sum + (turn.last - turn.first) / 1000, 0);
  const parts = [`${turns.reduce((sum, turn) => sum + turn.tokens, 0)} tokens`];
  if (seconds > 0) parts.push(`${Math.round(timed.reduce((sum, turn) => sum + turn.tokens - 1, 0) / seconds)} tokens/s`);
  if (turns[0].first) parts.push(`first after ${Math.round(turns[0].first - turns[0].started)} ms`);
  if (last.version) parts.push(`weights ${last.version}`);
  if (last.stopped) parts.push("stopped");
  else if (last.reason === "length") parts.push("cut off at the limit");
  else if (!last.content && !last.cards.length) parts.push("no answer");
  return parts;
}
