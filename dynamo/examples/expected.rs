//! What the engine itself answers, for comparison with answers through Dynamo's frontend: reads a line of JSON with a
//! `prompt` or a user's `message` and `max_tokens`, and writes one with `text` and `tokens`. Greedy, with the embedded
//! model. As in the frontend, nothing is put before a prompt.

#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::Arc;

use akunu::chat::{Chat, ChatTemplates, Event};
use akunu::{DeviceChoice, Engine, EngineOptions, GenerateOptions, Model};
use akunu_tokenizer::EncodeOptions;
use anyhow::{Context, Result};
use serde_json::{Value as Json, json};

fn main() -> Result<()> {
    let model = Arc::new(Model::embedded()?);
    let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() }.batching(2);
    let mut engine = Engine::new(model.clone(), &options)?;
    let tokenizer = model.tokenizer()?.clone();
    let mut session = engine.session()?;
    let mut chat =
        Chat::new(&mut engine, ChatTemplates::find(model.metadata(), None)?.template(None, &*tokenizer)?)?;
    for line in std::io::stdin().lines() {
        let asked: Json = serde_json::from_str(&line?)?;
        let max_tokens = Some(asked["max_tokens"].as_u64().context("max_tokens")? as usize);
        let options = GenerateOptions { max_tokens, ..GenerateOptions::default() };
        let mut text = String::new();
        let tokens = match asked["prompt"].as_str() {
            Some(prompt) => {
                let ids =
                    tokenizer.encode(prompt, EncodeOptions { add_special: false, parse_special: true })?;
                let generated = engine.generate(&mut session, &ids, &options, &mut |piece| {
                    text.push_str(piece.text);
                    ControlFlow::Continue(())
                })?;
                generated.timings.generated_tokens
            }
            None => {
                let message = asked["message"].as_str().context("a prompt or a message")?;
                chat.reset();
                let turn = chat.ask(&mut engine, message, &options, &mut |event| {
                    if let Event::Part(part) = event {
                        text.push_str(part.text);
                    }
                    ControlFlow::Continue(())
                })?;
                turn.timings.generated_tokens
            }
        };
        println!("{}", json!({ "text": text, "tokens": tokens }));
    }
    Ok(())
}
