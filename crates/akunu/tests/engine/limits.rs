//! Errors for invalid input and exceeded limits.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::{DEVICES, checked_in_models, exact, generate, options, shared, tales, tales_engine};
use akunu::{
    DeviceChoice, Engine, EngineOptions, Error, GenerateOptions, KvType, Model, Note, PassRows,
    ProfileOptions, Sampling,
};
use akunu_arch::GgufModel;
use akunu_format::Region;

fn error(engine: &mut Engine, prompt: &[u32]) -> Error {
    let mut session = engine.session().unwrap();
    let never = &mut |_: akunu::Piece<'_>| -> ControlFlow<()> { panic!("a piece came") };
    engine.generate(&mut session, prompt, &GenerateOptions::default(), never).unwrap_err()
}

#[test]
fn invalid_prompts_are_errors() {
    let mut engine = tales_engine(|o| o.context = Some(16));
    let vocab = engine.vocab_size();
    assert!(matches!(error(&mut engine, &[]), Error::EmptyPrompt));

    let outside = error(&mut engine, &[1, vocab as u32, 2]);
    let text = outside.to_string();
    assert!(text.contains(&vocab.to_string()) && text.contains(&format!("0 to {}", vocab - 1)), "{text}");
    assert!(matches!(outside, Error::TokenOutsideVocabulary { index: 1, .. }));

    let long = error(&mut engine, &[1; 17]);
    assert!(matches!(long, Error::PromptTooLong { prompt: 17, context: 16 }));
    let text = long.to_string();
    assert!(
        text.contains("17 tokens") && text.contains("context length is 16") && text.contains("-c"),
        "{text}"
    );

    for result in [engine.logits(&[], true, None), engine.logits(&[1; 17], false, None)] {
        assert!(matches!(result, Err(Error::EmptyPrompt | Error::PromptTooLong { .. })));
    }
    assert!(engine.log_likelihoods(&[vocab as u32]).is_err());
}

#[test]
fn a_prompt_as_long_as_the_context_gives_one_token() {
    let mut engine = tales_engine(|o| o.context = Some(16));
    let options = GenerateOptions { ignore_eos: true, ..Default::default() };
    for (len, tokens) in [(15, 2), (16, 1)] {
        let (_, generated) = generate(&mut engine, &vec![5; len], &options);
        let found = (generated.ids.len(), generated.finish);
        assert_eq!(found, (tokens, akunu::FinishReason::ContextFull), "a prompt of {len}");
    }
    let long = error(&mut engine, &[5; 17]);
    assert!(matches!(long, Error::PromptTooLong { prompt: 17, context: 16 }));
}

#[test]
fn a_context_larger_than_memory_is_refused_with_the_plan() {
    if akunu::available_memory().is_none() {
        println!("skipped: a_context_larger_than_memory needs a system that says how much memory it has");
        return;
    }
    for device in DEVICES {
        let options = EngineOptions { context: Some(1 << 30), ..options(device) };
        let error = Engine::new(tales(), &options).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::DoesNotFit { context, .. } if context == 1 << 30), "{text}");
        for part in ["KV cache", "scratch", "allocated in all", "(-c "] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn settings_of_zero_are_refused() {
    for options in [
        EngineOptions { context: Some(0), ..Default::default() },
        EngineOptions { slots: 0, ..Default::default() },
        EngineOptions { chunk: Some(0), ..Default::default() },
        EngineOptions { chain: Some(0), ..Default::default() },
        EngineOptions { logit_rows: 0, ..Default::default() },
        EngineOptions { threads: Some(0), ..Default::default() },
    ] {
        let error = Engine::new(tales(), &options).unwrap_err();
        assert!(matches!(error, Error::Setting { .. }), "{error}");
    }
}

#[test]
fn an_unknown_device_is_refused_with_the_known_ones() {
    let error = "cuda9".parse::<DeviceChoice>().unwrap_err().to_string();
    assert!(error.starts_with("unknown device \"cuda9\"; choose one of auto, cpu, "), "{error}");
    for choice in DeviceChoice::ALL {
        assert_eq!(choice.name().parse::<DeviceChoice>().unwrap(), *choice);
    }
}

#[test]
fn decisions_are_noted() {
    let trained = tales().config().context_length;
    let notes = |context, device| {
        let options = EngineOptions { context, ..options(device) };
        Engine::new(tales(), &options).unwrap().notes().to_vec()
    };
    assert!(notes(Some(trained), DeviceChoice::Cpu).is_empty());
    let auto = notes(Some(trained), DeviceChoice::Auto);
    let best = DeviceChoice::Auto.resolve(&options(DeviceChoice::Auto).backends).name();
    assert!(matches!(auto[..], [Note::AutoDevice { device, .. }] if device == best), "{auto:?}");
    let beyond = notes(Some(trained + 1), DeviceChoice::Cpu);
    assert_eq!(beyond, [Note::BeyondTraining { context: trained + 1, trained }]);
    let default = notes(None, DeviceChoice::Cpu);
    assert_eq!(default.is_empty(), trained <= akunu::DEFAULT_CONTEXT);
}

#[test]
fn a_model_without_a_tokenizer_generates_ids() {
    let model = Arc::new(Model::open(&checked_in_models()[0].1).unwrap());
    assert!(matches!(model.encode("text"), Err(Error::NoTokenizer { .. })));
    let mut engine = Engine::new(model, &options(DeviceChoice::Cpu)).unwrap();
    let wanted = GenerateOptions { max_tokens: Some(5), ignore_eos: true, ..Default::default() };
    let mut session = engine.session().unwrap();
    let mut ids = Vec::new();
    let generated = engine
        .generate(&mut session, &[1, 2, 3], &wanted, &mut |piece| {
            assert_eq!(piece.text, "");
            ids.extend_from_slice(piece.ids);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((ids.len(), ids), (5, generated.ids));
    let wanted = GenerateOptions { stop_strings: vec!["x".into()], ..wanted };
    let refused = engine.generate(&mut session, &[1], &wanted, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(refused, Err(Error::NoTokenizer { .. })));
}

#[test]
fn empty_stop_strings_and_unknown_stop_ids_are_refused() {
    let mut engine = tales_engine(|_| {});
    let mut session = engine.session().unwrap();
    for wanted in [
        GenerateOptions { stop_strings: vec![String::new()], ..Default::default() },
        GenerateOptions { stop_ids: vec![u32::MAX], ..Default::default() },
        GenerateOptions { sampling: Sampling { top_p: 2.0, ..Default::default() }, ..Default::default() },
    ] {
        let result = engine.generate(&mut session, &[1], &wanted, &mut |_| ControlFlow::Continue(()));
        assert!(
            matches!(result, Err(Error::Setting { .. } | Error::TokenOutsideVocabulary { .. })),
            "{wanted:?}"
        );
    }
}

#[test]
fn invalid_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Model::open(folder.path()), Err(Error::Format(_))), "a folder without config.json");
    let file = folder.path().join("text.gguf");
    std::fs::write(&file, "not a model").unwrap();
    assert!(matches!(Model::open(&file), Err(Error::Format(_))));
    let missing = Model::open(folder.path().join("missing.gguf")).unwrap_err().to_string();
    assert!(missing.contains("missing.gguf"), "{missing}");
    if let Some(vocabulary) = shared("vocab/gpt-2.gguf") {
        assert!(matches!(Model::open(vocabulary), Err(Error::Format(_))));
    }
}

/// The embedded model with a NaN in its last norm.
fn with_nan() -> Arc<Model> {
    let model = tales();
    let tensor = model.weights().tensor("output_norm.weight").unwrap();
    let mut bytes = model.weights().regions()[tensor.region].bytes().to_vec();
    bytes[tensor.offset..tensor.offset + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let weights = GgufModel::from_region(Region::from_vec(bytes)).unwrap();
    Arc::new(Model::from_weights(Arc::new(weights), "with a NaN").unwrap())
}

#[test]
fn nan_weights_are_reported_and_not_decoded() {
    for device in DEVICES {
        let options = EngineOptions { slots: 2, ..exact(device) };
        let mut engine = Engine::new(with_nan(), &options).unwrap();
        let prompt = [5, 6, 7];
        let found = error(&mut engine, &prompt);
        assert!(matches!(found, Error::NotFinite { position: 2 }), "{device}: {found}");
        let mut session = engine.session().unwrap();
        let sampling = Sampling { temperature: 1.0, ..Default::default() };
        let wanted = GenerateOptions { sampling, ..Default::default() };
        let sampled = engine.generate(&mut session, &prompt, &wanted, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(sampled, Err(Error::NotFinite { position: 2 })), "{device}: {sampled:?}");
        let decoded = engine.chain(&mut session, &[5], None, 4, &[], None).map(<[u32]>::to_vec);
        assert!(matches!(decoded, Err(Error::NotFinite { position: 3 })), "{device}: {decoded:?}");
        assert_eq!(session.tokens(), prompt, "what failed is not kept");
        let scored = engine.log_likelihoods(&prompt);
        assert!(matches!(scored, Err(Error::NotFinite { position: 0 })), "{device}: {scored:?}");
    }
}

#[test]
fn the_plan_is_what_the_device_allocates() {
    for device in DEVICES {
        for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
            for (slots, chunk, logit_rows) in [(1, 1, 1), (3, 17, 5), (2, 64, 64)] {
                let options = EngineOptions { kv, slots, chunk: Some(chunk), logit_rows, ..options(device) };
                let mut engine = Engine::new(tales(), &options).unwrap();
                assert_eq!(
                    engine.plan().memory.allocated(),
                    engine.device().allocated_bytes(),
                    "{device} {kv:?}"
                );
                engine.logits(&[1, 2, 3], true, None).unwrap();
                assert_eq!(
                    engine.plan().memory.allocated(),
                    engine.device().allocated_bytes(),
                    "after a pass"
                );
            }
        }
    }
}

#[test]
fn likelihoods_agree_with_the_logits() {
    let mut engine = tales_engine(|o| o.logit_rows = 7);
    let ids = tales().encode("Once upon a time there was a little fox.").unwrap();
    let logits = engine.logits(&ids, true, None).unwrap();
    let scores = engine.log_likelihoods(&ids).unwrap();
    assert_eq!(scores.len(), ids.len() - 1);
    for (i, score) in scores.iter().enumerate() {
        let row = &logits[i * engine.vocab_size()..][..engine.vocab_size()];
        let total: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        let expected = f64::from(row[ids[i + 1] as usize]) - total.ln();
        assert!((score - expected).abs() < 1e-9, "{score} for {expected}");
    }
    assert!(engine.log_likelihoods(&ids[..1]).unwrap().is_empty());
}

#[test]
fn perplexity_scores_each_token_once() {
    let mut engine = tales_engine(|o| (o.context, o.logit_rows) = (Some(32), 8));
    let ids = tales().encode(&"The little fox ran to the river and found a red boat. ".repeat(4)).unwrap();
    let mut told = Vec::new();
    let whole = engine.perplexity(&ids, 32, 16, &mut |done, all| told.push((done, all))).unwrap();
    assert_eq!(whole.tokens, ids.len() - 1, "with overlap, all but the first");
    assert_eq!(told.last(), Some(&(ids.len(), ids.len())));
    let apart = engine.perplexity(&ids, 32, 32, &mut |_, _| {}).unwrap();
    assert_eq!(apart.tokens, ids.len() - ids.len().div_ceil(32), "without, all but each window's first");
    assert!(whole.perplexity() > 1.0 && whole.perplexity() < apart.perplexity(), "{whole:?} {apart:?}");
    // A single window gives the mean of the likelihoods.
    let few = &ids[..20];
    let mean = -engine.log_likelihoods(few).unwrap().iter().sum::<f64>() / 19.0;
    assert_eq!(engine.perplexity(few, 32, 8, &mut |_, _| {}).unwrap().mean_nll, mean);
    for (window, stride) in [(1, 1), (33, 8), (16, 0), (16, 17)] {
        assert!(matches!(
            engine.perplexity(&ids, window, stride, &mut |_, _| {}),
            Err(Error::Setting { .. })
        ));
    }
}

#[test]
fn a_profile_has_an_entry_for_each_command() {
    let mut engine = tales_engine(|_| {});
    let decode = engine.profile(ProfileOptions { passes: 3, depth: 100, rows: PassRows::Step(1) }).unwrap();
    let table = engine.plan().tables.decode().clone();
    assert_eq!(decode.len(), table.commands.len());
    assert!(decode.iter().zip(&table.labels).all(|(line, label)| line.label == *label));
    let attention = decode.iter().find(|line| line.label.contains("attention")).unwrap();
    let config = tales().config().clone();
    let position = 2 * config.kv_head_count * config.head_dim * 2;
    assert_eq!(attention.cost.kv_bytes, 101 * position as u64);
    let prefill = engine.profile(ProfileOptions { passes: 1, depth: 0, rows: PassRows::Prompt(16) }).unwrap();
    assert_eq!(prefill.len(), engine.plan().tables.prefill().commands.len());
    assert!(engine.profile(ProfileOptions { passes: 1, depth: 256, rows: PassRows::Step(1) }).is_err());
    assert!(engine.profile(ProfileOptions { passes: 1, depth: 0, rows: PassRows::Prompt(0) }).is_err());
    // The slot is freed.
    engine.session().unwrap();
}

#[test]
fn a_profile_of_a_step_has_a_row_for_each_sequence() {
    let mut engine = tales_engine(|options| *options = options.clone().batching(3));
    let step = |sequences| ProfileOptions { passes: 1, depth: 100, rows: PassRows::Step(sequences) };
    let of_three = engine.profile(step(3)).unwrap();
    let config = tales().config().clone();
    let attention = of_three.iter().find(|line| line.label.contains("attention")).unwrap();
    assert_eq!(attention.cost.kv_bytes, 3 * 101 * (2 * config.kv_head_count * config.head_dim * 2) as u64);
    assert!(matches!(engine.profile(step(4)), Err(Error::Setting { name: "the number of sequences", .. })));
}

#[test]
fn the_devices_verify() {
    let model = tales();
    let ids = model.encode("Once upon a time there was a fox.").unwrap();
    for device in DEVICES {
        let report = akunu::verify(&model, &options(device), &ids, &mut |_, _| {}).unwrap();
        assert!(report.first_bad().is_none(), "{:?}", report.first_bad());
        assert!(!report.differences.is_empty());
    }
}
