//! A pseudo-terminal for tests, and `chat` on it.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use akunu_fixtures::scripted::{self, CHATML};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::chat::{ENDLESS, GREETING};
use crate::common::{akunu, finish, path, with_stdin};

const PATIENCE: Duration = Duration::from_secs(60);
const DIM: &str = "\x1b[2m";

/// A program on a pseudo-terminal, and all its output.
pub struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<Vec<u8>>>,
    /// How much of the output has been checked.
    seen: usize,
}

impl Terminal {
    pub fn new(mut command: Command, columns: u16) -> Terminal {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&main, size).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap();
        let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let flags = rustix::fs::OFlags::NOCTTY.bits() as i32;
        let side = || OpenOptions::new().read(true).write(true).custom_flags(flags).open(name).unwrap();
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let mut reader = File::from(main);
        let (keys, screen) = (reader.try_clone().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let written = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when the program has closed its side.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                written.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Terminal { child, keys, screen, seen: 0 }
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn unseen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()[self.seen..]).into_owned()
    }

    /// Waits until this text is shown, and returns the output up to its end.
    pub fn expect(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let shown = self.unseen();
            if let Some(at) = shown.find(text) {
                let end = at + text.len();
                self.seen += end;
                return shown[..end].to_string();
            }
            assert!(start.elapsed() < PATIENCE, "{text:?} is not shown, but {shown:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn interrupt(&self) {
        crate::signals::signal(&self.child, "INT");
    }

    pub fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    /// Whether the terminal shows what is typed, and whether it passes on lines only.
    fn echoes_lines(&self) -> (bool, bool) {
        let modes = tcgetattr(&self.keys).unwrap().local_modes;
        (modes.contains(LocalModes::ECHO), modes.contains(LocalModes::ICANON))
    }

    /// Waits for the program to end; returns the exit code, and whether the terminal echoes and passes on lines.
    fn end_with_mode(mut self) -> (Option<i32>, (bool, bool)) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end: {:?}", self.unseen());
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.child.wait().unwrap().code(), self.echoes_lines())
    }

    /// Waits for the program to end; returns the exit code and the remaining output.
    pub fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end: {:?}", self.unseen());
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(100));
        (self.child.wait().unwrap().code(), self.unseen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A model in a folder, which also contains the history file.
fn scene(chain: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    scripted::write(&dir.path().join("model.gguf"), Some(CHATML), chain);
    dir
}

fn chat(dir: &Path, more: &[&str]) -> Command {
    let model = dir.join("model.gguf");
    let mut command = akunu(&[&["chat", path(&model), "--temp", "0"], more].concat());
    command.env("TERM", "xterm").env("XDG_STATE_HOME", dir).env_remove("NO_COLOR");
    command
}

#[test]
fn lines_are_edited_and_remembered() {
    let dir = scene(&GREETING);
    let mut first = Terminal::new(chat(dir.path(), &[]), 80);
    first.expect("/help lists commands");
    first.expect("> ");
    // Left, left, and a missing letter.
    first.type_keys("Helo\x1b[D\x1b[Dl\r");
    first.expect("Hello there!");
    first.expect("> ");
    first.type_keys("/history\r");
    first.expect("user: Hello\r\n");
    first.expect("> ");
    first.type_keys("/nonsense\r");
    first.expect("unknown command /nonsense");
    first.expect("> ");
    first.type_keys("\x04");
    assert_eq!(first.end().0, Some(0));

    let mut second = Terminal::new(chat(dir.path(), &[]), 80);
    second.expect("> ");
    // Three times up: past /nonsense and /history to the message.
    second.type_keys("\x1b[A\x1b[A\x1b[A\r");
    second.expect("Hello there!");
    second.expect("> ");
    second.type_keys("/history\r");
    second.expect("user: Hello\r\n");
    second.type_keys("/exit\r");
    assert_eq!(second.end().0, Some(0));

    let kept = std::fs::read(dir.path().join("akunu/chat-history")).unwrap();
    let mut third = Terminal::new(chat(dir.path(), &["--no-history"]), 80);
    third.expect("> ");
    third.type_keys("unseen\r");
    third.expect("Hello there!");
    third.expect("> ");
    third.type_keys("\x04");
    assert_eq!(third.end().0, Some(0));
    assert_eq!(std::fs::read(dir.path().join("akunu/chat-history")).unwrap(), kept);
}

#[test]
fn messages_may_have_several_lines() {
    let dir = scene(&GREETING);
    let mut terminal = Terminal::new(chat(dir.path(), &["--no-history"]), 80);
    terminal.expect("> ");
    terminal.type_keys("\x1b[200~pasted\nlines\x1b[201~\r");
    terminal.expect("Hello there!");
    terminal.expect("> ");
    terminal.type_keys("one\\\r");
    terminal.expect("... ");
    terminal.type_keys("two\r");
    terminal.expect("Hello there!");
    terminal.expect("> ");
    terminal.type_keys("\"\"\"never\r");
    terminal.expect("... ");
    terminal.type_keys("sent\x03");
    terminal.expect("the message was dropped");
    terminal.expect("> ");
    terminal.type_keys("\"\"\"a\r");
    terminal.expect("... ");
    terminal.type_keys("b\"\"\"\r");
    terminal.expect("Hello there!");
    terminal.expect("> ");
    terminal.type_keys("/history\r");
    let shown = terminal.expect("user: a\r\nb\r\nassistant: Hello there!");
    assert!(shown.contains("user: pasted\r\nlines\r\n") && shown.contains("user: one\r\ntwo\r\n"), "{shown}");
    terminal.type_keys("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn ctrl_c_ends_the_answer_and_not_the_conversation() {
    let dir = scene(&ENDLESS);
    let mut terminal = Terminal::new(chat(dir.path(), &["-c", "200000", "--no-history"]), 80);
    terminal.expect("> ");
    terminal.type_keys("Go\r");
    terminal.expect("tick tock tick tock");
    terminal.interrupt();
    terminal.expect("note: interrupted: the partial answer is kept");
    terminal.expect("> ");
    terminal.type_keys("/stats\r");
    let shown = terminal.expect("positions");
    assert!(shown.contains("interrupted") && shown.contains("0 reused"), "{shown}");
    terminal.expect("> ");
    // The interrupted answer is reused in the next turn.
    terminal.type_keys("Go on\r");
    terminal.expect("tick tock tick");
    terminal.interrupt();
    terminal.expect("> ");
    terminal.type_keys("/stats\r");
    let shown = terminal.expect("positions");
    assert!(!shown.contains("(0 reused"), "{shown}");
    terminal.type_keys("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn ctrl_c_clears_the_line_and_twice_on_an_empty_one_it_ends() {
    let dir = scene(&GREETING);
    let mut terminal = Terminal::new(chat(dir.path(), &["--no-history"]), 80);
    terminal.expect("> ");
    terminal.type_keys("never sent\x03");
    terminal.expect("\r\n");
    terminal.expect("> ");
    // The line was not empty, so this must not end the program.
    terminal.type_keys("\x03");
    terminal.expect("press Ctrl-C again");
    terminal.expect("> ");
    terminal.type_keys("Hi\r");
    terminal.expect("Hello there!");
    terminal.expect("> ");
    terminal.type_keys("\x03");
    terminal.expect("press Ctrl-C again");
    terminal.expect("> ");
    terminal.type_keys("/history\r");
    let shown = terminal.expect("assistant: Hello there!");
    assert!(!shown.contains("user: never"), "{shown}");
    terminal.expect("> ");
    terminal.type_keys("\x03");
    terminal.expect("press Ctrl-C again");
    terminal.expect("> ");
    terminal.type_keys("\x03");
    assert_eq!(terminal.end().0, Some(130));
}

#[test]
fn reasoning_is_dimmed_if_colours_are_enabled() {
    let dir = scene(&["\n", "<think>", "Hmm.", "</think>", "Yes."]);
    let answer = |change: &dyn Fn(&mut Command)| {
        let mut command = chat(dir.path(), &["-q", "-p", "Well?"]);
        change(&mut command);
        let (code, shown) = Terminal::new(command, 80).end();
        assert_eq!(code, Some(0));
        shown
    };
    assert_eq!(answer(&|_| {}), format!("{DIM}<think>Hmm.</think>\x1b[22mYes.\r\n\r\n"));
    let plain = "<think>Hmm.</think>Yes.\r\n\r\n";
    assert_eq!(answer(&|command| _ = command.env("NO_COLOR", "1")), plain);
    assert_eq!(answer(&|command| _ = command.env("TERM", "dumb")), plain);
}

#[test]
fn a_narrow_terminal_shows_everything() {
    let dir = scene(&GREETING);
    let mut terminal = Terminal::new(chat(dir.path(), &["--no-history"]), 10);
    terminal.expect("> ");
    terminal.type_keys("a message that is longer than the terminal is wide\r");
    terminal.expect("Hello\r\nthere!");
    terminal.expect("> ");
    terminal.type_keys("/history\r");
    terminal.expect("user: a\r\nmessage\r\nthat is\r\nlonger\r\n");
    terminal.type_keys("\x04");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn bars_are_of_blocks_if_the_locale_has_utf_8() {
    let plan = |locale: &str| {
        let mut command = akunu(&["plan", "--device", "reference", "-c", "256"]);
        command.env_remove("LC_CTYPE").env_remove("LANG").env("LC_ALL", locale);
        let (code, shown) = Terminal::new(command, 60).end();
        assert_eq!(code, Some(0));
        let bar = shown.lines().find(|line| line.starts_with('[')).unwrap().trim_end().to_string();
        assert_eq!(bar.chars().count(), 60, "{shown}");
        bar
    };
    let blocks = plan("de_DE.UTF-8");
    assert!(blocks.starts_with("[█▓▒░··"), "{blocks}");
    assert!(plan("C").starts_with("[#=+-.."));
}

/// The answer to one message, which is not typed.
fn answer(dir: &Path, columns: u16, change: &dyn Fn(&mut Command), more: &[&str]) -> String {
    let mut command = chat(dir, &[&["-q", "-p", "Well?"], more].concat());
    change(&mut command);
    let (code, shown) = Terminal::new(command, columns).end();
    assert_eq!(code, Some(0), "{shown}");
    shown
}

const FORMATTED: [&str; 15] = [
    "\n",
    "# Ti",
    "tle\n",
    "Some **bo",
    "ld",
    "** words *a",
    "* b `co",
    "de` *",
    "not, longer line\n",
    "``",
    "`py\nx = ",
    "1 * 2 * 3\n``",
    "`\n- it",
    "em",
    " two ",
];

#[test]
fn markdown_is_shown_as_styles_unless_they_are_switched_off() {
    let dir = scene(&FORMATTED);
    let raw = FORMATTED[1..].concat();
    let styled = "\x1b[1mTitle\x1b[22m\nSome \x1b[1mbold\x1b[22m words \x1b[3ma\x1b[23m b \x1b[36mcode\x1b[39m *not,\n\
                  longer line\n\x1b[2m```py\x1b[22m\n\x1b[36mx = 1 * 2 * 3\x1b[39m\n\x1b[2m```\x1b[22m\n• item two\n\n";
    let one_style = |text: &str| {
        // A style ends with each piece and begins again with the next.
        let joined = text.replace("\x1b[22m\x1b[1m", "").replace("\x1b[22m\x1b[2m", "");
        joined.replace("\x1b[39m\x1b[36m", "").replace("\r\n", "\n")
    };
    assert_eq!(one_style(&answer(dir.path(), 31, &|_| {}, &[])), styled);
    let wrapped = raw.replace("*not, longer", "*not,\nlonger").trim_end().to_string() + "\n\n";
    let no_color = answer(dir.path(), 39, &|command| _ = command.env("NO_COLOR", "1"), &[]);
    assert_eq!(no_color.replace("\r\n", "\n"), wrapped);
    let dumb = answer(dir.path(), 39, &|command| _ = command.env("TERM", "dumb"), &[]);
    assert_eq!(dumb.replace("\r\n", "\n"), wrapped);
    let plain = answer(dir.path(), 30, &|_| {}, &["--plain"]);
    assert_eq!(plain.replace("\r\n", "\n"), format!("{}\n\n", raw.trim_end()));
    // Into a pipe, every byte.
    assert_eq!(finish(chat(dir.path(), &["-q", "-p", "Well?"])).stdout, raw.clone() + "\n");
    let model = dir.path().join("model.gguf");
    assert_eq!(with_stdin(&["chat", path(&model), "-q", "--temp", "0"], b"Well?").stdout, raw + "\n");
}

#[test]
fn the_history_shows_answers_as_the_chat_did() {
    let dir = scene(&["\n", "Some **bold** words\n", "- item"]);
    let history = |columns: u16, options: &[&str]| {
        let mut terminal =
            Terminal::new(chat(dir.path(), &[&["--no-history", "-q"], options].concat()), columns);
        terminal.expect("> ");
        terminal.type_keys("A *star*\r");
        terminal.expect("item");
        terminal.expect("> ");
        terminal.type_keys("/history\r");
        terminal.expect("user: A *star*\r\n");
        let shown = terminal.expect("item");
        terminal.type_keys("\x04");
        assert_eq!(terminal.end().0, Some(0));
        shown.replace("\r\n", "\n")
    };
    assert_eq!(history(80, &[]), "assistant: Some \x1b[1mbold\x1b[22m words\n• item");
    assert_eq!(history(22, &[]), "assistant: Some \x1b[1mbold\x1b[22m\nwords\n• item");
    assert_eq!(history(22, &["--plain"]), "assistant: Some **bold** words\n- item");
}

#[test]
fn lines_follow_the_width_of_the_terminal_while_it_changes() {
    let dir = scene(&ENDLESS);
    let mut terminal = Terminal::new(chat(dir.path(), &["-c", "200000", "--no-history"]), 30);
    terminal.expect("> ");
    terminal.type_keys("Go\r");
    terminal.expect("\r\ntick tock tick tock tick tock\r\ntick tock tick tock tick tock\r\n");
    // Which word comes first depends on the moment.
    let mut follows = |columns: u16, line: &str| {
        terminal.resize(columns);
        let expected =
            [line.to_string(), line.replace("tick", "t?ck").replace("tock", "tick").replace('?', "o")];
        let shown = |line: &String| format!("\r\n{line}\r\n{line}\r\n");
        let start = Instant::now();
        while !expected.iter().any(|line| terminal.unseen().contains(&shown(line))) {
            assert!(start.elapsed() < PATIENCE, "{columns} columns");
            std::thread::sleep(Duration::from_millis(5));
        }
        terminal.seen = terminal.screen.lock().unwrap().len();
    };
    follows(12, "tick tock");
    follows(20, "tick tock tick tock");
    follows(10, "tick tock");
    terminal.interrupt();
    terminal.expect("note: interrupted");
    terminal.expect("> ");
    terminal.type_keys("/exit\r");
    assert_eq!(terminal.end().0, Some(0));
}

#[test]
fn what_is_typed_during_an_answer_is_shown_in_the_next_line_only() {
    let dir = scene(&ENDLESS);
    let mut terminal = Terminal::new(chat(dir.path(), &["-c", "200000", "--no-history"]), 80);
    terminal.expect("> ");
    terminal.type_keys("Go\r");
    terminal.expect("tick tock");
    assert_eq!(terminal.echoes_lines(), (false, false));
    terminal.type_keys("/histo");
    for _ in 0..20 {
        let shown = terminal.expect("tick tock");
        assert!(!shown.contains("/histo"), "{shown}");
    }
    // A shell that stopped and continued the program has set its own mode.
    let mut mode = tcgetattr(&terminal.keys).unwrap();
    mode.local_modes.insert(LocalModes::ECHO | LocalModes::ICANON);
    tcsetattr(&terminal.keys, OptionalActions::Now, &mode).unwrap();
    crate::signals::signal(&terminal.child, "CONT");
    let start = Instant::now();
    while terminal.echoes_lines() != (false, false) {
        assert!(start.elapsed() < PATIENCE, "it echoes");
        std::thread::sleep(Duration::from_millis(5));
    }
    terminal.interrupt();
    terminal.expect("note: interrupted");
    terminal.expect("> ");
    terminal.expect("/histo");
    terminal.type_keys("ry\r");
    terminal.expect("user: Go");
    terminal.expect("> ");
    terminal.type_keys("\x04");
    assert_eq!(terminal.end_with_mode(), (Some(0), (true, true)));
}

#[test]
fn the_terminal_is_restored_however_the_program_ends() {
    let dir = scene(&ENDLESS);
    let answering = || {
        let mut terminal = Terminal::new(chat(dir.path(), &["-c", "200000", "--no-history"]), 80);
        terminal.expect("> ");
        terminal.type_keys("Go\r");
        terminal.expect("tick tock");
        terminal
    };
    let at_the_prompt = || {
        let mut terminal = answering();
        terminal.interrupt();
        terminal.expect("note: interrupted");
        terminal.expect("> ");
        terminal
    };
    for (signal, code) in [("TERM", 143), ("HUP", 129), ("QUIT", 131)] {
        for terminal in [answering(), at_the_prompt()] {
            assert_ne!(terminal.echoes_lines(), (true, true));
            crate::signals::signal(&terminal.child, signal);
            assert_eq!(terminal.end_with_mode(), (Some(code), (true, true)), "{signal}");
        }
    }
    let mut terminal = at_the_prompt();
    terminal.type_keys("\x03");
    terminal.expect("press Ctrl-C again");
    terminal.expect("> ");
    terminal.type_keys("\x03");
    assert_eq!(terminal.end_with_mode(), (Some(130), (true, true)));
}

#[test]
fn generated_control_characters_do_not_reach_the_terminal() {
    let chain =
        ["\n", "a", "<0x1B>", "[2J", "<0x07>", "b", "<0x0D>", "c\td", "<0x7F>", "e\r\nf", "\u{9b}2Jg"];
    let dir = scene(&chain);
    let raw = "a\u{1b}[2J\u{7}b\rc\td\u{7f}e\r\nf\u{9b}2Jg";
    let clean = "a\\u{1b}[2J\\u{7}b\\rc\td\\u{7f}e\r\nf\\u{9b}2Jg";
    assert_eq!(finish(chat(dir.path(), &["-q", "-p", "x"])).stdout, format!("{raw}\n"));
    for more in [&[][..], &["--plain"]] {
        assert_eq!(answer(dir.path(), 80, &|_| {}, more), format!("{clean}\r\n\r\n"));
    }
    let model = dir.path().join("model.gguf");
    let run = || akunu(&["run", path(&model), "-p", "x\u{1b}[2J\n", "--temp", "0", "-q"]);
    assert_eq!(finish(run()).stdout, format!("x\u{1b}[2J\n{raw}\n"));
    let (code, shown) = Terminal::new(run(), 80).end();
    assert_eq!((code, shown), (Some(0), format!("x\\u{{1b}}[2J\r\n{clean}\r\n")));
}

#[test]
fn tab_completes_commands_settings_and_files() {
    let dir = scene(&GREETING);
    std::fs::write(dir.path().join("talk.json"), r#"[{"role": "user", "content": "of before"}]"#).unwrap();
    let mut command = chat(dir.path(), &["--no-history"]);
    command.current_dir(dir.path());
    let mut terminal = Terminal::new(command, 80);
    terminal.expect("> ");
    terminal.type_keys("/lo\tta\t\r");
    terminal.expect("1 message loaded");
    terminal.expect("> ");
    terminal.type_keys("/hi\t\r");
    terminal.expect("user: of before");
    terminal.expect("> ");
    terminal.type_keys("/set te\t0.5\r");
    terminal.expect("temp                 0.5\r\n");
    terminal.expect("> ");
    terminal.type_keys("/model mo\t\r");
    terminal.expect("it goes on with 1 message");
    terminal.expect("> ");
    // Two tabs list the possible commands.
    terminal.type_keys("/s\t\t");
    terminal.expect("/stats");
    terminal.type_keys("\x03");
    terminal.expect("\x1b[?2004l");
    terminal.expect("> ");
    terminal.type_keys("\x04");
    assert_eq!(terminal.end().0, Some(0));
}
