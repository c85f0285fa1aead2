// ---- Storage

function stored(store, key, otherwise) {
  try { return JSON.parse(store.getItem(`akunu.${key}`)) ?? otherwise; } catch { return otherwise; }
}
function keep(store, key, value) {
  try { store.setItem(`akunu.${key}`, JSON.stringify(value)); } catch { /* A browser that keeps nothing still chats. */ }
}

/** Stops the answer that is coming, if one is. */
let stop = null;
/** Models that continue texts and know no conversations. */
const plain = new Set();
/** Models that transcribe. */
const listeners = new Set();
/** Turns are {role, content, reasoning, thought: seconds, numbers, problem, audio,
 *  files: [{name, text}], calls: [{id, name, arguments, state, result}]}. The audio of turns, which is not kept when the page is left. */
const files = new WeakMap();
/** The recording that is being made, if one is. */
let recorder = null;

function listens() { return listeners.has($("model").value); }
