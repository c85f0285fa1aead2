// ---- The server

async function ask(path, body, signal) {
  const headers = {};
  const form = body instanceof FormData;
  if (body && !form) headers["Content-Type"] = "application/json";
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  let response;
  try {
    response = await fetch(path, {method: body ? "POST" : "GET", headers, body: form ? body : body && JSON.stringify(body), signal, cache: "no-store"});
  } catch (error) { throw lost(error, AWAY); }
  if (response.ok) return response;
  const text = await response.text();
  let error = {};
  try { error = JSON.parse(text).error ?? {}; } catch { /* Not JSON: the text says it. */ }
  throw Object.assign(new Error(error.message || text.slice(0, 500) || response.statusText), {status: response.status, code: error.code});
}

/** The events of a stream, until [DONE], or the last event of a transcript. */
async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    let done, value;
    try { ({done, value} = await reader.read()); } catch (error) { throw lost(error, "The connection broke before the answer's end."); }
    const lines = (rest + (done ? decoder.decode() : decoder.decode(value, {stream: true}))).split(/\r?\n/);
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message ?? "the server reports an error");
      if (event.type === "transcript.text.done") return;
      yield event;
    }
    if (done) {
      isThere();
      throw new Error("The connection ended before the answer did.");
    }
  }
}

function request() {
  return {model: $("model").value, stream: true, stream_options: {include_usage: true}, ...options()};
}

async function transcribe(turn, signal) {
  const file = files.get(turn);
  if (!file) throw new Error("The audio is no longer here: choose or record it again.");
  const form = new FormData();
  form.append("model", $("model").value);
  form.append("stream", "true");
  form.append("file", file, turn.content);
  return ask("v1/audio/transcriptions", form, signal);
}

async function chat(turns, signal) {
  if (listens()) return transcribe(turns.at(-1), signal);
  if (!plain.has($("model").value)) {
    const system = $("system").value.trim();
    const messages = turns.flatMap(turn => turn.calls ? messagesOf(turn) : [{role: turn.role, content: whole(turn)}]);
    if (system && messages[0].role !== "system") messages.unshift({role: "system", content: system});
    try {
      return await ask("v1/chat/completions", {...request(), ...offered(), messages}, signal);
    } catch (error) {
      if (![400, 404, 422, 501].includes(error.status) || !/template/i.test(`${error.code} ${error.message}`)) throw error;
      plain.add($("model").value);
      hint();
    }
  }
  const prompt = turns.reduce((text, turn) => text + (turn.role === "user" && text && !/\s$/.test(text) ? " " : "") + whole(turn), "");
  return ask("v1/completions", {...request(), prompt}, signal);
}

async function models() {
  try {
    const {data} = await (await ask("v1/models")).json();
    listeners.clear();
    data.filter(model => model.capabilities?.includes("transcription")).forEach(({id}) => listeners.add(id));
    const chosen = $("model").value || stored(localStorage, "model", "");
    const talks = ({capabilities}) => !capabilities || capabilities.some(name => ["completion", "transcription"].includes(name));
    const named = model => talks(model) ? model.id : `${model.id} (${model.capabilities.join(", ")})`;
    $("model").replaceChildren(...data.map(model => make("option", {value: model.id, disabled: !talks(model), selected: model.id === chosen && talks(model)}, named(model))));
    $("models").replaceChildren(...data.map(modelRow));
    hint();
    await loadTools();
  } catch (error) {
    if (!watch.gone) note(error.status === 401 ? "This server requires an API key: enter it in the settings." : `The models cannot be listed: ${error.message}`);
    if (error.status === 401) settings("key");
  }
}
