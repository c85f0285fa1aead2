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

/** Answers the conversation: runs the calls that an answer makes, and answers their results. */
async function answer() {
  const own = stop = new AbortController();
  let turn, article;
  busy(true);
  say("Answering");
  for (let rounds = 0; ; rounds++) {
    const turns = talk.turns.filter(turn => turn.content || turn.files || turn.calls);
    turn = {role: "assistant", content: "", reasoning: ""};
    talk.turns.push(turn);
    article = show(turn);
    await generate(turns, turn, article, own);
    if (!turn.calls || turn.problem || own.signal.aborted) break;
    if (rounds === MOST_ROUNDS) turn.problem = `A message takes at most ${MOST_ROUNDS} rounds of calls.`;
    else await called(turn, article, own);
    if (turn.problem || own.signal.aborted) break;
    keepTalk();
  }
  const follow = atEnd();
  stop = null;
  busy(false);
  hint();
  article.update(false);
  if (follow) toEnd();
  say(turn.problem ? `That did not work. ${turn.problem}` : `${own.signal.aborted ? "Stopped. " : ""}${article.querySelector(":scope > .text").textContent}`);
  keepTalk();
}

async function generate(turns, turn, article, own) {
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
  article.update(true);
  toEnd();
  try {
    const response = await chat(turns, own.signal);
    clock.warning = response.headers.get("x-akunu-warnings");
    for await (const event of events(response)) take(event, turn, clock, draw);
    if (turn.calls && clock.cut) throw new Error("The call was cut at the most tokens.");
    turn.numbers = numbers(clock);
  } catch (error) {
    broke(error, turn, own, numbers(clock));
    // What there is of calls may not be whole.
    delete turn.calls;
  }
  if (turn.reasoning) turn.thought ??= (performance.now() - clock.first) / 1000;
}

async function called(turn, article, own) {
  const draw = () => {
    const follow = atEnd();
    article.update(true);
    if (follow) toEnd();
  };
  draw();
  try {
    await runCalls(turn, own.signal, draw);
  } catch (error) { broke(error, turn, own, turn.numbers); }
  article.update(false);
}

function broke(error, turn, own, said) {
  if (own.signal.aborted) turn.numbers = [said, "stopped"].filter(Boolean).join(" · ");
  else turn.problem = error.message;
  if (error.status === 401) settings("key");
}

/** What an event brings is added to the turn. */
function take({choices, usage, timings, delta}, turn, clock, draw) {
  if (usage) clock.usage = usage;
  if (timings) clock.timings = timings;
  if (delta) clock.transcript = true;
  const choice = choices?.[0] ?? (delta && {text: delta});
  if (!choice) return;
  if (choice.delta?.tool_calls) takeCalls(turn, choice.delta.tool_calls);
  const content = choice.delta?.content ?? choice.text ?? "", reasoning = choice.delta?.reasoning_content ?? choice.delta?.reasoning ?? "";
  if (content || reasoning || choice.delta?.tool_calls) {
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
function numbers({started, first, last, pieces, usage, timings, cut, transcript, warning}) {
  if (!first) return "";
  if (transcript) return `${pieces} ${pieces === 1 ? "segment" : "segments"} · ${((last - started) / 1000).toFixed(2)} s`;
  const tokens = usage?.completion_tokens ?? pieces, rate = timings?.predicted_per_second;
  const parts = [`${usage ? "" : "about "}${tokens} ${tokens === 1 ? "token" : "tokens"}`];
  if (rate) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
  parts.push(`first after ${((first - started) / 1000).toFixed(2)} s`);
  if (cut) parts.push("cut at the most tokens");
  if (warning) parts.push(warning);
  return parts.join(" · ");
}
