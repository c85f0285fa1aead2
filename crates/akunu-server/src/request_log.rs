//! The request log: a line for each request when it ends, written by a thread of its own.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value as Json, json};

use crate::error::ServeError;
use crate::timestamp::timestamp;

/// Lines that may wait to be written. Requests do not wait for the log: further lines are counted, and left out.
const WAITING: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: the fields that a request has, as `name=value`.
    Text,
    /// For programs: an object on each line, always with the same fields.
    Json,
}

/// A log of requests. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct RequestLog {
    format: LogFormat,
    is_verbose: bool,
    lines: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Lines that were left out since the last one.
    lost: AtomicU64,
    /// Nobody reads the log any more.
    is_closed: AtomicBool,
}

#[derive(Debug)]
enum Message {
    Line(String),
    Flush(SyncSender<()>),
}

impl RequestLog {
    /// `is_verbose`: with sampling settings, the client's name, and successful health checks. `tell` receives messages
    /// for the operator, if the log cannot be written.
    pub fn new(
        format: LogFormat,
        is_verbose: bool,
        to: Box<dyn Write + Send>,
        tell: fn(&str),
    ) -> Result<RequestLog, ServeError> {
        let (lines, receiver) = sync_channel(WAITING);
        let shared = Arc::<Shared>::default();
        let writer = Writer { format, to, tell, shared: shared.clone(), has_failed: false };
        let thread = std::thread::Builder::new().name("akunu-log".into());
        thread.spawn(move || writer.run(&receiver)).map_err(ServeError::Threads)?;
        Ok(RequestLog { format, is_verbose, lines, shared })
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.is_verbose
    }

    /// Writes a line, without waiting.
    pub(crate) fn write(&self, mut fields: Map<String, Json>) {
        if self.shared.is_closed.load(Ordering::Relaxed) {
            return;
        }
        if !self.is_verbose {
            fields.retain(|name, _| !VERBOSE.contains(&name.as_str()));
        }
        if self.lines.try_send(Message::Line(line(self.format, &fields))).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a message among the lines, without waiting, for a server whose messages go where the log goes.
    pub fn note(&self, message: String) {
        if self.lines.try_send(Message::Line(message)).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for the lines so far to be written, for at most a time.
    pub(crate) fn flush(&self, within: Duration) {
        let until = Instant::now() + within;
        let (done, wait) = sync_channel(1);
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(again)) = self.lines.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
            message = again;
        }
        let _ = wait.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

struct Writer {
    format: LogFormat,
    to: Box<dyn Write + Send>,
    tell: fn(&str),
    shared: Arc<Shared>,
    /// The last line could not be written.
    has_failed: bool,
}

impl Writer {
    /// Writes lines until the log is dropped.
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            let (mut text, mut flushed) = (String::new(), Vec::new());
            for message in std::iter::once(first).chain(messages.try_iter().take(WAITING)) {
                match message {
                    Message::Line(line) => text.extend([&line, "\n"]),
                    Message::Flush(done) => flushed.push(done),
                }
            }
            let lost = self.shared.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                text.extend([&lost_line(self.format, lost), "\n"]);
            }
            self.write(&text);
            for done in flushed {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, text: &str) {
        if text.is_empty() || self.shared.is_closed.load(Ordering::Relaxed) {
            return;
        }
        let Err(error) = self.to.write_all(text.as_bytes()).and_then(|()| self.to.flush()) else {
            self.has_failed = false;
            return;
        };
        let is_closed = error.kind() == ErrorKind::BrokenPipe;
        self.shared.is_closed.store(is_closed, Ordering::Relaxed);
        if !std::mem::replace(&mut self.has_failed, true) {
            let rest = if is_closed { "; requests are not logged any more" } else { "" };
            (self.tell)(&format!("warning: the request log cannot be written: {error}{rest}"));
        }
    }
}

/// Fields of verbose logs only.
const VERBOSE: [&str; 2] = ["client", "sampling"];

/// Fields at the beginning of a line of text, without their names.
const HEAD: [&str; 4] = ["time", "status", "method", "path"];

/// Fields that have other names in text.
const SHORT: [(&str, &str); 5] = [
    ("prompt_tokens", "prompt"),
    ("cached_tokens", "cached"),
    ("output_tokens", "output"),
    ("first_token_ms", "first"),
    ("total_ms", "total"),
];

fn line(format: LogFormat, fields: &Map<String, Json>) -> String {
    match format {
        // A map of JSON values can always be written.
        LogFormat::Json => escaped(&serde_json::to_string(fields).unwrap_or_default()),
        LogFormat::Text => text(fields),
    }
}

fn text(fields: &Map<String, Json>) -> String {
    let head = HEAD.map(|name| fields.get(name).filter(|value| !value.is_null()).map_or("---".into(), word));
    let mut line = head.join(" ");
    let rest = fields.iter().filter(|(name, _)| !HEAD.contains(&name.as_str()));
    let values = rest.flat_map(|(name, value)| match value {
        Json::Object(inner) => inner.iter().collect::<Vec<_>>(),
        _ => vec![(name, value)],
    });
    for (name, value) in values.filter(|(_, value)| !value.is_null()) {
        let short = SHORT.iter().find(|(long, _)| long == name).map_or(name.as_str(), |(_, short)| short);
        let value = if name.ends_with("_ms") { duration(value) } else { word(value) };
        line.push_str(&format!(" {short}={value}"));
    }
    line
}

/// `12ms`, `1.23s`
fn duration(milliseconds: &Json) -> String {
    match milliseconds.as_f64().unwrap_or_default() {
        short if short < 10.0 => format!("{short:.1}ms"),
        middle if middle < 1e3 => format!("{middle:.0}ms"),
        long => format!("{:.2}s", long / 1e3),
    }
}

/// A value as one word. Texts with other characters than those of names are quoted, so that no client can write lines
/// or fields of its own, or reach a terminal.
fn word(value: &Json) -> String {
    let Json::String(text) = value else { return value.to_string() };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@+,*{}[]".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.clone(),
        false => format!("{text:?}"),
    }
}

/// JSON in which all control characters and line breaks are escaped. They can only be in strings.
fn escaped(json: &str) -> String {
    let needs = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match needs(c) {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text
}

fn lost_line(format: LogFormat, lost: u64) -> String {
    let time = timestamp(SystemTime::now());
    match format {
        LogFormat::Json => json!({ "time": time, "lost": lost }).to_string(),
        LogFormat::Text => format!("{time} {lost} lines are missing: the log was not read fast enough"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn fields(more: Json) -> Map<String, Json> {
        let mut fields = json!({ "time": "T", "status": 200, "method": "GET", "path": "/a" });
        let fields = fields.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        fields.clone()
    }

    #[test]
    fn what_clients_choose_stays_within_its_field() {
        let evil = "a b\" model=x\nT 200 GET /\u{1b}[31m\u{9b}\u{7f}\u{2028}\u{202e}";
        let all = fields(json!({ "path": evil, "model": evil, "prompt_tokens": 3, "key": null }));
        let line = text(&all);
        assert!(line.chars().all(|c| !c.is_control() && !matches!(c, '\u{2028}' | '\u{202e}')), "{line}");
        assert!(line.starts_with("T 200 GET \"a b\\\" model=x\\nT"), "{line}");
        assert!(line.ends_with(" prompt=3"), "{line}");
        let line = super::line(LogFormat::Json, &all);
        assert!(line.chars().all(|c| !c.is_control() && c != '\u{2028}'), "{line}");
        assert_eq!(serde_json::from_str::<Json>(&line).unwrap(), Json::Object(all));
    }

    #[test]
    fn text_has_the_fields_that_there_are() {
        let all = fields(json!({
            "status": null, "first_token_ms": 4.25, "total_ms": 12_345.6, "finish": "stop,length", "error": null,
            "sampling": { "temperature": 0.7, "seed": null },
        }));
        assert_eq!(text(&all), "T --- GET /a first=4.2ms total=12.35s finish=stop,length temperature=0.7");
    }

    /// Blocks until it is released, and then fails as told.
    struct Slow(Receiver<Option<ErrorKind>>, Arc<Mutex<String>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            match self.0.recv() {
                Ok(Some(error)) => Err(error.into()),
                _ => {
                    self.1.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
                    Ok(bytes.len())
                }
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn slow(tell: fn(&str)) -> (RequestLog, SyncSender<Option<ErrorKind>>, Arc<Mutex<String>>) {
        let (release, held) = sync_channel(WAITING);
        let written = Arc::<Mutex<String>>::default();
        let to = Box::new(Slow(held, written.clone()));
        (RequestLog::new(LogFormat::Text, false, to, tell).unwrap(), release, written)
    }

    #[test]
    fn a_log_that_is_not_read_loses_lines_and_says_how_many() {
        let (log, release, written) = slow(|_| {});
        let count = 3 * WAITING;
        (0..count).for_each(|_| log.write(fields(json!({}))));
        drop(release);
        log.flush(Duration::from_secs(60));
        log.flush(Duration::from_secs(60));
        let text = written.lock().unwrap().clone();
        let lines = text.lines().filter(|line| line.contains("GET")).count();
        let words =
            text.lines().filter(|line| line.contains("missing")).filter_map(|line| line.split(' ').nth(1));
        let lost: usize = words.map(|word| word.parse::<usize>().unwrap()).sum();
        assert!(lost >= WAITING && lines >= WAITING, "{lines} {lost}");
        assert_eq!(lines + lost, count);
    }

    #[test]
    fn a_closed_log_is_reported_once_and_a_full_disk_is_tried_again() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let (log, release, written) = slow(|text| TOLD.lock().unwrap().push(text.to_string()));
        let write = |outcome| {
            release.send(outcome).unwrap();
            log.write(fields(json!({})));
            log.flush(Duration::from_secs(60));
        };
        write(Some(ErrorKind::StorageFull));
        write(Some(ErrorKind::StorageFull));
        write(None);
        assert_eq!(written.lock().unwrap().lines().count(), 1);
        write(Some(ErrorKind::BrokenPipe));
        assert!(log.shared.is_closed.load(Ordering::Relaxed));
        write(None);
        assert_eq!(written.lock().unwrap().lines().count(), 1);
        let told = TOLD.lock().unwrap();
        assert!(told.len() == 2 && told[1].contains("not logged any more"), "{told:?}");
    }
}
