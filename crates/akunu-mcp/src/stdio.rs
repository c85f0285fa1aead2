//! Servers that are processes: a message is a line.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::config::Place;
use crate::error::Reason;
use crate::inbox::{self, Incoming, Outlet};

/// How long a process may take to end when its stdin is closed.
const END: Duration = Duration::from_secs(2);
/// Bytes of its stderr that errors show.
const LAST_WORDS: usize = 2000;
/// Between a process's end and what it wrote last.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Dropped to close the process's stdin.
    lines: Option<Sender<String>>,
}

impl Process {
    /// Starts the process; its messages go to the outlet. It is in a group of its own, so that Ctrl-C does not end it.
    pub fn start(place: &Place, outlet: Outlet) -> Result<Process, Reason> {
        let Place::Stdio { command, args, env, folder } = place else {
            return Err(Reason::Protocol("it is not a process".into()));
        };
        let mut process = Command::new(command);
        // The key of our own server is not for others; a configuration may name it.
        process.env_remove("AKUNU_API_KEY");
        process.args(args).envs(env.iter().map(|(name, value)| (name, value)));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = folder {
            process.current_dir(folder);
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut process, 0);
        let start = |error| Reason::Start { command: command.clone(), error };
        let mut child = process.spawn().map_err(start)?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Reason::Protocol("it has no pipes".into()));
        };
        let words = Arc::new(Mutex::new(VecDeque::new()));
        let heard = words.clone();
        thread::spawn(move || listen(stderr, &heard));
        thread::spawn(move || read(BufReader::new(stdout), &outlet, &words));
        let (lines, written) = channel::<String>();
        thread::spawn(move || {
            for line in written {
                // If it does not read, its end is seen where it is read.
                if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        Ok(Process { child, lines: Some(lines) })
    }

    pub fn send(&self, message: &Json) {
        if let Some(lines) = &self.lines {
            // The other end is gone if the process is.
            let _ = lines.send(format!("{message}\n"));
        }
    }
}

/// Closing stdin asks the process to end; if it does not, it is killed with its group.
impl Drop for Process {
    fn drop(&mut self) {
        self.lines = None;
        let until = Instant::now() + END;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut from: BufReader<impl Read>, outlet: &Outlet, words: &Mutex<VecDeque<u8>>) {
    loop {
        let message = match inbox::line(&mut from) {
            Ok(Some(line)) if line.trim().is_empty() => continue,
            Ok(Some(line)) => inbox::message(&line),
            Ok(None) => {
                thread::sleep(LAST_WORDS_WAIT);
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                Err(Reason::Ended(String::from_utf8_lossy(words.make_contiguous()).into_owned()))
            }
            Err(reason) => Err(reason),
        };
        let failed = message.is_err();
        if outlet.send(Incoming { request: None, message }).is_err() || failed {
            return;
        }
    }
}

/// Keeps the last bytes.
fn listen(mut from: impl Read, words: &Mutex<VecDeque<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend(&bytes[..read]);
        let over = words.len().saturating_sub(LAST_WORDS);
        words.drain(..over);
    }
}
