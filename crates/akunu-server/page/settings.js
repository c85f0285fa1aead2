// ---- Settings

/** Fields of requests with numbers. */
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
const FIELDS = ["system", "schema", ...NUMBERS];

/** The schema of answers, if there is one. Throws what is wrong with it. */
function schema() {
  const text = $("schema").value.trim();
  if (!text) return undefined;
  let value;
  try { value = JSON.parse(text); } catch (error) { throw new Error(`The schema is not JSON: ${error.message}`); }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("The schema is not a JSON object.");
  return value;
}

function checkSchema() {
  let problem = "";
  try { schema(); } catch (error) { problem = error.message; }
  $("schema").setCustomValidity(problem);
  $("schema").ariaInvalid = String(!!problem);
  $("schema-problem").textContent = problem;
}

/** Whether requests can be made with the settings; if not, shows the first that is wrong. */
function settled() {
  const wrong = FIELDS.find(id => !$(id).validity.valid);
  if (!wrong) return true;
  settings(wrong);
  $(wrong).reportValidity();
  return false;
}

/** What settings add to a request. */
function options() {
  const body = {};
  for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
  const held = schema();
  if (held) body.response_format = {type: "json_schema", json_schema: {name: "answer", schema: held, strict: true}};
  return body;
}

/** A row of the list of models. */
function modelRow({id, capabilities, context_length}) {
  const facts = [...(capabilities ?? []), context_length && `${context_length.toLocaleString("en")} tokens of context`];
  const chosen = id === $("model").value;
  return make("li", chosen ? {ariaCurrent: "true"} : {}, make("b", {}, id), make("span", {}, facts.filter(Boolean).join(", ") || "its files cannot be read"));
}

function settings(field) {
  if (!$("settings").open) $("settings").showModal();
  $(field)?.focus();
}

function loadSettings() {
  for (const [id, value] of Object.entries(stored(localStorage, "settings", {}))) if (FIELDS.includes(id)) $(id).value = value;
  $("key").value = stored(sessionStorage, "key", "");
  checkSchema();
  $("schema").addEventListener("input", checkSchema);
  $("open").addEventListener("click", () => settings("system"));
  $("defaults").addEventListener("click", () => { FIELDS.forEach(id => $(id).value = ""); checkSchema(); });
  $("settings").addEventListener("close", () => {
    keep(localStorage, "settings", Object.fromEntries(FIELDS.map(id => [id, $(id).value])));
    keep(sessionStorage, "key", $("key").value);
    models();
  });
}
