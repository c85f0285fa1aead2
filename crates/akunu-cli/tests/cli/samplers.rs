//! The options of samplers, under the names that llama.cpp has for them.

use crate::common::{ok, refuses, run};

const WARM: [&str; 9] = ["run", "Once upon a time", "-n", "16", "--temp", "1.2", "--seed", "5", "-q"];

fn text(base: &[&str], more: &[&str]) -> String {
    ok(&[base, more].concat())
}

#[test]
fn samplers_change_the_text_and_off_is_off() {
    let plain = text(&WARM, &[]);
    for off in [
        &["--top-n-sigma", "0", "--typical", "1", "--xtc-probability", "0", "--xtc-threshold", "0.3"][..],
        &["--top-nsigma", "-1", "--dynatemp-range", "0", "--dynatemp-exp", "3", "--dry-multiplier", "0"],
        &["--dry-base", "3", "--dry-sequence-breaker", "a", "--mirostat", "0", "--mirostat-ent", "1"],
    ] {
        assert_eq!(text(&WARM, off), plain, "{off:?}");
    }
    for (on, alias) in [
        (&["--top-n-sigma", "0.5"][..], &["--top-nsigma", "0.5"][..]),
        (&["--typical-p", "0.3"], &["--typical", "0.3"]),
        (&["--xtc-probability", "1", "--xtc-threshold", "0.01"], &[]),
        (
            &["--dynatemp-range", "1.2", "--dynatemp-exp", "3"],
            &["--dynatemp-range", "1.2", "--dynatemp-exponent", "3"],
        ),
        (
            &["--mirostat", "2", "--mirostat-ent", "0.5", "--mirostat-lr", "0.3"],
            &["--mirostat", "2", "--mirostat-tau", "0.5", "--mirostat-eta", "0.3"],
        ),
    ] {
        let changed = text(&WARM, on);
        assert_ne!(changed, plain, "{on:?}");
        if !alias.is_empty() {
            assert_eq!(text(&WARM, alias), changed);
        }
    }
}

#[test]
fn limits_that_leave_one_token_give_greedy_text() {
    let greedy = text(&WARM, &["--top-k", "1"]);
    assert_ne!(text(&WARM, &[]), greedy);
    for limits in [
        &["--top-n-sigma", "0.001"][..],
        &["--mirostat", "2", "--mirostat-ent", "0.001", "--mirostat-lr", "0"],
        &["--dynatemp-range", "1.2", "--dynatemp-exp", "1000"],
    ] {
        assert_eq!(text(&WARM, limits), greedy, "{limits:?}");
    }
}

/// " found" is favoured, but would extend the repetition of ". The fox".
#[test]
fn dry_lowers_what_would_extend_a_repetition() {
    let ids = ok(&["tokenize", " found"]);
    let favoured = format!("{}=60", ids.trim().rsplit(',').next().unwrap());
    let prompt = "One day. The fox found a dog. The fox";
    let base = ["run", prompt, "--no-echo", "-q", "-n", "1", "--temp", "0", "--logit-bias", &favoured];
    let dry = [&base[..], &["--dry-multiplier", "100"]].concat();
    assert_eq!(text(&base, &[]).trim(), "found");
    assert_ne!(text(&dry, &[]).trim(), "found");
    for lowered in [
        &["--dry-sequence-breaker", "none"][..],
        &["--dry-penalty-last-n", "-1"],
        &["--dry-multiplier", "1", "--dry-base", "100"],
    ] {
        assert_ne!(
            text(if lowered.len() > 2 { &base } else { &dry }, lowered).trim(),
            "found",
            "{lowered:?}"
        );
    }
    for allowed in [
        &["--dry-sequence-breaker", " fox"][..],
        &["--dry-sequence-breaker", "cow", "--dry-sequence-breaker", "fox"],
        &["--dry-penalty-last-n", "4"],
        &["--dry-penalty-last-n", "0"],
        &["--dry-allowed-length", "9"],
    ] {
        assert_eq!(text(&dry, allowed).trim(), "found", "{allowed:?}");
    }
    let weak = ["--dry-multiplier", "1", "--dry-base", "1"];
    assert_eq!(text(&base, &weak).trim(), "found");
}

#[test]
fn dry_ends_a_loop() {
    let base = ["run", "Once", "--ids", "-q", "-n", "12", "--temp", "0", "--logit-bias", "588=60"];
    assert_eq!(text(&base, &[]).trim(), ["588"; 12].join(" "));
    let dry = text(&base, &["--dry-multiplier", "100"]);
    assert!(dry.starts_with("588 588 588 ") && !dry.contains("588 588 588 588"), "{dry}");
    let strict = text(&base, &["--dry-multiplier", "100", "--dry-allowed-length", "1"]);
    assert!(strict.starts_with("588 588 ") && !strict.contains("588 588 588"), "{strict}");
}

#[test]
fn values_out_of_range_are_refused_before_a_model_is_opened() {
    for (option, value, expected) in [
        ("--top-n-sigma", "-2", "0 (off) or a positive number"),
        ("--top-n-sigma", "inf", "0 (off) or a positive number"),
        ("--typical-p", "1.5", "from 0 to 1"),
        ("--typical-p", "nan", "from 0 to 1"),
        ("--xtc-probability", "-0.1", "from 0 to 1"),
        ("--xtc-threshold", "2", "from 0 to 1"),
        ("--dynatemp-range", "-1", "0 or a positive number"),
        ("--dynatemp-exp", "inf", "0 or a positive number"),
        ("--dry-multiplier", "nan", "0 (off) or a positive number"),
        ("--dry-base", "0.5", "1 or more"),
        ("--dry-allowed-length", "-1", "an integer"),
        ("--dry-penalty-last-n", "-2", "an integer"),
        ("--dry-sequence-breaker", "", "not be empty"),
        ("--mirostat", "1", "version 1 is not supported"),
        ("--mirostat-ent", "0", "a positive number"),
        ("--mirostat-ent", "inf", "a positive number"),
        ("--mirostat-lr", "-1", "0 or a positive number"),
        ("--mirostat-lr", "x", "a number"),
    ] {
        for command in [["run", "no-such.gguf", "Once"], ["chat", "no-such.gguf", "-pOnce"]] {
            let done = refuses(&[&command[..], &[option, value]].concat(), 2, &[expected]);
            assert!(!done.stderr.contains("no file"), "{}", done.stderr);
        }
    }
    // Extreme values that are allowed.
    for more in [
        &["--top-n-sigma", "1e38", "--dynatemp-range", "1e38", "--dynatemp-exp", "1e38"][..],
        &["--dry-multiplier", "1e38", "--dry-base", "1e38", "--dry-allowed-length", "0"],
        &["--dry-multiplier", "1e-45", "--dry-base", "1.0000001", "--dry-penalty-last-n", "2147483647"],
        &["--mirostat", "2", "--mirostat-ent", "1e38", "--mirostat-lr", "1e38", "--typical-p", "0"],
        &["--xtc-probability", "1", "--xtc-threshold", "0", "--min-p", "1"],
    ] {
        let done = run(&[&WARM[..], more].concat());
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{more:?}");
    }
}
