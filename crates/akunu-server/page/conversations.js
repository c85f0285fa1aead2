// ---- Conversations that the browser keeps

const KEPT = "akunu.talk.";
/** What is kept at most: conversations, and characters of all together. Browsers give a site about 5 million. */
const MOST_TALKS = 500, MOST_TEXT = 4_000_000;
const ROLES = ["user", "assistant", "system"];

/** The conversation on the screen {id, title: of the user, changed: milliseconds, turns}. */
let talk = {turns: []};

function titleOf({title, turns}) {
  const user = turns.find(turn => turn.role === "user"), first = user?.content || user?.files?.[0].name || "";
  return title || first.trim().split("\n")[0].slice(0, 80) || "Untitled";
}

function keptKeys() {
  try { return Object.keys(localStorage).filter(key => key.startsWith(KEPT)); } catch { return []; }
}
function keptTalk(key) {
  try { return conversation(JSON.parse(localStorage.getItem(key))); } catch { return null; }
}
/** All that are kept, the last one first. */
function keptTalks() {
  return keptKeys().map(keptTalk).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

/** Keeps a conversation, or throws why it cannot be kept. */
function store(one) {
  const key = KEPT + one.id, text = JSON.stringify(one), others = keptKeys().filter(other => other !== key);
  if (others.length >= MOST_TALKS) throw new Error(`There are ${MOST_TALKS} conversations already.`);
  const used = others.reduce((sum, other) => sum + localStorage.getItem(other).length, text.length);
  if (used > MOST_TEXT) throw new Error("There is no space left for conversations.");
  try { localStorage.setItem(key, text); } catch { throw new Error("The browser keeps no more for this page."); }
}

/** Keeps the conversation on the screen; if that fails, the page says so until it succeeds. */
function keepTalk() {
  if (!talk.turns.length) return;
  talk.id ??= newId();
  talk.changed = Date.now();
  keep(sessionStorage, "talk", talk.id);
  let problem = "";
  try { store(talk); } catch (error) { problem = error.message; }
  $("full").hidden = !problem;
  $("full-why").textContent = problem;
}

function newId() { return Array.from(crypto.getRandomValues(new Uint8Array(9)), byte => byte.toString(36).padStart(2, "0")).join(""); }

function openTalk(one) {
  talk = one;
  keep(sessionStorage, "talk", talk.id ?? null);
  $("full").hidden = true;
  showAll();
  toEnd();
}

// ---- Files of conversations

/** A conversation out of a value that anyone may have written; throws what is wrong with it. */
function conversation(value) {
  const list = Array.isArray(value) ? value : value?.turns ?? value?.messages;
  if (!Array.isArray(list)) throw new Error("it has no messages");
  const turns = joined(list).map((turn, i) => {
    const {role, content, reasoning, thought, numbers, problem, audio, calls, files: texts} = turn ?? {};
    if (!ROLES.includes(role) || (role === "system" && i > 0)) throw new Error(`message ${i + 1} has a role that the page does not have`);
    if (typeof content !== "string") throw new Error(`message ${i + 1} has no text`);
    const kept = {role, content};
    for (const [name, text] of Object.entries({reasoning, numbers, problem})) if (typeof text === "string") kept[name] = text;
    if (typeof thought === "number") kept.thought = thought;
    if (audio === true) kept.audio = true;
    if (calls !== undefined && role === "assistant") kept.calls = keptCalls(calls, `message ${i + 1}`);
    if (Array.isArray(texts) && texts.length) kept.files = texts.map(file => {
      if (typeof file?.name !== "string" || typeof file.text !== "string") throw new Error(`message ${i + 1} has a file without a text`);
      return {name: file.name, text: file.text};
    });
    return kept;
  });
  const {id, title, changed} = value;
  return {id: typeof id === "string" ? id : newId(), title: typeof title === "string" ? title.slice(0, 200) : "", changed: Number.isFinite(changed) ? changed : Date.now(), turns};
}

/** Keeps the conversations of a file: one, several, or the messages that `/save` of `akunu chat` writes. */
async function importFile(file) {
  if (file.size > 2 * MOST_TEXT) throw new Error("it is too large");
  let value;
  try { value = JSON.parse(await file.text()); } catch (error) { throw new Error(`it is not JSON: ${error.message}`); }
  const list = (Array.isArray(value?.conversations) ? value.conversations : [value]).map(conversation);
  for (const one of list) store({...one, id: newId()});
  return list.length;
}

function asMarkdown(one) {
  const names = {user: "You", assistant: "Answer", system: "System"};
  const quote = text => text.trim().split("\n").map(line => `> ${line}`.trimEnd()).join("\n");
  const called = ({name, arguments: text, result}) => [fenced({name: `Call of ${name}`, text}), fenced({name: "Result", text: result ?? NOT_RUN})];
  const parts = one.turns.flatMap(turn => [`## ${names[turn.role]}`, ...(turn.reasoning ? [quote(turn.reasoning)] : []), whole(turn).trim(), ...(turn.calls ?? []).flatMap(called)].filter(Boolean));
  return `${[`# ${titleOf(one)}`, ...parts].join("\n\n")}\n`;
}

function download(name, text, type) {
  const link = make("a", {href: URL.createObjectURL(new Blob([text], {type})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function fileName(one, end) {
  return `${titleOf(one).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation"}.${end}`;
}
function asJson(value) { return `${JSON.stringify(value, null, 1)}\n`; }
