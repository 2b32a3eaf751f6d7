// The server's side: models, and one streamed answer.

const KEY = "glm5-api-key";

export class ServerFault extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerFault(0, "The server does not answer. Is it still running?");
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new ServerFault(answer.status, body?.error?.message ?? `The server answered ${answer.status}.`);
  }
  return answer;
}

export async function listModels() {
  return (await (await ask("/v1/models")).json()).data;
}

/** The chunks of a chat answer as they come. `signal` ends it, and the server's work on it. */
export async function* chat(request, signal) {
  const answer = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let rest = "";
  for await (const part of textOf(answer.body, signal)) {
    const events = (rest + part).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerFault(200, chunk.error.message);
      yield chunk;
    }
  }
  throw new ServerFault(0, "The connection broke before the answer was complete.");
}

async function* textOf(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (signal.aborted) throw new DOMException("stopped", "AbortError");
    throw new ServerFault(0, "The connection broke before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
