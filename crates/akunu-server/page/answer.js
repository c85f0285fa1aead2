// ---- Requests

function send(content, file, texts) {
  const turn = {role: "user", content};
  if (file) {
    turn.audio = true;
    files.set(turn, file);
  }
  if (texts?.length) turn.files = texts;
  talk.turns.push(turn);
  show(turn);
  keepTalk();
  answer();
}

function again() {
  if (stop || talk.turns.at(-1)?.role !== "assistant") return;
  talk.turns.pop();
  $("talk").lastChild.remove();
  answer();
}

async function answer() {
  const turns = talk.turns.filter(turn => turn.content || turn.files), turn = {role: "assistant", content: "", reasoning: ""};
  talk.turns.push(turn);
  const article = show(turn), own = stop = new AbortController();
  const clock = {started: performance.now(), pieces: 0};
  let drawn = 0;
  const draw = () => {
    drawn ||= requestAnimationFrame(() => {
      drawn = 0;
      if (own !== stop) return;
      const follow = atEnd();
      article.update(true);
      if (follow) toEnd();
      note(numbers(clock));
    });
  };
  busy(true);
  article.update(true);
  toEnd();
  say("Answering");
  try {
    const response = await chat(turns, own.signal);
    for await (const event of events(response)) take(event, turn, clock, draw);
    turn.numbers = numbers(clock);
  } catch (error) {
    if (own.signal.aborted) turn.numbers = [numbers(clock), "stopped"].filter(Boolean).join(" · ");
    else turn.problem = error.message;
    if (error.status === 401) settings("key");
  }
  if (turn.reasoning) turn.thought ??= (performance.now() - clock.first) / 1000;
  const follow = atEnd();
  stop = null;
  busy(false);
  hint();
  article.update(false);
  if (follow) toEnd();
  say(turn.problem ? `That did not work. ${turn.problem}` : `${own.signal.aborted ? "Stopped. " : ""}${article.querySelector(":scope > .text").textContent}`);
  keepTalk();
}

/** What an event brings is added to the turn. */
function take({choices, usage, timings, delta}, turn, clock, draw) {
  if (usage) clock.usage = usage;
  if (timings) clock.timings = timings;
  if (delta) clock.transcript = true;
  const choice = choices?.[0] ?? (delta && {text: delta});
  if (!choice) return;
  const content = choice.delta?.content ?? choice.text ?? "", reasoning = choice.delta?.reasoning_content ?? choice.delta?.reasoning ?? "";
  if (content || reasoning) {
    clock.first ??= performance.now();
    clock.last = performance.now();
    clock.pieces++;
    turn.reasoning += reasoning;
    if (content && turn.reasoning) turn.thought ??= (performance.now() - clock.first) / 1000;
    turn.content += content;
    draw();
  }
  if (choice.finish_reason === "length") clock.cut = true;
}

/** What is known of an answer. Rates are the server's: pieces arrive in bursts, which say nothing about it. */
function numbers({started, first, last, pieces, usage, timings, cut, transcript}) {
  if (!first) return "";
  if (transcript) return `${pieces} ${pieces === 1 ? "segment" : "segments"} · ${((last - started) / 1000).toFixed(2)} s`;
  const tokens = usage?.completion_tokens ?? pieces, rate = timings?.predicted_per_second;
  const parts = [`${usage ? "" : "about "}${tokens} ${tokens === 1 ? "token" : "tokens"}`];
  if (rate) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
  parts.push(`first after ${((first - started) / 1000).toFixed(2)} s`);
  if (cut) parts.push("cut at the most tokens");
  return parts.join(" · ");
}
