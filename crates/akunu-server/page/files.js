// ---- Files that are added to a message as text

const MOST_BYTES = 1_000_000, MOST_FILES = 20;
/** Files {name, text} for the next message. */
let attached = [];

function size(bytes) { return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`; }

/** A text with its name, in a fence that is not in it. */
function fenced({name, text}) {
  const fence = "`".repeat((text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length + 1), 3));
  return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/** A turn as the model reads it: each file in a fence. */
function whole({content, files}) {
  return [...(files ?? []).map(fenced), content].filter(Boolean).join("\n\n");
}

async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${size(file.size)}; at most ${size(MOST_BYTES)} can be added.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text;
  try { text = new TextDecoder("utf-8", {fatal: true}).decode(bytes); } catch { /* said below */ }
  if (text === undefined || text.includes("\0")) throw new Error(`${file.name} is not a text in UTF-8.`);
  return text;
}

async function attach(list) {
  const problems = [];
  for (const file of list) {
    try {
      if (attached.length >= MOST_FILES) throw new Error(`${file.name} is not added: a message has at most ${MOST_FILES} files.`);
      attached.push({name: file.name, text: await textOf(file)});
    } catch (error) { problems.push(error.message); }
  }
  showAttached();
  $("attached-problem").textContent = problems.join(" ");
}

function showAttached() {
  const chip = one => make("li", {}, `${one.name} `, make("button", {type: "button", ariaLabel: `Remove ${one.name}`, onclick: () => {
    attached = attached.filter(other => other !== one);
    showAttached();
    $("prompt").focus();
  }}, "×"));
  $("attached").replaceChildren(...attached.map(chip));
  $("attached").hidden = !attached.length;
  $("attached-problem").textContent = "";
  busy(!!stop);
}

/** A file of a turn on the screen, folded. */
function fileShown({name, text}) {
  return make("details", {className: "file"}, make("summary", {}, `${name} · ${size(new Blob([text]).size)}`), make("pre", {tabIndex: 0}, text));
}

/** Takes files that are dropped on the page or pasted; a model that transcribes takes one. */
function taken(list) {
  if (stop || !list.length || document.querySelector("dialog[open]")) return;
  if (listens()) send(list[0].name, list[0]);
  else attach(list);
}

function loadFiles() {
  $("attach").addEventListener("click", () => $("text-file").click());
  $("text-file").addEventListener("change", async () => {
    await attach([...$("text-file").files]);
    $("text-file").value = "";
    $("prompt").focus();
  });
  const carries = event => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", event => {
    if (!carries(event)) return;
    event.preventDefault();
    $("write").classList.add("over");
  });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) $("write").classList.remove("over"); });
  document.addEventListener("drop", event => {
    $("write").classList.remove("over");
    if (!carries(event)) return;
    event.preventDefault();
    taken([...event.dataTransfer.files]);
  });
  $("prompt").addEventListener("paste", event => {
    if (event.clipboardData.types.includes("text/plain") || !event.clipboardData.files.length) return;
    event.preventDefault();
    taken([...event.clipboardData.files]);
  });
}
