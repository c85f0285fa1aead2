// ---- Whether the server is there

const AWAY = "The server does not answer.";
/** Milliseconds between questions: while the server is gone, at first and at most; and while it is there. */
const SOONEST = 500, LATEST = 10000, IDLE = 15000;
const watch = {gone: false, wait: IDLE, timer: 0};

/** What a request throws if there is no answer, because the server or the network is gone. */
function lost(error, text) {
  if (error.name === "AbortError") return error;
  vanished();
  return new Error(text);
}

function vanished() {
  if (watch.gone) return;
  watch.gone = true;
  watch.wait = SOONEST;
  $("gone").hidden = false;
  look(watch.wait);
}

function look(wait) {
  clearTimeout(watch.timer);
  watch.timer = setTimeout(isThere, wait);
}

/** Asks whether the server is there, now and from time to time: not while the page is hidden. */
async function isThere() {
  if (document.hidden) return;
  if (!stop || watch.gone) {
    try {
      await fetch("health", {cache: "no-store"});
      if (watch.gone) {
        watch.gone = false;
        $("gone").hidden = true;
        say("The server is back.");
        await models();
        note("The server is back.");
      }
      watch.wait = IDLE;
    } catch {
      vanished();
      watch.wait = Math.min(2 * watch.wait, LATEST);
    }
  }
  look(watch.wait);
}
