// ---- The conversation on the screen

function copier(text, label) {
  const button = make("button", {type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text()); button.textContent = "Copied"; say("Copied"); }
    catch { button.textContent = "Cannot copy"; }
    setTimeout(() => button.textContent = label, 1500);
  }}, label);
  return button;
}

/** A turn's element, with a method that shows the turn as it now is. */
function show(turn) {
  const user = turn.role === "user", system = turn.role === "system";
  const article = make("article", {className: `turn ${turn.role}`}, make("h2", {className: "hidden"}, user ? "You" : system ? "System" : "Answer"));
  const text = make("div", {className: "text"}), foot = make("div", {className: "foot"});
  const button = (label, act, more = {}) => make("button", {type: "button", onclick: act, ...more}, label);
  if (user || system) {
    text.textContent = turn.content;
    if (user && !turn.audio) foot.append(button("Edit", () => edit(turn, article)));
    foot.append(copier(() => whole(turn), "Copy"));
    if (turn.files) article.append(...turn.files.map(fileShown));
    if (turn.content) article.append(text);
    article.append(foot);
  } else {
    const summary = make("summary"), thoughts = make("div", {className: "text"});
    const thought = make("details", {className: "thought", hidden: true}, summary, thoughts);
    const problem = make("div", {className: "problem", hidden: true}), calls = make("div"), numbers = make("span", {className: "numbers"});
    foot.append(button("Regenerate", again, {className: "last-only"}), copier(() => turn.content, "Copy"), numbers);
    article.append(thought, text, calls, problem, foot);
    article.update = running => {
      article.ariaBusy = String(running);
      text.classList.toggle("waiting", running && !turn.content && !turn.calls);
      foot.hidden = running;
      thought.hidden = !turn.reasoning;
      if (turn.reasoning) {
        summary.textContent = turn.thought === undefined ? "Thinking…" : `Thought for ${turn.thought.toFixed(1)} s`;
        render(thoughts, turn.reasoning);
      }
      render(text, turn.content);
      renderCalls(calls, turn.calls ?? [], running);
      problem.hidden = !turn.problem;
      if (turn.problem) problem.replaceChildren(make("b", {}, "That did not work. "), turn.problem);
      numbers.textContent = turn.numbers ?? "";
    };
    article.update(false);
  }
  $("talk").append(article);
  $("empty").hidden = true;
  return article;
}

function showAll() {
  $("talk").replaceChildren();
  $("empty").hidden = talk.turns.length > 0;
  talk.turns.forEach(show);
}

function edit(turn, article) {
  if (stop) return;
  const field = make("textarea", {value: turn.content, rows: Math.min(12, turn.content.split("\n").length + 1), ariaLabel: "Edit message"});
  const before = [...article.children];
  const done = () => { article.replaceChildren(...before); $("prompt").focus(); };
  const form = make("form", {onsubmit: event => {
    event.preventDefault();
    if (stop || !field.value.trim()) return;
    talk.turns.length = talk.turns.indexOf(turn);
    showAll();
    send(field.value.trim(), undefined, turn.files);
  }}, field, make("div", {}, make("button", {type: "button", onclick: done}, "Cancel"), make("button", {className: "main"}, "Send")));
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") { event.stopPropagation(); done(); }
    submitOnEnter(event, form);
  });
  article.replaceChildren(form);
  field.focus();
}

function say(text) { $("said").textContent = text; }
function note(text) { $("note").textContent = text; }
function hint() {
  const listening = listens();
  $("prompt").hidden = $("attach").hidden = listening;
  $("listen").hidden = !listening;
  $("what").textContent = listening ? "Say something." : "Write something.";
  $("how").hidden = listening;
  busy(!!stop);
  if (!recorder) note(listening ? "This model transcribes audio." : "");
  if (!listening) note(plain.has($("model").value) ? "This model has no chat template: it continues what is written." : "");
}

function atEnd() {
  return $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 60;
}
function toEnd() { $("scroll").scrollTop = $("scroll").scrollHeight; }

function busy(running) {
  $("send").textContent = running ? "Stop" : "Send";
  $("send").disabled = !running && !$("prompt").value.trim() && !attached.length;
  $("send").hidden = !running && listens();
  $("record").disabled = $("choose").disabled = running;
  $("model").disabled = $("new").disabled = $("list").disabled = $("make-space").disabled = running;
}
