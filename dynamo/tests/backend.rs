//! The backend without a frontend: Dynamo's conformance tests, and what each field of a request does.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use akunu::schedule::SchedulerOptions;
use akunu::{DeviceChoice, Engine, EngineOptions, GenerateOptions, Model, Sampling};
use akunu_dynamo::folder::{self, FolderError};
use akunu_dynamo::{Backend, Options};
use akunu_tokenizer::EncodeOptions;
use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    DynamoError, ErrorType, FinishReason, GenerateContext, GuidedDecodingOptions, LLMEngine, LLMEngineOutput,
    OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions, StopReason,
};
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::json;

type Stream = BoxStream<'static, Result<LLMEngineOutput, DynamoError>>;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const STORY: &str = "Once upon a time, there was a";

fn options() -> Options {
    let engine = EngineOptions { device: DeviceChoice::Cpu, threads: Some(1), ..EngineOptions::default() };
    Options {
        model: None,
        name: "akunu-tales".into(),
        engine: engine.batching(4),
        scheduler: SchedulerOptions::default(),
        drain: Duration::from_secs(60),
    }
}

async fn started(options: Options) -> Backend {
    let backend = Backend::new(options);
    backend.start(1).await.unwrap();
    backend
}

fn ids(text: &str) -> Vec<u32> {
    Model::embedded().unwrap().tokenizer().unwrap().encode(text, PLAIN).unwrap()
}

fn text(ids: &[u32]) -> String {
    Model::embedded().unwrap().decode(ids).unwrap()
}

/// A greedy request.
fn request(prompt: &str, max_tokens: u32) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("akunu-tales".to_string())
        .token_ids(ids(prompt))
        .stop_conditions(StopConditions { max_tokens: Some(max_tokens), ..StopConditions::default() })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

async fn stream(backend: &Backend, request: PreprocessedRequest) -> Result<Stream, DynamoError> {
    backend.generate(request, GenerateContext::new(mock_context(), None)).await
}

/// All tokens, and the last part.
async fn answer(backend: &Backend, request: PreprocessedRequest) -> (Vec<u32>, LLMEngineOutput) {
    let parts: Vec<_> = stream(backend, request).await.unwrap().map(Result::unwrap).collect().await;
    let ids = parts.iter().flat_map(|part| part.token_ids.iter().copied()).collect();
    (ids, parts.last().unwrap().clone())
}

/// What the engine generates alone.
fn expected(prompt: &str, sampling: Sampling, max_tokens: usize) -> Vec<u32> {
    let mut engine = Engine::new(Arc::new(Model::embedded().unwrap()), &options().engine).unwrap();
    let mut session = engine.session().unwrap();
    let options = GenerateOptions { max_tokens: Some(max_tokens), sampling, ..GenerateOptions::default() };
    engine.generate(&mut session, &ids(prompt), &options, &mut |_| ControlFlow::Continue(())).unwrap().ids
}

#[tokio::test]
async fn dynamos_conformance_tests_pass() {
    run_conformance(|| Backend::new(options())).await.unwrap();
}

#[tokio::test]
async fn answers_are_those_of_the_engine() {
    let backend = started(options()).await;
    let (tokens, last) = answer(&backend, request(STORY, 30)).await;
    assert_eq!(tokens, expected(STORY, Sampling::default(), 30));
    assert_eq!(last.finish_reason, Some(FinishReason::Length));
    assert_eq!(last.completion_usage.unwrap().completion_tokens, 30);

    let sampled = SamplingOptions {
        temperature: Some(1.2),
        top_k: Some(40),
        top_p: Some(0.9),
        min_p: Some(0.01),
        seed: Some(7),
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.2),
        presence_penalty: Some(0.1),
        ..SamplingOptions::default()
    };
    let of_engine = Sampling {
        temperature: 1.2,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        seed: 7,
        repeat_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        repeat_last_n: usize::MAX,
        ..Sampling::default()
    };
    let mut asked = request(STORY, 30);
    asked.sampling_options = sampled;
    let (tokens, _) = answer(&backend, asked).await;
    assert_eq!(tokens, expected(STORY, of_engine, 30));
    backend.cleanup().await.unwrap();
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_tokens() {
    let backend = started(options()).await;
    let mut asked = request(STORY, 8);
    asked.output_options.logprobs = Some(3);
    let mut stream = stream(&backend, asked).await.unwrap();
    let mut count = 0;
    while let Some(part) = stream.next().await {
        let part = part.unwrap();
        for (at, id) in part.token_ids.iter().enumerate() {
            let (logprob, top) =
                (part.log_probs.as_ref().unwrap()[at], &part.top_logprobs.as_ref().unwrap()[at]);
            assert_eq!((top[0].token_id, top[0].logprob, top[0].rank, top.len()), (*id, logprob, 1, 3));
            count += 1;
        }
    }
    assert_eq!(count, 8);
    backend.cleanup().await.unwrap();
}

#[tokio::test]
async fn stop_conditions_end_an_answer() {
    let backend = started(options()).await;
    let (tokens, _) = answer(&backend, request(STORY, 30)).await;
    let stopped = |change: &dyn Fn(&mut PreprocessedRequest)| {
        let mut asked = request(STORY, 30);
        change(&mut asked);
        answer(&backend, asked)
    };
    // A token that has not come before.
    let at = (5..30).find(|at| !tokens[..*at].contains(&tokens[*at])).unwrap();
    let stop = tokens[at];
    let only = || Some(vec![stop]);
    for (id, shown) in [
        (stopped(&|asked| asked.stop_conditions.stop_token_ids = only()).await, false),
        (stopped(&|asked| asked.stop_conditions.stop_token_ids_hidden = only()).await, false),
        (stopped(&|asked| asked.stop_conditions.stop_token_ids_visible = only()).await, true),
        (
            stopped(&|asked| {
                asked.stop_conditions.stop_token_ids = only();
                asked.output_options.no_stop_trim = Some(true);
            })
            .await,
            true,
        ),
    ] {
        let (got, last) = id;
        assert_eq!(got, tokens[..at + usize::from(shown)]);
        assert_eq!(last.finish_reason, Some(FinishReason::Stop));
        assert_eq!(last.stop_reason, Some(StopReason::Int(stop.into())));
        assert_eq!(last.completion_usage.unwrap().completion_tokens as usize, got.len());
    }

    // The frontend removes a stop string, so it gets all of its tokens.
    let whole = text(&tokens);
    let word = whole.split_whitespace().nth(4).unwrap().to_string();
    let (got, last) = stopped(&|asked| asked.stop_conditions.stop = Some(vec![word.clone()])).await;
    assert!(tokens.starts_with(&got) && text(&got).contains(&word), "{word:?} in {:?}", text(&got));
    assert_eq!(last.stop_reason, Some(StopReason::String(word)));

    let (long, last) = answer(&backend, request("The end.", 2000)).await;
    let end = (long.len(), last.finish_reason);
    let mut ignoring = request("The end.", end.0 as u32 + 20);
    ignoring.stop_conditions.ignore_eos = Some(true);
    let (longer, last) = answer(&backend, ignoring).await;
    assert_eq!((end.1, last.finish_reason), (Some(FinishReason::EoS), Some(FinishReason::Length)));
    assert_eq!(longer.len(), end.0 + 20);
    backend.cleanup().await.unwrap();
}

#[tokio::test]
async fn formats_constrain_answers() {
    let backend = started(options()).await;
    let format = |format: GuidedDecodingOptions| {
        let mut asked = request(STORY, 60);
        asked.sampling_options.guided_decoding = Some(format);
        asked
    };
    let none = GuidedDecodingOptions::default;
    let choice = vec!["yes".to_string(), "no".to_string()];
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer", "maximum": 9, "minimum": 0 } },
        "required": ["a"], "additionalProperties": false });
    let cases = [
        (GuidedDecodingOptions { regex: Some("[0-9]{4}".into()), ..none() }, "four digits"),
        (GuidedDecodingOptions { choice: Some(choice), ..none() }, "yes or no"),
        (GuidedDecodingOptions { json: Some(schema.clone()), ..none() }, "an object"),
        (GuidedDecodingOptions { json: Some(schema.to_string().into()), ..none() }, "an object"),
        (GuidedDecodingOptions { grammar: Some("root ::= \"x\" \"y\"".into()), ..none() }, "xy"),
    ];
    for (asked, what) in cases {
        let (tokens, last) = answer(&backend, format(asked)).await;
        let text = text(&tokens);
        let holds = match what {
            "four digits" => text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()),
            "yes or no" => ["yes", "no"].contains(&text.as_str()),
            "an object" => serde_json::from_str::<serde_json::Value>(&text).unwrap()["a"].is_u64(),
            what => text == what,
        };
        assert!(holds, "{what}: {text:?}");
        assert!(matches!(last.finish_reason, Some(FinishReason::Stop | FinishReason::EoS)), "{what}");
    }
    backend.cleanup().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_done_is_refused() {
    let backend = started(options()).await;
    type Change = fn(&mut PreprocessedRequest);
    let cases: [(&str, Change); 19] = [
        ("'n' is", |asked| asked.sampling_options.n = Some(2)),
        ("'best_of' is", |asked| asked.sampling_options.best_of = Some(2)),
        ("'use_beam_search' is", |asked| asked.sampling_options.use_beam_search = Some(true)),
        ("'length_penalty' is", |asked| asked.sampling_options.length_penalty = Some(0.5)),
        ("'top_k' is -2", |asked| asked.sampling_options.top_k = Some(-2)),
        ("temperature is -1", |asked| asked.sampling_options.temperature = Some(-1.0)),
        ("'min_tokens' is", |asked| asked.stop_conditions.min_tokens = Some(3)),
        ("'max_thinking_tokens' is", |asked| asked.stop_conditions.max_thinking_tokens = Some(3)),
        ("'prompt_logprobs' is", |asked| asked.output_options.prompt_logprobs = Some(1)),
        ("'prompt_embeds' is", |asked| asked.prompt_embeds = Some(String::new())),
        ("'multi_modal_data' is", |asked| asked.multi_modal_data = Some(Default::default())),
        ("'lora_name' is", |asked| asked.routing.get_or_insert_default().lora_name = Some("a".into())),
        ("'dp_rank' is", |asked| asked.routing.get_or_insert_default().dp_rank = Some(1)),
        ("'bad_words_token_ids' is", |asked| {
            asked.extra_args = Some(json!({ "sampling_options": { "bad_words_token_ids": [[1]] } }));
        }),
        ("'structural_tag' is", |asked| {
            let format = GuidedDecodingOptions { structural_tag: Some(json!({})), ..Default::default() };
            asked.sampling_options.guided_decoding = Some(format);
        }),
        ("several formats", |asked| {
            let (regex, choice) = (Some("a".into()), Some(vec!["a".into()]));
            let format = GuidedDecodingOptions { regex, choice, ..Default::default() };
            asked.sampling_options.guided_decoding = Some(format);
        }),
        ("after reasoning", |asked| {
            let format = GuidedDecodingOptions { regex: Some("a".into()), ..Default::default() };
            asked.sampling_options.guided_decoding = Some(format);
            asked.require_reasoning = true;
        }),
        ("outside the vocabulary", |asked| asked.token_ids = Arc::new(vec![1 << 30])),
        ("the prompt is empty", |asked| asked.token_ids = Arc::default()),
    ];
    for (message, change) in cases {
        let mut asked = request(STORY, 4);
        change(&mut asked);
        let Err(error) = stream(&backend, asked).await else { panic!("{message}: not refused") };
        assert_eq!(error.class(), ErrorType::InvalidRequest, "{message}: {error}");
        assert!(error.public_message().is_some_and(|text| text.contains(message)), "{message}: {error}");
    }
    let mut long = request(STORY, 4);
    long.token_ids = Arc::new(vec![5; 100_000]);
    assert_eq!(stream(&backend, long).await.err().unwrap().class(), ErrorType::InvalidRequest);
    backend.cleanup().await.unwrap();
}

#[tokio::test]
async fn a_full_queue_sends_requests_elsewhere() {
    let scheduler = SchedulerOptions { queue: 0, ..SchedulerOptions::default() };
    let engine = EngineOptions { slots: 1, ..options().engine };
    let backend = started(Options { scheduler, engine, ..options() }).await;
    let mut running = stream(&backend, endless()).await.unwrap();
    running.next().await.unwrap().unwrap();
    let refused = stream(&backend, request(STORY, 4)).await.err().unwrap();
    assert_eq!(refused.class(), ErrorType::CapacityExhausted, "{refused}");
    drop(running);
    // The slot is free within a step.
    while stream(&backend, request(STORY, 1)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    backend.cleanup().await.unwrap();
}

/// A request that runs until its context is full.
fn endless() -> PreprocessedRequest {
    let mut asked = request(STORY, 1_000_000);
    asked.stop_conditions.ignore_eos = Some(true);
    asked
}

#[tokio::test]
async fn an_abort_ends_the_sequence() {
    let backend = started(options()).await;
    let context = mock_context();
    let mut running = backend.generate(endless(), GenerateContext::new(context.clone(), None)).await.unwrap();
    running.next().await.unwrap().unwrap();
    assert_eq!(backend.is_quiescent().await.unwrap(), Some(false));
    backend.abort(context).await;
    let last = running.by_ref().map(Result::unwrap).fold(None, |_, part| async { Some(part) }).await;
    assert_eq!(last.unwrap().finish_reason, Some(FinishReason::Cancelled));
    drop(running);
    assert_eq!(backend.is_quiescent().await.unwrap(), Some(true));
    backend.cleanup().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_ends_finishes_its_answers() {
    let backend = Arc::new(started(Options { drain: Duration::MAX, ..options() }).await);
    let running = stream(&backend, request(STORY, 60)).await.unwrap();
    let ending = tokio::spawn({
        let backend = backend.clone();
        async move { backend.cleanup().await }
    });
    let parts: Vec<_> = running.map(Result::unwrap).collect().await;
    assert_eq!(parts.last().unwrap().finish_reason, Some(FinishReason::Length));
    ending.await.unwrap().unwrap();
    let refused = stream(&backend, request(STORY, 4)).await.err().unwrap();
    assert_eq!(refused.class(), ErrorType::Unavailable, "{refused}");
}

#[tokio::test]
async fn answers_that_take_too_long_fail_when_a_worker_ends() {
    let backend = started(Options { drain: Duration::ZERO, ..options() }).await;
    let mut running = stream(&backend, endless()).await.unwrap();
    running.next().await.unwrap().unwrap();
    backend.cleanup().await.unwrap();
    let error = running.map(Result::err).fold(None, |_, error| async { error }).await.unwrap();
    assert_eq!(error.class(), ErrorType::Unavailable, "{error}");
}

#[tokio::test]
async fn prefixes_are_shared_by_requests_with_the_same_salt() {
    let backend = started(options()).await;
    let prompt = "Tom had a red ball, and the ball was very big. ".repeat(10);
    let reused = |salt: &str| {
        let mut asked = request(&prompt, 2);
        asked.routing.get_or_insert_default().cache_namespace = Some(salt.into());
        let answer = answer(&backend, asked);
        async {
            answer.await.1.completion_usage.unwrap().prompt_tokens_details.unwrap().cached_tokens.unwrap()
        }
    };
    assert_eq!(reused("one").await, 0);
    assert!(reused("one").await >= 64);
    assert_eq!(reused("two").await, 0);
    backend.cleanup().await.unwrap();
}

#[test]
fn the_files_for_the_frontend_have_the_same_tokens() {
    let model = Model::embedded().unwrap();
    let within = tempfile::tempdir().unwrap();
    let made = folder::write(&model, within.path()).unwrap();
    let read_back = akunu_tokenizer::from_folder(&made).unwrap();
    for text in [STORY, "<|im_start|>user\nWho is Tom?<|im_end|>\n", "naïve 12345 …"] {
        assert_eq!(read_back.encode(text, PLAIN).unwrap(), ids(text), "{text}");
    }
    let config = std::fs::read(made.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["eos_token_id"], json!(model.eos_ids()));

    for file in std::fs::read_dir(&made).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    // The same for each worker, and nothing else is left.
    assert_eq!(folder::write(&model, within.path()).unwrap(), made);
    assert_eq!(std::fs::read_dir(within.path()).unwrap().count(), 1);
    std::fs::write(made.join("config.json"), "{}").unwrap();
    assert!(matches!(folder::write(&model, within.path()), Err(FolderError::Foreign { .. })));
}

#[test]
fn the_folder_of_a_file_is_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/llama-hd64-gqa2");
    let model = Model::open(&folder).unwrap();
    let found = |path: &str| folder::find(None, Some(Path::new(path)), &model).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(found("model.safetensors"), here.display().to_string());
    assert_eq!(found("some/model.safetensors"), here.join("some").display().to_string());
    assert_eq!(found("src"), here.join("src").display().to_string());
    assert_eq!(found("/some/model.safetensors"), "/some");
}
