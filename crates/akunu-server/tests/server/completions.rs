//! `/v1/completions`: log probabilities of prompts, the best of several answers, and middles that are filled
//! in.

use akunu_fixtures::scripted;
use akunu_server::ModelSpec;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::schema::Description;
use crate::serve::{Served, TALES, serve, serve_with};

const PATH: &str = "/v1/completions";

fn with(fields: &Json) -> Json {
    let mut body = json!({ "model": TALES, "prompt": "Once upon a time there was a fox", "temperature": 0 });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn ask(server: &Served, fields: &Json) -> Json {
    server.ok(PATH, &with(fields))
}

fn list<'a>(choice: &'a Json, name: &str) -> &'a [Json] {
    choice["logprobs"][name].as_array().unwrap()
}

/// The log probabilities of tokens as they are generated: each forced by a bias, which does not change them.
fn generated(server: &Served, ids: &[u64]) -> Vec<f64> {
    let one = |at: usize| {
        let fields = json!({
            "prompt": ids[..at], "max_tokens": 1, "logprobs": 0, "logit_bias": { ids[at].to_string(): 100 },
        });
        list(&ask(server, &fields)["choices"][0], "token_logprobs")[0].as_f64().unwrap()
    };
    (1..ids.len()).map(one).collect()
}

#[test]
fn log_probabilities_of_a_prompt_are_those_of_generating_it() {
    let server = serve();
    let text = "Once upon a time there was a fox";
    let ids: Vec<u64> = serde_json::from_value(
        server.ok("/tokenize", &json!({ "content": text, "add_special": true }))["tokens"].clone(),
    )
    .unwrap();
    let expected = generated(&server, &ids);
    // As evaluation programs ask: ids, no or one token more. The cache has the prompt, and must not be used.
    for more in [0, 1] {
        let fields = json!({ "prompt": [ids, ids], "max_tokens": more, "echo": true, "logprobs": 1 });
        let answer = ask(&server, &fields);
        for choice in answer["choices"].as_array().unwrap() {
            let found = list(choice, "token_logprobs");
            assert_eq!((found.len(), &found[0]), (ids.len() + more, &Json::Null));
            for (found, expected) in found[1..].iter().zip(&expected) {
                assert!((found.as_f64().unwrap() - expected).abs() < 1e-4, "{found} {expected}");
            }
            assert_eq!(
                (&list(choice, "top_logprobs")[0], &choice["finish_reason"]),
                (&Json::Null, &json!("length"))
            );
            assert!(list(choice, "top_logprobs")[1..].iter().all(|top| !top.as_object().unwrap().is_empty()));
            let pieces: String = list(choice, "tokens").iter().map(|token| token.as_str().unwrap()).collect();
            assert!(pieces.contains("upon a time"), "{pieces}");
        }
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        assert_eq!(answer["usage"]["completion_tokens"], 2 * more);
    }
    // Of text, offsets are those of the characters.
    let answer = ask(&server, &json!({ "max_tokens": 3, "echo": true, "logprobs": 0, "n": 2 }));
    for choice in answer["choices"].as_array().unwrap() {
        let all = choice["text"].as_str().unwrap();
        assert!(all.starts_with(text) && all.len() > text.len(), "{all}");
        let (tokens, offsets) = (list(choice, "tokens"), list(choice, "text_offset"));
        for (token, offset) in tokens.iter().zip(offsets).skip(2) {
            let at = offset.as_u64().unwrap() as usize;
            assert!(all[at..].starts_with(token.as_str().unwrap()), "{token} at {offset} of {all}");
        }
    }
    if let Some(description) = Description::open() {
        let answer = ask(&server, &json!({ "max_tokens": 2, "echo": true }));
        description.assert("CreateCompletionResponse", &answer);
    }
}

#[test]
fn vllms_log_probabilities_of_a_prompt_are_the_same() {
    let server = serve();
    let fields = json!({ "max_tokens": 1, "echo": true, "logprobs": 1, "prompt_logprobs": 3, "n": 2 });
    let answer = ask(&server, &fields);
    for choice in answer["choices"].as_array().unwrap() {
        let scores = choice["prompt_logprobs"].as_array().unwrap();
        let echoed = list(choice, "token_logprobs");
        assert_eq!((scores.len() + 1, &scores[0]), (echoed.len(), &Json::Null));
        for (at, score) in scores.iter().enumerate().skip(1) {
            let score = score.as_object().unwrap();
            let of_rank = |rank: u64| score.values().find(|entry| entry["rank"] == rank).unwrap();
            let own = |entry: &&Json| entry["logprob"] == echoed[at];
            assert!(score.values().any(|entry| own(&entry)) && (3..=4).contains(&score.len()), "{score:?}");
            let best = list(choice, "top_logprobs")[at].as_object().unwrap().clone();
            assert_eq!(best.values().collect::<Vec<_>>(), [&of_rank(1)["logprob"]]);
            assert_eq!(best.keys().collect::<Vec<_>>(), [of_rank(1)["decoded_token"].as_str().unwrap()]);
            assert!(of_rank(1)["logprob"].as_f64() >= of_rank(3)["logprob"].as_f64());
        }
    }
    let plain = ask(&server, &json!({ "max_tokens": 1, "prompt_logprobs": 0 }));
    let scores = plain["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert!(scores[1..].iter().all(|score| score.as_object().unwrap().len() == 1));
}

#[test]
fn prompts_are_scored_beside_other_requests() {
    let server = serve();
    let long = "Once upon a time there was a fox who lived in a small house. ".repeat(20);
    let scored = json!({ "prompt": long, "max_tokens": 0, "echo": true, "logprobs": 0 });
    let alone = ask(&server, &scored)["choices"].clone();
    let plain = ask(&server, &json!({ "max_tokens": 40 }))["choices"].clone();
    std::thread::scope(|scope| {
        let scores: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(&server, &scored))).collect();
        let texts: Vec<_> =
            (0..3).map(|_| scope.spawn(|| ask(&server, &json!({ "max_tokens": 40 })))).collect();
        for done in scores {
            assert_eq!(done.join().unwrap()["choices"], alone);
        }
        for done in texts {
            assert_eq!(done.join().unwrap()["choices"], plain);
        }
    });
}

#[test]
fn memory_for_scores_is_charged() {
    let server = serve_with(|options| options.limits.memory = 4 << 20);
    let long = "Once upon a time there was a fox who lived in a small house. ".repeat(60);
    let answer =
        server.post(PATH, &with(&json!({ "prompt": long, "max_tokens": 0, "echo": true, "logprobs": 5 })));
    let code = answer.json()["error"]["code"].clone();
    assert_eq!((answer.status, code), (413, json!("request_too_large")), "{}", answer.text());
    // Without them the prompt is no problem, and nothing is held afterwards.
    ask(&server, &json!({ "prompt": long, "max_tokens": 1, "echo": true }));
    server.until_idle();
    assert_eq!(server.metric("akunu_request_memory_bytes"), 0.0);
}

#[test]
fn the_best_of_several_answers_is_returned() {
    let server = serve();
    let sampled = json!({ "temperature": 1.5, "seed": 3, "max_tokens": 12, "logprobs": 0 });
    let fields = |more: Json| {
        let mut fields = sampled.clone();
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    let mean = |choice: &Json| {
        let all = list(choice, "token_logprobs");
        all.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>() / all.len() as f64
    };
    let all = ask(&server, &fields(json!({ "n": 4 })));
    let mut sorted: Vec<&Json> = all["choices"].as_array().unwrap().iter().collect();
    sorted.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = ask(&server, &fields(json!({ "n": 2, "best_of": 4 })));
    let texts = |choices: &[&Json]| choices.iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>();
    let found: Vec<&Json> = best["choices"].as_array().unwrap().iter().collect();
    assert_eq!(texts(&found), texts(&sorted[..2]));
    assert_ne!(texts(&found), texts(&all["choices"].as_array().unwrap().iter().take(2).collect::<Vec<_>>()));
    assert_eq!((&found[0]["index"], &found[1]["index"]), (&json!(0), &json!(1)));
    assert_eq!(best["usage"], all["usage"]);
    // They are not returned unless they are asked for.
    let mut unlogged = fields(json!({ "best_of": 4 }));
    unlogged["logprobs"] = Json::Null;
    let unlogged = ask(&server, &unlogged);
    assert_eq!(
        (&unlogged["choices"][0]["text"], &unlogged["choices"][0]["logprobs"]),
        (&sorted[0]["text"], &Json::Null)
    );
}

const INFILLER: &str = "infiller";

/// A model that knows tokens to fill in a middle, and fills in "so".
pub fn infiller() -> (TempDir, ModelSpec) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("infiller.gguf");
    scripted::write(&path, None, &["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "so", " it", " is"]);
    (folder, ModelSpec { name: INFILLER.into(), path: Some(path), aliases: Vec::new() })
}

#[test]
fn a_middle_is_filled_in() {
    let (_folder, model) = infiller();
    let server = serve_with(|options| options.models.models.push(model));
    let fields = json!({ "model": INFILLER, "prompt": "And ", "suffix": ", he said.", "max_tokens": 9 });
    let answer = ask(&server, &fields);
    assert_eq!(answer["choices"][0]["text"], "so it is");
    // The three tokens, and one for each byte.
    assert_eq!(answer["usage"]["prompt_tokens"], 3 + "And ".len() + ", he said.".len());
    let mut many = fields.clone();
    many["prompt"] = json!(["", "Or "]);
    many["echo"] = true.into();
    let many = ask(&server, &many);
    let texts = [0, 1].map(|index| many["choices"][index]["text"].as_str().unwrap());
    assert_eq!(texts, ["so it is", "Or so it is"]);
    assert_eq!(many["usage"]["prompt_tokens"], 2 * (3 + ", he said.".len()) + "Or ".len());

    let shown = server.ok("/api/show", &json!({ "model": INFILLER }));
    assert_eq!(shown["capabilities"], json!(["completion", "insert"]));
    let asked = json!({ "model": INFILLER, "prompt": "And ", "suffix": ", he said.", "stream": false });
    let answer = server.ok("/api/generate", &asked);
    assert_eq!(answer["response"], "so it is");
    assert_eq!(answer["prompt_eval_count"], 3 + "And ".len() + ", he said.".len());
    let refused = server.post(
        "/api/generate",
        &json!({ "model": INFILLER, "prompt": "And ", "suffix": ".", "system": "Be brief." }),
    );
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("'system'"), "{}", refused.text());
}

#[test]
fn a_middle_is_filled_in_as_by_llama_cpp() {
    let (_folder, model) = infiller();
    let server = serve_with(|options| {
        options.models.engine.context = Some(2000);
        options.models.models.push(model);
    });
    let fields =
        json!({ "model": INFILLER, "input_prefix": "And", "prompt": " ", "input_suffix": ", he said." });
    let of = |more: Json| {
        let mut all = fields.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let answer = server.ok("/infill", &fields);
    let read = 3 + "And ".len() + ", he said.".len();
    assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("so it is"), &json!("eos")));
    assert_eq!((&answer["tokens_evaluated"], &answer["tokens_predicted"]), (&json!(read), &json!(3)));
    assert_eq!((&answer["stop"], &answer["model"]), (&json!(true), &json!(INFILLER)));
    assert_eq!(answer["timings"]["predicted_n"], 3);
    let cut = server.ok("/infill", &of(json!({ "n_predict": 1 })));
    assert_eq!((&cut["content"], &cut["stop_type"]), (&json!("so"), &json!("limit")));
    let stopped = server.ok("/infill", &of(json!({ "stop": " is", "n_predict": -1 })));
    assert_eq!((&stopped["content"], &stopped["stop_type"]), (&json!("so it"), &json!("word")));
    assert_eq!(stopped["stopping_word"], " is");
    // Files stand before both texts.
    let extra = json!([{ "filename": "a.rs", "text": "fn a() {}" }, { "text": "b" }]);
    let beside = server.ok("/infill", &of(json!({ "input_extra": extra })));
    let snippets = 2 * "\n\n--- snippet ---\n\n".len() + "fn a() {}b".len();
    assert_eq!(
        (&beside["content"], &beside["tokens_evaluated"]),
        (&json!("so it is"), &json!(read + snippets))
    );

    let streamed = server.post("/infill", &of(json!({ "stream": true }))).text();
    let events: Vec<Json> = streamed
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    let (last, pieces) = events.split_last().unwrap();
    assert_eq!((text.as_str(), &last["stop"], &last["stop_type"]), ("so it is", &json!(true), &json!("eos")));
    assert!(!pieces.is_empty() && pieces.iter().all(|piece| piece["stop"] == false));

    for (body, param) in [
        (json!({ "model": TALES, "input_prefix": "a", "input_suffix": "b" }), "input_suffix"),
        (json!({ "model": INFILLER, "input_prefix": "a" }), "input_suffix"),
        (json!({ "model": INFILLER, "input_suffix": "a" }), "input_prefix"),
        (of(json!({ "n_predict": -2 })), "n_predict"),
        (of(json!({ "input_extra": [{ "filename": "a" }] })), "input_extra"),
        (of(json!({ "input_prefix": "long ".repeat(4000) })), "input_prefix"),
    ] {
        let refused = server.post("/infill", &body);
        let param_of = &refused.json()["error"]["param"];
        assert_eq!((refused.status, param_of), (400, &json!(param)), "{}", refused.text());
    }
}

/// Programs that evaluate ask for one token more than the prompt, and leave out the last log probability.
#[test]
fn the_token_that_ends_a_text_has_a_log_probability_after_an_echo() {
    let (_folder, model) = infiller();
    let server = serve_with(|options| options.models.models.push(model));
    let ask = |more: usize, echo: bool| {
        let fields = json!({
            "model": INFILLER, "prompt": "so it is", "max_tokens": more, "echo": echo, "logprobs": 1,
        });
        ask(&server, &fields)["choices"][0].clone()
    };
    let (prompt, ended) = (ask(0, true), ask(1, true));
    assert_eq!((&ended["text"], &ended["finish_reason"]), (&json!("so it is"), &json!("stop")));
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let (prompt, all) = (list(&prompt, name), list(&ended, name));
        assert_eq!((all.len(), &all[..prompt.len()]), (prompt.len() + 1, prompt), "{name}");
    }
    assert!(list(&ended, "token_logprobs").last().unwrap().as_f64().unwrap() > -0.1, "{ended}");
    assert!(list(&ask(1, false), "tokens").is_empty());
}

#[test]
fn what_contradicts_is_refused() {
    let (_folder, model) = infiller();
    let server = serve_with(|options| options.models.models.push(model));
    for (fields, param) in [
        (json!({ "echo": true, "logprobs": 1, "stream": true }), "echo"),
        (json!({ "echo": 1 }), "echo"),
        (json!({ "prompt_logprobs": 1, "stream": true }), "prompt_logprobs"),
        (json!({ "prompt_logprobs": 21 }), "prompt_logprobs"),
        (json!({ "model": INFILLER, "suffix": "a", "prompt_logprobs": 1 }), "suffix"),
        (json!({ "best_of": 2, "n": 3 }), "best_of"),
        (json!({ "best_of": 2, "stream": true }), "best_of"),
        (json!({ "best_of": 21 }), "best_of"),
        (json!({ "best_of": 0 }), "best_of"),
        (json!({ "best_of": 20, "prompt": vec!["a"; 7] }), "n"),
        (json!({ "suffix": 3 }), "suffix"),
        (json!({ "suffix": "the end" }), "suffix"),
        (json!({ "model": INFILLER, "suffix": "a", "prompt": [1, 2] }), "suffix"),
        (json!({ "model": INFILLER, "suffix": "a", "echo": true, "logprobs": 1 }), "suffix"),
    ] {
        let answer = server.post(PATH, &with(&fields));
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            answer.text()
        );
    }
    assert_eq!(
        ask(&server, &json!({ "suffix": "", "best_of": 1, "max_tokens": 1 }))["choices"][0]["index"],
        0
    );
}
