// ---- Controls

function submitOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
  if (!stop) busy(false);
}

$("write").addEventListener("submit", event => {
  event.preventDefault();
  if (stop) {
    if (event.submitter) stop.abort();
    return;
  }
  const content = $("prompt").value.trim();
  if (!(content || attached.length) || !settled()) return;
  const texts = attached;
  attached = [];
  $("prompt").value = "";
  showAttached();
  grow();
  send(content, undefined, texts);
});
$("record").addEventListener("click", record);
$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  if (file && !stop) send(file.name, file);
  $("file").value = "";
});
$("prompt").addEventListener("keydown", event => submitOnEnter(event, $("write")));
$("prompt").addEventListener("input", grow);
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && stop && !document.querySelector("dialog[open]")) stop.abort();
});
$("new").addEventListener("click", () => {
  openTalk({turns: []});
  say("New conversation");
  $("prompt").focus();
});
$("model").addEventListener("change", () => { keep(localStorage, "model", $("model").value); hint(); });

const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  const now = chosen || (dark.matches ? "dark" : "light"), other = now === "dark" ? "light" : "dark";
  $("theme").title = $("theme").ariaLabel = `Use ${other} colours`;
  $("theme").onclick = () => { keep(localStorage, "theme", other); theme(other); };
}
dark.addEventListener("change", () => theme(stored(localStorage, "theme", "")));

theme(stored(localStorage, "theme", ""));
loadSettings();
loadTalks();
loadFiles();
showAll();
toEnd();
grow();
models();
document.addEventListener("visibilitychange", isThere);
addEventListener("online", isThere);
look(IDLE);
