// ---- Recordings

/** Starts a recording, or ends it and sends it. */
async function record() {
  if (recorder) return recorder.stop();
  try {
    if (!navigator.mediaDevices) throw new Error("a microphone needs HTTPS, or a page at localhost");
    const stream = await navigator.mediaDevices.getUserMedia({audio: true});
    const pieces = [], started = performance.now();
    recorder = new MediaRecorder(stream);
    recorder.ondataavailable = event => pieces.push(event.data);
    recorder.onstop = () => {
      stream.getTracks().forEach(track => track.stop());
      recorder = null;
      recording(false);
      const seconds = Math.round((performance.now() - started) / 1000);
      wave(new Blob(pieces)).then(file => send(`recording of ${seconds} s.wav`, file), failed);
    };
    recorder.start();
    recording(true);
  } catch (error) { failed(error); }
}
function failed(error) { note(`That was not recorded: ${error.message}`); }
function recording(on) {
  $("record").textContent = on ? "Stop recording" : "Record";
  $("record").classList.toggle("on", on);
  $("record").classList.toggle("main", !on);
  $("choose").disabled = $("model").disabled = on;
  note(on ? "Recording…" : "");
}

/** A recording as WAV: browsers record in formats that not every server reads. */
async function wave(recorded) {
  const RATE = 16000, audio = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await recorded.arrayBuffer());
  const channels = Array.from({length: audio.numberOfChannels}, (_, i) => audio.getChannelData(i));
  const view = new DataView(new ArrayBuffer(44 + 2 * audio.length));
  const name = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  name(0, "RIFF"); view.setUint32(4, view.byteLength - 8, true); name(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true); view.setUint32(28, 2 * RATE, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  name(36, "data"); view.setUint32(40, 2 * audio.length, true);
  for (let i = 0; i < audio.length; i++) {
    const sample = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, sample)) * 32767, true);
  }
  return new Blob([view], {type: "audio/wav"});
}
