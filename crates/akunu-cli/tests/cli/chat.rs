//! `chat` through pipes: answers on stdout, everything else on stderr.
#![allow(clippy::unwrap_used)] // helpers of tests; the lint knows only functions marked as tests

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use akunu_fixtures::scripted::{self, CHATML};
use serde_json::{Value as Json, json};

use crate::common::{Done, akunu, path, refuses, run, with_stdin};

pub const GREETING: [&str; 4] = ["\n", "Hello", " there", "!"];
const THINKING: [&str; 5] = ["\n", "<think>", "Hmm.", "</think>", "Yes."];
pub const ENDLESS: [&str; 4] = ["\n", "tick ", "tock ", "tick "];

/// A folder that contains a model.
struct Scene {
    dir: tempfile::TempDir,
    model: PathBuf,
}

impl Scene {
    fn new(template: Option<&str>, chain: &[&str]) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model.gguf");
        scripted::write(&model, template, chain);
        Scene { dir, model }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `chat` without notes; the folder's name is replaced in both streams.
    fn chat(&self, more: &[&str], stdin: &str) -> Done {
        let args = [&["chat", path(&self.model), "--temp", "0", "-q"], more].concat();
        let mut done = with_stdin(&args, stdin.as_bytes());
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        done.stderr = done.stderr.replace(path(self.dir.path()), "DIR");
        done
    }

    /// Like [`Scene::chat`], with notes.
    fn aloud(&self, more: &[&str], stdin: &str) -> Done {
        let args = [&["chat", path(&self.model), "--temp", "0", "--device", "cpu"], more].concat();
        let mut done = with_stdin(&args, stdin.as_bytes());
        done.stderr = done.stderr.replace(path(self.dir.path()), "DIR");
        done
    }
}

fn shown(done: &Done) -> String {
    format!("exit code {}\n--- stdout\n{}--- stderr\n{}", done.code, done.stdout, done.stderr)
}

fn stats(done: &Done) -> Vec<Json> {
    done.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn each_line_is_a_turn_and_only_what_is_new_is_processed() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let done = scene.chat(&["--stats", "json"], "Hi\nAgain\r\n\nAnd more");
    assert_eq!((done.code, done.stdout.as_str()), (0, "Hello there!\nHello there!\nHello there!\n"));
    let stats = stats(&done);
    let of = |turn: usize, key: &str| stats[turn][key].as_u64().unwrap();
    assert_eq!(stats.len(), 3);
    // Each byte is a token: `<|im_start|>user\n`, the message, `<|im_end|>\n<|im_start|>assistant\n`.
    let turn = |message: &str| (1 + 5) + message.len() as u64 + (1 + 1) + (1 + 10);
    assert_eq!((of(0, "prompt_tokens"), of(0, "reused_tokens")), (turn("Hi"), 0));
    // The answer's three tokens are cached too; its end token and a newline are not.
    let known = turn("Hi") + 3;
    assert_eq!((of(1, "reused_tokens"), of(1, "processed_tokens")), (known, 2 + turn("Again")));
    let known = known + 2 + turn("Again") + 3;
    assert_eq!((of(2, "reused_tokens"), of(2, "processed_tokens")), (known, 2 + turn("And more")));
    assert_eq!(of(2, "prompt_tokens"), known + 2 + turn("And more"));
    assert_eq!(of(2, "context_used"), of(2, "prompt_tokens") + 3);
    // The model states a longer one, and the cache has what memory allows.
    assert!(stats[2]["finish"] == "eos" && of(2, "context") >= 4096, "{}", stats[2]);
}

#[test]
fn what_looks_like_a_special_token_in_a_message_is_text() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let count = |message: &str| {
        let done = scene.chat(&["--stats", "json"], message);
        stats(&done)[0]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(count("<|im_end|>") - count("0123456789"), 0);
}

#[test]
fn slash_commands_work_and_unknown_ones_are_errors() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let lines = "/history\n/stats\n/system Be brief.\nHi\n/history\n/nonsense\n/save\n/regen\n//no order\n/reset\n\
                 /history\n/system -\n/system\n/regen\n/exit\nnever answered\n";
    insta::assert_snapshot!(shown(&scene.aloud(&["-c", "512"], lines)));
}

#[test]
fn backslashes_and_fences_join_lines() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let done = scene.chat(&[], "one\\\ntwo\n\"\"\"\nthree\n\n  four\n\"\"\"\n/history\n/exit\n");
    assert_eq!(done.code, 0, "{}", done.stderr);
    let expected =
        "user: one\ntwo\nassistant: Hello there!\nuser: three\n\n  four\nassistant: Hello there!\n";
    assert_eq!(done.stderr, expected);
}

#[test]
fn a_conversation_is_saved_and_continued() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let (talk, other) = (scene.file("talk.json"), scene.file("precious.txt"));
    let lines = format!("Hi \"you\" é\n/save {}\n", path(&talk));
    assert_eq!(scene.chat(&["--system", "Be brief."], &lines).code, 0);
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Hi \"you\" é"}),
        json!({"role": "assistant", "content": "Hello there!"}),
    ];
    let saved = || serde_json::from_str::<Json>(&fs::read_to_string(&talk).unwrap()).unwrap();
    assert_eq!(saved(), json!({ "messages": messages }));

    // Only a saved conversation may be overwritten.
    fs::write(&other, "precious").unwrap();
    let lines = format!("/load {0}\nMore\n/save {0}\n/save {1}\n", path(&talk), path(&other));
    let done = scene.chat(&[], &lines);
    assert_eq!((done.code, done.stdout.as_str()), (1, "Hello there!\n"));
    assert!(done.stderr.starts_with("error: DIR/precious.txt exists and is not a saved"), "{}", done.stderr);
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    assert_eq!(saved()["messages"].as_array().unwrap().len(), 5);
    assert_eq!(saved()["messages"].as_array().unwrap()[..3], messages);
    let left: Vec<_> = fs::read_dir(scene.dir.path()).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");

    // A pipe, whose opening would wait for its other end, is not opened.
    #[cfg(unix)]
    {
        let pipe = scene.file("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let done = scene.chat(&[], &format!("Hi\n/save {}\n", path(&pipe)));
        assert!(done.stderr.contains("exists and is not a saved conversation"), "{}", done.stderr);
    }

    let given = scene.chat(&["--load", path(&talk), "-p", "Last"], "");
    assert_eq!((given.code, given.stdout.as_str()), (0, "Hello there!\n"));
}

#[test]
fn files_that_are_not_conversations_are_errors() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let bad = scene.file("bad.json");
    for (bytes, words) in [
        (&b"{\"messages\": [{\"role\": \"user\"}]}"[..], "'messages[0].content' must be a string"),
        (
            b"[{\"role\": \"king\", \"content\": \"a\"}]",
            "'messages[0].role' must be one of system, developer, user, assistant, tool",
        ),
        (b"{}", "no \"messages\""),
        (b"hello", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
    ] {
        fs::write(&bad, bytes).unwrap();
        let done = scene.chat(&[], &format!("Hi\n/load {}\nAgain\n/history\n", path(&bad)));
        // The conversation continues as if the command had not been given.
        assert_eq!((done.code, done.stdout.as_str()), (1, "Hello there!\nHello there!\n"));
        let first = done.stderr.lines().next().unwrap();
        assert!(first.starts_with("error: DIR/bad.json: the conversation is invalid: "), "{first}");
        assert!(first.contains(words), "{first}");
        assert_eq!(done.stderr.lines().count(), 1 + 4, "{}", done.stderr);
        refuses(&["chat", path(&scene.model), "--load", path(&bad)], 1, &[words]);
    }
    for missing in ["no/such/file.json", path(scene.dir.path())] {
        let done = scene.chat(&[], &format!("/load {missing}\n"));
        assert!(done.stderr.starts_with("error: cannot read "), "{}", done.stderr);
        assert_eq!((done.code, done.stderr.lines().count()), (1, 1));
    }
    let done = scene.chat(&[], "Hi\n/save no/such/folder/talk.json\n");
    assert_eq!(done.code, 1);
    assert!(done.stderr.starts_with("error: cannot write no/such/folder/talk.json"), "{}", done.stderr);
}

#[test]
fn reasoning_is_separated_from_the_answer() {
    let scene = Scene::new(Some(CHATML), &THINKING);
    assert_eq!(scene.chat(&[], "Well?\n").stdout, "<think>Hmm.</think>Yes.\n");
    assert_eq!(scene.chat(&["--hide-reasoning"], "Well?\n").stdout, "Yes.\n");
    let talk = scene.file("talk.json");
    scene.chat(&["-p", "Well?"], "");
    scene.chat(&[], &format!("Well?\n/save {}\n", path(&talk)));
    let saved: Json = serde_json::from_slice(&fs::read(&talk).unwrap()).unwrap();
    let answer = json!({"role": "assistant", "content": "Yes.", "reasoning_content": "Hmm."});
    assert_eq!(saved["messages"][1], answer);
}

#[test]
fn a_prompt_that_opens_the_reasoning_begins_in_it() {
    let template = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}");
    let scene = Scene::new(Some(&template), &["\n", "Hmm.", "</think>", "Yes."]);
    assert_eq!(scene.chat(&["--hide-reasoning"], "Well?\n").stdout, "Yes.\n");
    assert_eq!(scene.chat(&[], "Well?\n").stdout, "Hmm.</think>Yes.\n");
}

#[test]
fn a_model_without_a_template_says_what_is_missing() {
    let scene = Scene::new(None, &GREETING);
    let words = ["error: chat template missing", "hint: ", "--chat-template FILE"];
    let done = refuses(&["chat", path(&scene.model), "-p", "Hi"], 1, &words);
    assert!(done.stdout.is_empty());
    let file = scene.file("mine.jinja");
    fs::write(&file, CHATML).unwrap();
    assert_eq!(scene.chat(&["--chat-template", path(&file)], "Hi\n").stdout, "Hello there!\n");
    fs::write(&file, "{% if %}").unwrap();
    let broken = &["mine.jinja: the chat template, line 1"];
    refuses(&["chat", path(&scene.model), "--chat-template", path(&file)], 1, broken);
    refuses(&["serve", path(&scene.model), "--chat-template", path(&file)], 1, broken);
    let json = scene.file("mine.json");
    fs::write(&json, "{}").unwrap();
    refuses(
        &["chat", path(&scene.model), "--chat-template", path(&json)],
        1,
        &["no field \"chat_template\""],
    );
    refuses(&["chat", path(&scene.model), "--chat-template", "no.jinja"], 1, &["cannot read no.jinja"]);
}

#[test]
fn an_exception_of_the_template_is_reported_and_the_conversation_continues() {
    let template = format!(
        "{{% if messages[-1].content == 'bad' %}}{{{{ raise_exception('no; not that') }}}}{{% endif %}}{CHATML}"
    );
    let scene = Scene::new(Some(&template), &GREETING);
    let done = scene.chat(&[], "Hi\nbad\nAgain\n/history\n");
    assert_eq!((done.code, done.stdout.as_str()), (1, "Hello there!\nHello there!\n"));
    insta::assert_snapshot!(shown(&done));
}

#[test]
fn a_variable_reaches_the_template() {
    let template = format!("{{% if mood %}}{{{{ raise_exception('mood ' ~ mood) }}}}{{% endif %}}{CHATML}");
    let scene = Scene::new(Some(&template), &GREETING);
    assert_eq!(scene.chat(&["--set", "mood=false"], "Hi\n").code, 0);
    let done = scene.chat(&["--set", "mood=3"], "Hi\n");
    assert!(done.stderr.contains("mood 3"), "{}", done.stderr);
}

#[test]
fn a_full_context_is_never_silent() {
    let scene = Scene::new(Some(CHATML), &ENDLESS);
    let done = scene.aloud(&["-c", "64"], "Hi\nAgain\n/reset\nHi\n");
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert_eq!(done.stdout.lines().count(), 2, "{}", done.stdout);
    let notes: Vec<&str> = done.stderr.lines().filter(|line| !line.contains("trained for")).collect();
    assert!(notes[0].contains("all 64 tokens") && notes[0].contains("--context-shift"), "{notes:?}");
    assert!(notes[1].starts_with("error: the conversation has 9"), "{notes:?}");
    assert!(notes[2].starts_with("hint: /clear") && notes[2].contains("-c "), "{notes:?}");

    let done =
        scene.aloud(&["-c", "128", "-n", "20", "--context-shift"], "One\nTwo\nThree\nFour\n/history\n");
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(done.stdout.lines().count(), 4);
    assert!(done.stderr.contains("the 2 oldest messages were dropped"), "{}", done.stderr);
    assert!(!done.stderr.contains("user: One\n") && done.stderr.contains("user: Four\n"), "{}", done.stderr);
}

#[test]
fn an_answer_ends_at_n_and_at_stop_strings() {
    let scene = Scene::new(Some(CHATML), &ENDLESS);
    assert_eq!(scene.chat(&["-n", "3"], "Hi\n").stdout, "tick tock tick \n");
    assert_eq!(scene.chat(&["--stop", "ock t"], "Hi\n/history\n").stdout, "tick t\n");
}

#[test]
fn one_message_may_be_given_by_option() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let done = scene.chat(&["-p", "/not an order"], "never read\n");
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "Hello there!\n", ""));
    refuses(&["chat", path(&scene.model), "-p", " "], 1, &["the prompt is empty"]);
}

#[test]
fn empty_input_is_not_a_failure() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let done = scene.chat(&[], "");
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
    let mut command = akunu(&["chat", path(&scene.model), "-q"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"caf\xe9\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "error: stdin is not UTF-8 text\n");
}

#[test]
fn invalid_settings_are_rejected_before_the_first_message() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let model = path(&scene.model);
    assert_eq!(run(&["chat", model, "--temp", "-1"]).code, 2);
    assert_eq!(run(&["chat", model, "--set", "x"]).code, 2);
    assert_eq!(run(&["chat", model, "-n", "0"]).code, 2);
    refuses(&["chat", "no/such.gguf"], 1, &["there is no file no/such.gguf"]);
}

#[test]
fn the_embedded_model_converses() {
    let done = with_stdin(
        &["chat", "--temp", "0", "-q", "--stats", "json"],
        b"Hello\nTell me a story about a fox.\n",
    );
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.lines().count() >= 2, "{}", done.stdout);
    let stats = stats(&done);
    assert_eq!((stats[0]["finish"].as_str(), stats[1]["finish"].as_str()), (Some("eos"), Some("eos")));
    let of = |turn: usize, key: &str| stats[turn][key].as_u64().unwrap();
    // At least the whole first turn except its end is cached; the last token may not have been processed.
    let first = of(0, "prompt_tokens") + of(0, "generated_tokens");
    assert!(of(1, "reused_tokens") + 1 >= first && of(1, "reused_tokens") <= first, "{stats:?}");
}

#[test]
fn settings_are_shown_and_changed_with_the_checks_of_options() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let lines = "/set\n/set temperature 0.5\n/set top_k=7\n/set seed 3\n/set max-tokens 2\nHi\n/set max-tokens default\n\
                 /set temp default\n/set temp hot\n/set temp -1\n/set top-k -1\n/set nonsense 1\n/set wrap perhaps\n\
                 /set seed\n";
    let done = scene.aloud(&["-c", "512", "--seed", "9", "--top-p", "0.9"], lines);
    insta::assert_snapshot!(shown(&done));
    // The same messages as those of the options.
    for (option, value) in [("--temp", "hot"), ("--temp", "-1"), ("--top-k", "-1")] {
        let refused = run(&["chat", path(&scene.model), option, value, "-p", "x"]);
        let first = refused.stderr.lines().next().unwrap();
        assert!(done.stderr.contains(first), "{first}");
    }
}

#[test]
fn a_setting_takes_effect_with_the_next_answer() {
    let scene = Scene::new(Some(CHATML), &ENDLESS);
    let done = scene.chat(&["-n", "3", "--stats", "json"], "Hi\n/set max-tokens 5\nHi\n/set temp 0.25\nHi\n");
    assert_eq!(done.code, 0, "{}", done.stderr);
    let stats = stats(&done);
    let tokens: Vec<u64> = stats.iter().map(|turn| turn["generated_tokens"].as_u64().unwrap()).collect();
    let temperatures: Vec<f64> = stats.iter().map(|turn| turn["temperature"].as_f64().unwrap()).collect();
    assert_eq!((tokens, temperatures), (vec![3, 5, 5], vec![0.0, 0.0, 0.25]));
}

#[test]
fn another_model_continues_the_conversation() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let (other, bare, fake) = (scene.file("other.gguf"), scene.file("bare.gguf"), scene.file("fake.gguf"));
    scripted::write(&other, Some(CHATML), &["\n", "Good", " day"]);
    scripted::write(&bare, None, &GREETING);
    fs::write(&fake, "no model").unwrap();
    let lines = format!(
        "Hi\n/model {}\nAgain\n/model\n/history\n/clear\n/model {}\n/model {}\n/model no/such.gguf\n\
         /model qwen3:0.7b\nStill there?\n/model {}\nBack\n",
        path(&other),
        path(&bare),
        path(&fake),
        path(&scene.model)
    );
    let done = scene.aloud(&["-c", "512"], &lines);
    assert!(done.stdout.starts_with("Hello there!\nGood day\nGood day\nHello there!\n"), "{}", done.stdout);
    insta::assert_snapshot!(shown(&done));
    // The template of the first model is not that of the second.
    let file = scene.file("mine.jinja");
    fs::write(&file, CHATML).unwrap();
    let lines = format!("Hi\n/model {}\nHi\n", path(&bare));
    let done = scene.chat(&["--chat-template", path(&file)], &lines);
    assert!(done.code == 1 && done.stderr.contains("chat template missing"), "{}", done.stderr);
    assert_eq!(done.stdout, "Hello there!\nHello there!\n");
}

#[test]
fn the_embedded_model_has_a_name() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let other = scene.file("other.gguf");
    scripted::write(&other, Some(CHATML), &["\n", "Good", " day"]);
    let lines = format!("Hi\n/model {}\nHi\n/model embedded\n/model\n", path(&other));
    let done = scene.aloud(&["-c", "512"], &lines);
    assert!(done.stderr.contains("the model is embedded now"), "{}", done.stderr);
}

#[test]
fn a_home_folder_may_be_abbreviated() {
    let scene = Scene::new(Some(CHATML), &GREETING);
    let mut command = akunu(&["chat", path(&scene.model), "--temp", "0", "-q"]);
    command.env("HOME", scene.dir.path()).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"Hi\n/save ~/talk.json\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(scene.file("talk.json").exists());
}
