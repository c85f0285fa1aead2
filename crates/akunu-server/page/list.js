// ---- The list of conversations

function tell(text) { $("talks-note").textContent = text; }

/** A button that acts when it is pressed a second time. */
function sure(label, name, act) {
  const button = make("button", {type: "button", ariaLabel: name, onclick: () => {
    if (button.dataset.asked) return act();
    button.dataset.asked = "yes";
    button.textContent = "Really delete?";
    button.ariaLabel = `Really ${name.toLowerCase()}?`;
    tell("Press again to delete.");
    setTimeout(() => { delete button.dataset.asked; button.textContent = label; button.ariaLabel = name; }, 4000);
  }}, label);
  return button;
}

function rename(one, row, before) {
  const field = make("input", {value: titleOf(one), maxLength: 200, ariaLabel: "New name"});
  const form = make("form", {className: "rename", onsubmit: event => {
    event.preventDefault();
    one.title = field.value.trim();
    if (one.id === talk.id) talk.title = one.title;
    try { store(one); tell("Renamed."); } catch (error) { tell(`That was not renamed: ${error.message}`); }
    listTalks(one.id);
  }}, field, make("button", {className: "main"}, "Rename"));
  field.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    row.replaceChildren(...before);
    before[0].focus();
  });
  row.replaceChildren(form);
  field.select();
}

function forget(one) {
  localStorage.removeItem(KEPT + one.id);
  if (one.id === talk.id) openTalk({turns: []});
}

function talkRow(one) {
  const title = titleOf(one), row = make("li", {className: "talk"});
  const count = `${one.turns.length} ${one.turns.length === 1 ? "message" : "messages"}`;
  const about = make("small", {}, `${new Date(one.changed).toLocaleString([], {dateStyle: "medium", timeStyle: "short"})} · ${count}`);
  const open = make("button", {type: "button", className: "open", onclick: () => { openTalk(one); $("talks").close(); say(title); $("prompt").focus(); }}, make("b", {}, title), about);
  open.dataset.id = one.id;
  if (one.id === talk.id) open.ariaCurrent = "true";
  const button = (label, name, act) => make("button", {type: "button", ariaLabel: `${name} ${title}`, onclick: act}, label);
  row.append(open, make("div", {},
    button("Rename", "Rename", () => rename(one, row, [...row.children])),
    button("JSON", "Save as JSON:", () => download(fileName(one, "json"), asJson(one), "application/json")),
    button("Markdown", "Save as Markdown:", () => download(fileName(one, "md"), asMarkdown(one), "text/markdown")),
    sure("Delete", `Delete ${title}`, () => { forget(one); listTalks(); tell("Deleted."); $("search").focus(); })));
  return row;
}

/** Shows what is kept and has the words that are searched for. The focus may go to one of them. */
function listTalks(focused) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), all = keptTalks();
  const found = all.filter(one => {
    const text = [titleOf(one), ...one.turns.map(whole)].join("\n").toLowerCase();
    return words.every(word => text.includes(word));
  });
  $("kept").replaceChildren(...found.map(talkRow));
  $("kept-count").textContent = !all.length ? "No conversation is kept yet." : words.length ? `${found.length} of ${all.length}` : "";
  $("save-all").disabled = $("delete-all").disabled = !all.length;
  if (focused) document.querySelector(`#kept [data-id="${CSS.escape(focused)}"]`)?.focus();
}

function showTalks() {
  $("search").value = "";
  tell("");
  listTalks();
  if (!$("talks").open) $("talks").showModal();
  $("search").focus();
}

function loadTalks() {
  const id = stored(sessionStorage, "talk", null);
  talk = (typeof id === "string" && keptTalk(KEPT + id)) || talk;
  const all = sure("Delete all", "Delete all", () => {
    keptKeys().forEach(key => localStorage.removeItem(key));
    if (talk.id) openTalk({turns: []});
    listTalks();
    tell("All are deleted.");
    $("search").focus();
  });
  all.id = "delete-all";
  $("save-all").after(all);
  $("list").addEventListener("click", showTalks);
  $("make-space").addEventListener("click", showTalks);
  $("search").addEventListener("input", () => listTalks());
  $("save-all").addEventListener("click", () => download("conversations.json", asJson({conversations: keptTalks()}), "application/json"));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async () => {
    const [file] = $("import-file").files;
    if (!file) return;
    try {
      const count = await importFile(file);
      listTalks();
      tell(`${count} ${count === 1 ? "conversation was" : "conversations were"} imported.`);
    } catch (error) { listTalks(); tell(`${file.name} cannot be imported: ${error.message}`); }
    $("import-file").value = "";
  });
  // What could not be kept is kept when there is space.
  $("talks").addEventListener("close", () => { if (!$("full").hidden && !stop) keepTalk(); });
  // An answer that is coming is kept as far as it came.
  addEventListener("pagehide", () => { if (stop) keepTalk(); });
}
