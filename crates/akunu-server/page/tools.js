// ---- Tools of MCP servers

/** Rounds of calls that a message may take. */
const MOST_ROUNDS = 32;
const NOT_RUN = "The call was not run.";
/** Milliseconds in which a call cannot be allowed yet: keys that were meant for the message must not do it. */
const HESITATION = 500;
let hesitation = 0;
/** Tools {name, server, description, offer: as requests have it}, and the names of those that the user turned off. */
let tools = [];
const off = new Set(stored(localStorage, "tools-off", []));
/** What may be called unasked in a conversation; it is forgotten with the page, and no file can bring it. */
const unasked = new WeakMap();

/** Text in which nothing is invisible or changes the order of what is shown. */
function plainly(text) {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029\u115f\u1160\u3164\uffa0]/gu, letter => "\n\t".includes(letter) ? letter : Array.from({length: letter.length}, (_, i) => `\\u${letter.charCodeAt(i).toString(16).padStart(4, "0")}`).join(""));
}

async function loadTools() {
  let listed;
  try { ({tools: listed} = await (await ask("mcp/tools")).json()); } catch (error) {
    if (!watch.gone) note(`The tools cannot be listed: ${error.message}`);
    return;
  }
  tools = listed.map(({server, ...offer}) => ({name: offer.function.name, server, description: offer.function.description, offer}));
  $("tools").hidden = !tools.length;
  $("tool-list").replaceChildren(...tools.map(toolRow));
}

function toolRow({name, server, description}) {
  const box = make("input", {type: "checkbox", checked: !off.has(name), onchange: () => {
    off[box.checked ? "delete" : "add"](name);
    keep(localStorage, "tools-off", [...off]);
  }});
  return make("li", {}, make("label", {}, box, make("b", {}, plainly(name)), make("span", {}, plainly(`${server}: ${description}`.slice(0, 300)))));
}

/** Tools for a request. */
function offered() {
  const on = tools.filter(({name}) => !off.has(name));
  return on.length ? {tools: on.map(({offer}) => offer)} : {};
}

/** Adds what a stream brings of calls. */
function takeCalls(turn, deltas) {
  turn.calls ??= [];
  for (const {index, id, function: piece} of deltas) {
    const call = turn.calls[index] ??= {id: "", name: "", arguments: ""};
    call.id += id ?? "";
    call.name += piece?.name ?? "";
    call.arguments += piece?.arguments ?? "";
  }
}

/** A turn with calls as the server's messages. */
function messagesOf({content, reasoning, calls}) {
  const made = calls.map(({id, name, arguments: text}) => ({id, type: "function", function: {name, arguments: text}}));
  const results = calls.map(({id, result}) => ({role: "tool", tool_call_id: id, content: result ?? NOT_RUN}));
  return [{role: "assistant", content, ...(reasoning && {reasoning_content: reasoning}), tool_calls: made}, ...results];
}

/** Runs the calls of a turn that the user allows. */
async function runCalls(turn, signal, draw) {
  for (const call of turn.calls) {
    signal.throwIfAborted();
    Object.assign(call, await resultOf(call, signal));
    draw();
  }
}

async function resultOf({name, arguments: text}, signal) {
  const tool = tools.find(tool => tool.name === name && !off.has(name));
  if (!tool) return {state: "failed", result: `There is no tool named ${name}.`};
  let given;
  try { given = JSON.parse(text); } catch { /* said below */ }
  if (given === null || typeof given !== "object" || Array.isArray(given)) return {state: "failed", result: "The arguments are not a JSON object."};
  if (!(unasked.get(talk)?.has(name) || await allows(tool, given))) return {state: "refused", result: "The user refused this call."};
  const {content, is_error} = await (await ask("mcp/call", {name, arguments: given}, signal)).json();
  return is_error ? {state: "failed", result: `Error: ${content}`} : {state: "done", result: content};
}

/** Asks the user. What is shown is what would be sent. */
function allows({name, server}, given) {
  const dialog = $("call"), allowing = [$("call-once"), $("call-always")];
  $("call-name").textContent = plainly(name);
  $("call-server").textContent = plainly(server);
  $("call-arguments").textContent = plainly(JSON.stringify(given, null, 1));
  dialog.returnValue = "";
  allowing.forEach(button => button.disabled = true);
  clearTimeout(hesitation);
  hesitation = setTimeout(() => allowing.forEach(button => button.disabled = false), HESITATION);
  document.querySelectorAll("dialog[open]").forEach(other => other.close());
  dialog.showModal();
  $("call-deny").focus();
  return new Promise(answered => dialog.addEventListener("close", () => {
    if (dialog.returnValue === "always") unasked.set(talk, (unasked.get(talk) ?? new Set()).add(name));
    // Chromium gives the message field its focus back, but no text that is typed, unless it loses the focus first.
    document.activeElement?.blur();
    $("prompt").focus();
    answered(["once", "always"].includes(dialog.returnValue));
  }, {once: true}));
}

const STATES = ["done", "failed", "refused"];

/** A call on the screen, folded. */
function callShown(call, running) {
  const {name, arguments: text, state, result} = call, shown = result === undefined ? [] : [make("h3", {}, "Result"), make("pre", {tabIndex: 0}, result)];
  return make("details", {className: "call"}, make("summary", {}, `${plainly(name)} · ${state ?? (running ? "called" : "not run")}`), make("pre", {tabIndex: 0}, plainly(text)), ...shown);
}

/** Shows calls in an element; those that did not change stay as they are. */
function renderCalls(element, calls, running) {
  calls.forEach((call, i) => {
    const now = JSON.stringify([call, running]), before = element.children[i];
    if (before?.now === now) return;
    const made = Object.assign(callShown(call, running), {now, open: before?.open ?? false});
    if (before) before.replaceWith(made);
    else element.append(made);
  });
}

/** Messages of a file as turns: results of tools belong to the calls before them. */
function joined(messages) {
  const turns = [];
  for (const message of messages) {
    const call = message?.role === "tool" && turns.at(-1)?.calls?.find(({id, result}) => id === message.tool_call_id && result === undefined);
    if (call) Object.assign(call, {result: message.content, state: "done"});
    else if (Array.isArray(message?.tool_calls)) turns.push({...message, content: message.content ?? "", calls: message.tool_calls.map(ofMessage)});
    else turns.push(message);
  }
  return turns;
}
function ofMessage(call) {
  const {name, arguments: given} = call?.function ?? {};
  return {id: call?.id, name, arguments: typeof given === "string" ? given : JSON.stringify(given)};
}

/** Calls of a file, or throws what is wrong with them. */
function keptCalls(calls, where) {
  if (!Array.isArray(calls)) throw new Error(`${where} has calls that are not a list`);
  return calls.map(call => {
    const {id, name, arguments: text, state, result} = call ?? {};
    if (![id, name, text].every(part => typeof part === "string")) throw new Error(`${where} has a call without an id, a name or arguments`);
    return {id, name, arguments: text, ...(typeof result === "string" && {result, state: STATES.find(known => known === state)})};
  });
}
