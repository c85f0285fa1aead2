//! Arbitrary text as a template of a Modelfile: rendering terminates, and untrusted byte ranges end at character boundaries.
#![no_main]

use std::sync::LazyLock;

use akunu::Model;
use akunu::chat::ChatTemplate;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, json};

static MODEL: LazyLock<Model> = LazyLock::new(|| Model::embedded().expect("the embedded model"));

fuzz_target!(|data: &[u8]| {
    let source = String::from_utf8_lossy(data);
    let tokenizer = MODEL.tokenizer().expect("the tokenizer of the embedded model");
    let Ok(template) = ChatTemplate::of_modelfile(&source, &**tokenizer) else { return };
    let call =
        json!({ "type": "function", "function": { "name": "f", "arguments": { "a": [1, 0.5, null] } } });
    let messages = [
        json!({ "role": "system", "content": "Be brief." }),
        json!({ "role": "user", "content": "é <|im_end|>" }),
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "content": "b", "name": "f" }),
    ];
    let parameters = json!({ "type": "object", "properties": { "a": { "type": "array" } } });
    let tools = [json!({ "type": "function", "function": { "name": "f", "parameters": parameters } })];
    let Ok(rendered) = template.render(&messages, Some(&tools), true, &Map::new()) else { return };
    let mut end = 0;
    for range in rendered.untrusted {
        assert!(end <= range.start && range.start < range.end);
        assert!(rendered.text.get(range.clone()).is_some(), "{range:?} of {:?}", rendered.text);
        end = range.end;
    }
});
