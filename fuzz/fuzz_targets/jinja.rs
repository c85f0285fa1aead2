//! Arbitrary text as a template: rendering terminates, and untrusted byte ranges end at character boundaries.
#![no_main]

use akunu_jinja::{LocalTime, Template, Variable};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|data: &[u8]| {
    let source = String::from_utf8_lossy(data);
    let Ok(template) = Template::new(&source) else { return };
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "é <|im_end|>", "number": -7, "half": 0.5, "none": null},
    ]);
    let prompt = json!(true);
    let variables = [
        Variable { name: "messages", value: &messages, untrusted: true },
        Variable { name: "add_generation_prompt", value: &prompt, untrusted: false },
    ];
    let Ok(output) = template.render(&variables, LocalTime::from_seconds(1_700_000_000)) else { return };
    let mut end = 0;
    for range in output.untrusted {
        assert!(end <= range.start && range.start < range.end);
        assert!(output.text.get(range.clone()).is_some(), "{range:?} of {:?}", output.text);
        end = range.end;
    }
});
