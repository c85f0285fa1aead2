//! Help texts of all commands.

use crate::common::{ok, run};

/// The output of a command, with the GPU device named as on the platform of the snapshots.
fn told(arguments: &[&str]) -> String {
    ok(arguments).replace("auto, cpu, metal, reference", "auto, cpu, cuda, reference")
}

#[test]
fn help_of_every_command() {
    let commands = [
        "run",
        "chat",
        "serve",
        "worker",
        "bench",
        "bench-serve",
        "inspect",
        "plan",
        "table",
        "profile",
        "verify",
        "logits",
        "perplexity",
        "imatrix",
        "embed",
        "rerank",
        "transcribe",
        "tokenize",
        "detokenize",
        "quantize",
        "pull",
        "models",
        "rm",
        "synth",
        "doctor",
        "completions",
        "version",
    ];
    let overview = told(&["--help"]);
    for command in commands {
        assert!(overview.contains(&format!("  {command} ")), "{command} is listed");
        insta::assert_snapshot!(format!("help_{command}"), told(&[command, "--help"]));
    }
    insta::assert_snapshot!("help", overview);
}

#[test]
fn docs_cli_md_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let there = std::fs::read_to_string(file).unwrap();
    assert!(
        there == told(&["__markdown"]),
        "docs/cli.md is out of date; run `cargo xtask gen` and commit it"
    );
}

#[test]
fn docs_server_fields_md_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server-fields.md");
    let there = std::fs::read_to_string(file).unwrap();
    assert!(
        there == ok(&["__fields"]),
        "docs/server-fields.md is out of date; run `cargo xtask gen` and commit it"
    );
}

#[test]
fn no_command_shows_the_help_and_exits_2() {
    let done = run(&[]);
    assert_eq!(done.code, 2);
    assert!(done.stdout.is_empty() && done.stderr.contains("Usage: akunu"), "{}", done.stderr);
}

#[test]
fn the_version_is_printed() {
    assert_eq!(ok(&["--version"]), format!("akunu {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_unknown_option_or_command_exits_2() {
    assert_eq!(run(&["run", "Once", "--tempo", "1"]).code, 2);
    assert_eq!(run(&["sing"]).code, 2);
}

#[test]
fn the_reference_page_has_a_section_for_each_command() {
    let page = told(&["__markdown"]);
    assert_eq!(page.matches("\n## akunu ").count(), 27);
    assert!(!page.contains("__markdown --"), "{page}");
    assert!(page.lines().all(|line| !line.ends_with(' ')));
}
