//! The ABI that compiled programs rely on: functions, constants, and the layout of structs, as listed in `tests/abi.txt`. Adding a line is
//! compatible. Changing or removing one breaks programs, and requires a new AKUNU_ABI_VERSION.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use akunu_capi::*;

use crate::tools::{Program, here, shared, succeed, tool};

/// A struct's name in C, its size, and its fields: name, offset, size.
type Layout = (&'static str, usize, Vec<(&'static str, usize, usize)>);

fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layouts {
    ($($type:ident as $name:literal { $($field:ident)* })*) => {
        vec![$((
            $name,
            size_of::<$type>(),
            vec![$((
                stringify!($field),
                offset_of!($type, $field),
                size_of_field(|value: &$type| &value.$field),
            )),*],
        )),*]
    };
}

fn layouts() -> Vec<Layout> {
    layouts! {
        LoadOptions as "akunu_load_options" {
            size threads device context sessions kv_type chunk chain chain_ms on_progress progress_user batch queue
        }
        EmbedSettings as "akunu_embed_options" {
            size threads device context pooling keep_length truncate on_progress progress_user
        }
        Config as "akunu_config" {
            size vocabulary context trained_context layers hidden_size ffn_size heads kv_heads head_size sessions chunk
            chain commands tokens begin_token end_token reserved
        }
        Memory as "akunu_memory" {
            size reserved allocated weights_copied constants kv_cache scratch rows_and_logits workspace weights_in_place
            tables
        }
        SamplingSettings as "akunu_sampling" {
            size temperature top_k top_p min_p repeat_penalty frequency_penalty presence_penalty repeat_last_n reserved seed
            top_n_sigma typical_p xtc_probability xtc_threshold dynatemp_range dynatemp_exponent dry_multiplier dry_base
            dry_allowed_length dry_last_n mirostat_tau mirostat_eta
        }
        GenerateSettings as "akunu_generate_options" {
            size max_tokens stop_texts stop_tokens stop_text_count stop_token_count overflow keep ignore_end format
            schema logprobs top_logprobs
        }
        TokenPiece as "akunu_piece" {
            size token_count text text_length tokens logprobs logprob_count reserved
        }
        Logprob as "akunu_logprob" { token logprob }
        RequestSettings as "akunu_request_options" {
            size priority owner salt sampling bias_tokens biases bias_count dry_breakers dry_breaker_count
        }
        Stats as "akunu_stats" {
            size finish end_token prompt_tokens reused_tokens generated_tokens prompt_seconds generate_seconds
            first_token_seconds reasoning_tokens
        }
        AnswerSettings as "akunu_answer_options" { size format schema template_name one_call reserved }
        AnswerDelta as "akunu_delta" { size kind text text_length name index reserved }
        TranscriberSettings as "akunu_transcriber_options" {
            size threads device windows beams word_times reserved on_progress progress_user
        }
        TranscribeSettings as "akunu_transcribe_options" {
            size task language prompt timestamps parallel temperature no_fallback
        }
        SpokenWord as "akunu_word" { text text_length start end }
        SpeechSegment as "akunu_segment" { size word_count text text_length start end words language }
    }
}

fn listing(layouts: &[Layout]) -> String {
    let mut text = String::new();
    for (name, size, fields) in layouts {
        writeln!(text, "struct {name} {size}").unwrap();
        for (field, offset, size) in fields {
            writeln!(text, "  {field} {offset} {size}").unwrap();
        }
    }
    text
}

fn header() -> String {
    std::fs::read_to_string(here("include/akunu.h")).unwrap()
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = header();
    let code: Vec<&str> = header.lines().filter(|line| !line.starts_with("//")).collect();
    let code = code.join("\n");
    let names = code.match_indices('(').map(|(at, _)| {
        let before = &code[..at];
        let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        &before[start..]
    });
    names.filter(|name| name.starts_with("akunu_")).map(str::to_string).collect()
}

/// Names and values of the header's constants.
fn constants() -> String {
    let header = header();
    let line = |line: &str| {
        let line = line.trim().trim_end_matches(',');
        let value = line.strip_prefix("#define ").map(|rest| rest.replacen(' ', " = ", 1));
        value.or_else(|| (line.starts_with("AKUNU_") && line.contains(" = ")).then(|| line.to_string()))
    };
    let lines = header.lines().filter_map(line).filter(|line| line.contains(" = "));
    lines.map(|line| line + "\n").collect()
}

#[test]
fn the_abi_is_that_of_abi_txt() {
    if size_of::<usize>() != 8 {
        return eprintln!("SKIPPED: abi.txt has the layouts of 64-bit targets");
    }
    let functions: String = declared().iter().map(|name| format!("{name}()\n")).collect();
    let found = format!("{functions}{}{}", constants(), listing(&layouts()));
    let path = here("tests/abi.txt");
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept != found {
        let new = path.with_extension("txt.new");
        std::fs::write(&new, &found).unwrap();
        panic!("the ABI differs from {}: compare it with {}", path.display(), new.display());
    }
}

#[test]
fn structs_have_no_padding() {
    for (name, size, fields) in layouts() {
        let mut end = 0;
        for (field, offset, size) in fields {
            assert_eq!(offset, end, "{name}.{field}");
            end += size;
        }
        assert_eq!(size, end, "{name}");
    }
}

#[test]
fn layouts_in_the_header_match_the_library() {
    let mut source = String::from("#include <akunu.h>\n#include <stdio.h>\nint main(void) {\n");
    for (name, _, fields) in layouts() {
        writeln!(source, "    printf(\"struct {name} %zu\\n\", sizeof({name}));").unwrap();
        for (field, ..) in fields {
            let size = format!("sizeof((({name} *)0)->{field})");
            writeln!(source, "    printf(\"  {field} %zu %zu\\n\", offsetof({name}, {field}), {size});")
                .unwrap();
        }
    }
    source += "    return 0;\n}\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layouts.c");
    std::fs::write(&path, source).unwrap();
    let Some(program) = Program::linked(&path, &[], &[]) else { return };
    assert_eq!(program.run(), listing(&layouts()));
}

#[test]
fn the_library_exports_exactly_the_declared_functions() {
    if !cfg!(target_os = "linux") {
        return eprintln!("SKIPPED: symbols are compared on Linux only");
    }
    let Some(nm) = tool("NM", "nm") else { return };
    let output =
        succeed(Command::new(nm).args(["--dynamic", "--defined-only", "--format=posix"]).arg(shared()));
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_string).collect();
    assert_eq!(symbols, declared());
}
