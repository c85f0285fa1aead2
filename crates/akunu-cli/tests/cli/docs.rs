//! README.md and `docs/`: commands run, links lead somewhere, pages are short.
//!
//! The information string of a block says what is done with it: `sh` is run as a script, in a folder with a model and
//! other files; of `sh no-run` (what needs a download, a GPU or a running server) the options of each command are checked,
//! and of `sh mac` on a Mac; in `console`, lines after `$ ` are run, and the lines between are their output, with `…` for what differs.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::run;
use shell::{akunu_arguments, commands};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files of a folder and of folders in it.
fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// README.md and its neighbours, and all of docs, with their names.
fn pages() -> Vec<(String, String)> {
    let root = root();
    let mut paths: Vec<PathBuf> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    markdown(&root.join("docs"), &mut paths);
    paths.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// A block between fences.
struct Block {
    /// `docs/chat.md:12`
    place: String,
    info: String,
    text: String,
}

/// The blocks of a page, and its other lines with their numbers.
fn parts<'a>(name: &str, page: &'a str) -> (Vec<Block>, Vec<(usize, &'a str)>) {
    let (mut blocks, mut lines, mut open): (Vec<Block>, _, Option<Block>) = (Vec::new(), Vec::new(), None);
    for (number, line) in (1..).zip(page.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let place = format!("{name}:{number}");
                open = Some(Block { place, info: info.to_string(), text: String::new() });
            }
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => lines.push((number, line)),
        }
    }
    assert!(open.is_none(), "{name}: a block has no end");
    (blocks, lines)
}

/// Blocks of pages for users and contributors; measurements and decisions are records of another day.
fn blocks() -> Vec<Block> {
    let is_record = |name: &str| {
        ["CHANGELOG.md", "docs/cli.md", "docs/measurements/", "docs/decisions/"]
            .iter()
            .any(|part| name.starts_with(part))
    };
    let pages = pages().into_iter().filter(|(name, _)| !is_record(name));
    pages.flat_map(|(name, page)| parts(&name, &page).0).collect()
}

#[test]
fn options_of_all_commands_exist() {
    for block in blocks() {
        let script = match block.info.as_str() {
            "sh" | "sh no-run" => block.text.clone(),
            // A unit of systemd.
            "ini" => block.text.replace("ExecStart=", "ExecStart\n"),
            "sh mac" if cfg!(target_os = "macos") => block.text.clone(),
            "sh mac" => continue,
            "console" => block
                .text
                .lines()
                .filter_map(|line| line.strip_prefix("$ "))
                .fold(String::new(), |all, line| all + line + "\n"),
            _ => {
                let named = |line: &str| akunu_arguments(&commands(line).concat()).is_some();
                let line = block.text.lines().find(|line| named(line.trim_start_matches("$ ")));
                let advice = "begin the block with ```sh, ```sh no-run or ```console";
                assert!(line.is_none(), "{}: {line:?} is not checked: {advice}", block.place);
                continue;
            }
        };
        for command in commands(&script) {
            let Some(arguments) = akunu_arguments(&command) else { continue };
            if matches!(arguments.first().map(String::as_str), None | Some("help")) {
                continue;
            }
            // Options before --help are checked first.
            let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            arguments.push("--help");
            let done = run(&arguments);
            assert_eq!(done.code, 0, "{}: {command:?}: {}", block.place, done.stderr);
        }
    }
}

#[cfg(unix)]
mod running {
    use std::collections::VecDeque;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    /// Programs of blocks that are run, besides akunu.
    const PROGRAMS: [&str; 3] = ["printf", "echo", "cat"];

    /// The files that commands of the documentation read.
    fn folder() -> tempfile::TempDir {
        let (folder, root) = (tempfile::tempdir().unwrap(), root());
        let at = |name: &str| folder.path().join(name);
        symlink(root.join("crates/akunu/embedded/akunu-tales.gguf"), at("model.gguf")).unwrap();
        for (name, model) in
            [("all-MiniLM-L6-v2", "bert-mean"), ("ms-marco-MiniLM-L6-v2", "bert-cross-encoder")]
        {
            fs::create_dir(at(name)).unwrap();
            for entry in fs::read_dir(root.join("testdata/encoders").join(model)).unwrap() {
                let entry = entry.unwrap();
                symlink(entry.path(), at(name).join(entry.file_name())).unwrap();
            }
            symlink(root.join("xtask/clients/words.json"), at(name).join("tokenizer.json")).unwrap();
        }
        let quickstart = fs::read_to_string(root.join("docs/quickstart.md")).unwrap();
        let (blocks, _) = parts("docs/quickstart.md", &quickstart);
        let person = &blocks.iter().find(|block| block.info == "json").unwrap().text;
        for (name, text) in [
            ("prompt.txt", "Once upon a time"),
            ("story.txt", "Once upon a time, there was a little fox. The fox found a small seed.\n"),
            ("texts.txt", "a fox\na house\n"),
            ("articles.txt", "Cats sleep most of the day.\nOslo is cold.\n"),
            ("person.json", person.as_str()),
            ("list.gbnf", "root ::= item \", \" item \", \" item\nitem ::= [a-z]+\n"),
        ] {
            fs::write(at(name), text).unwrap();
        }
        folder
    }

    fn shell(script: &str, folder: &Path) -> (Option<i32>, String) {
        let programs = Path::new(env!("CARGO_BIN_EXE_akunu")).parent().unwrap().to_path_buf();
        let others = std::env::var_os("PATH").unwrap();
        let path =
            std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&others))).unwrap();
        let mut command = Command::new("sh");
        command.args(["-ec", &format!("exec 2>&1\n{script}")]).current_dir(folder).stdin(Stdio::null());
        command.env("PATH", path).env_remove("COLUMNS").env("HF_HUB_CACHE", folder.join("cache"));
        let output = command.env("HF_HUB_OFFLINE", "1").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn blocks_run() {
        let runs = |block: &Block| matches!(block.info.as_str(), "sh" | "console");
        let queue: Mutex<VecDeque<Block>> = Mutex::new(blocks().into_iter().filter(runs).collect());
        assert!(queue.lock().unwrap().len() > 10);
        let next = || queue.lock().unwrap().pop_front();
        let work = || {
            while let Some(block) = next() {
                check(&block)
            }
        };
        let threads = thread::available_parallelism().map_or(2, usize::from);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    }

    fn check(block: &Block) {
        let folder = folder();
        if block.info == "sh" {
            for command in commands(&block.text) {
                let runs = akunu_arguments(&command).is_some() || PROGRAMS.contains(&command[0].as_str());
                assert!(runs, "{}: {command:?} is not run here: write `sh no-run`", block.place);
            }
            let (code, output) = shell(&block.text, folder.path());
            assert_eq!(code, Some(0), "{}\n{}\n{output}", block.place, block.text);
            return;
        }
        for exchange in block.text.split("$ ").skip(1) {
            let (command, expected) = exchange.split_once('\n').unwrap();
            let (code, output) = shell(command, folder.path());
            let place = &block.place;
            assert!(code == Some(0) || expected.contains("error:"), "{place}: {command}\n{output}");
            assert!(matches(&output, expected), "{place}: {command}\n{output}\ninstead of\n{expected}");
        }
    }

    /// Whether the expected text is the output, where `…` stands for any text. The spaces between words are not compared.
    fn matches(output: &str, expected: &str) -> bool {
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (output, expected) = (plain(output), plain(expected));
        let parts: Vec<&str> = expected.split('…').map(str::trim).collect();
        let mut at = 0;
        for (number, part) in parts.iter().enumerate() {
            match output[at..].find(part) {
                Some(found) if number > 0 || found == 0 => at += found + part.len(),
                _ => return false,
            }
        }
        parts.last().is_none_or(|part| part.is_empty()) || at == output.len()
    }

    #[test]
    fn an_ellipsis_stands_for_any_text() {
        assert!(matches("a  b\nc\n", "a b c\n") && matches("one 12.5 two\n", "one … two\n"));
        assert!(matches("one two three", "one …") && !matches("one two three", "one two"));
        assert!(!matches("xone", "one") && !matches("one", "one … two"));
    }
}

/// The anchors of a page: its headings, as GitHub and mdBook name them.
fn anchors(lines: &[(usize, &str)]) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in lines {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        anchors.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
    }
    anchors
}

/// The targets of links in lines, which may be broken in their texts.
fn links<'a>(lines: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for &(number, line) in lines {
        let reference = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        found.extend(reference.map(|(_, target)| (number, target.trim())));
        for rest in line.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(target, _)| (number, target)));
        }
    }
    found
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = root();
    let mut broken = Vec::new();
    for (name, page) in pages() {
        let (_, lines) = parts(&name, &page);
        for (number, target) in links(&lines) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => root.join(&name),
                _ => root.join(&name).parent().unwrap().join(file),
            };
            let is_page = path.extension().is_some_and(|extension| extension == "md");
            let has_anchor = |path: &Path| {
                let text = fs::read_to_string(path).unwrap();
                anchors(&parts(target, &text).1).contains(anchor)
            };
            if !path.exists() || (is_page && !anchor.is_empty() && !has_anchor(&path)) {
                broken.push(format!("{name}:{number}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn pages_are_short() {
    for (name, page) in pages() {
        let is_generated = ["docs/cli.md", "docs/server-fields.md"].contains(&name.as_str());
        let is_limited = name == "README.md" || (name.starts_with("docs/") && !is_generated);
        let count = page.lines().count();
        assert!(!is_limited || count <= 150, "{name} has {count} lines: at most 150, please");
    }
}

/// Of the list in CONTRIBUTING.md, those that are never right.
#[test]
fn pages_use_standard_words() {
    const WRONG: [&str; 9] =
        ["nobody", "somebody", "blazing", "seamless", "seamlessly", "leverage", "utilise", "e.g", "i.e"];
    for (name, page) in pages() {
        if name == "CONTRIBUTING.md" || name == "CHANGELOG.md" || name.starts_with("docs/decisions/") {
            continue;
        }
        for (number, line) in parts(&name, &page).1 {
            for word in line.split(|c: char| !(c.is_alphanumeric() || "._".contains(c))) {
                let word = word.trim_end_matches('.').to_lowercase();
                assert!(!WRONG.contains(&word.as_str()), "{name}:{number}: {word}");
            }
        }
    }
}

#[test]
fn words_of_the_glossary_are_in_order() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let words = page.lines().filter_map(|line| line.strip_prefix("| **")?.split_once("**"));
    let first = |word: &str| word.split([',', '(']).next().unwrap().trim().to_lowercase().replace('-', "");
    let words: Vec<String> = words.map(|(word, _)| first(word)).collect();
    assert!(words.len() > 50 && words.is_sorted(), "{words:?}");
}

/// `curl --json` is of version 7.82; older systems have older ones.
#[test]
fn curl_has_no_option_of_new_versions() {
    for (name, page) in pages() {
        let wrong =
            page.lines().find(|line| line.trim_start().starts_with("curl ") && line.contains(" --json "));
        assert_eq!(wrong, None, "{name}");
    }
}

#[test]
fn every_page_is_in_the_index() {
    let pages = pages();
    let index = pages.iter().find(|(name, _)| name == "docs/README.md").unwrap();
    for (name, _) in &pages {
        let Some(page) =
            name.strip_prefix("docs/").filter(|page| !page.contains('/') && *page != "README.md")
        else {
            continue;
        };
        assert!(index.1.contains(&format!("({page}")), "{page} is not in docs/README.md");
    }
}

/// As much of the shell's syntax as the documentation uses.
mod shell {
    /// The commands of a script as words, without redirections.
    pub fn commands(script: &str) -> Vec<Vec<String>> {
        let (mut all, mut words, mut word, mut skips) = (Vec::new(), Vec::new(), None::<String>, false);
        let mut rest = script.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '\'' => word.get_or_insert_default().extend(rest.by_ref().take_while(|&c| c != '\'')),
                '"' => quoted(&mut rest, word.get_or_insert_default()),
                '\\' => match rest.next() {
                    Some('\n') | None => {}
                    Some(c) => word.get_or_insert_default().push(c),
                },
                '$' if rest.peek() == Some(&'(') => {
                    word.get_or_insert_default().extend(rest.by_ref().take_while(|&c| c != ')'));
                }
                '#' if word.is_none() => while rest.next_if(|&c| c != '\n').is_some() {},
                c if c.is_whitespace() || "|;&<>".contains(c) => {
                    let finished = word.take();
                    if !(skips && finished.is_some()) {
                        words.extend(finished);
                    } else {
                        skips = false;
                    }
                    if "<>".contains(c) {
                        skips = true;
                    } else if "\n|;&".contains(c) && !words.is_empty() {
                        all.push(std::mem::take(&mut words));
                    }
                }
                c => word.get_or_insert_default().push(c),
            }
        }
        if !skips {
            words.extend(word);
        }
        all.extend(Some(words).filter(|words| !words.is_empty()));
        all
    }

    fn quoted(rest: &mut impl Iterator<Item = char>, word: &mut String) {
        while let Some(c) = rest.next().filter(|&c| c != '"') {
            match c {
                '\\' => word.extend(rest.next()),
                c => word.push(c),
            }
        }
    }

    /// The arguments of a command that runs akunu, after its variables.
    pub fn akunu_arguments(command: &[String]) -> Option<&[String]> {
        let is_variable = |word: &String| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty()
                    && name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
            })
        };
        let start = command.iter().position(|word| !is_variable(word))?;
        let command = &command[start..];
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["akunu", ..] => Some(&command[1..]),
            [program, ..] if program.ends_with("/akunu") && !program.contains('=') => Some(&command[1..]),
            ["cargo", "run", "--", ..] => Some(&command[3..]),
            ["cargo", "run", "--release", "--", ..] => Some(&command[4..]),
            _ => None,
        }
    }

    #[test]
    fn scripts_are_divided_into_commands_and_words() {
        let script = "A=1 akunu run 'a b' \"c \\\"d\" -n 3 > out.txt  # a comment\nprintf 'x\\n' | akunu chat \\\n  -q < in\n";
        let found = commands(script);
        let expected = [
            &["A=1", "akunu", "run", "a b", "c \"d", "-n", "3"][..],
            &["printf", "x\\n"],
            &["akunu", "chat", "-q"],
        ];
        assert_eq!(found, expected);
        assert_eq!(akunu_arguments(&found[0]).unwrap()[0], "run");
        assert_eq!(akunu_arguments(&found[1]), None);
    }
}
