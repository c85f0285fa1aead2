//! Arbitrary text as a saved conversation: what is read is written and read again unchanged.
#![no_main]

use akunu::chat::conversation;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(messages) = conversation::parse(text) else { return };
    for message in &messages {
        assert!(message["role"].is_string() && message["content"].is_string(), "{message}");
        assert!(message.as_object().is_some_and(|fields| fields.values().all(|value| !value.is_null())));
    }
    let written = conversation::to_json(&messages);
    let again = conversation::parse(&written).expect("a conversation that was written");
    assert_eq!(again, messages);
});
