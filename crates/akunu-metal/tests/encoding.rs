//! What is encoded for a model of every architecture, operation by operation, with a mock GPU that records and runs
//! nothing.
#![allow(clippy::unwrap_used)]

mod paper;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use akunu_arch::open_model;
use akunu_gpu::{TableDevice, Tuning, Word};
use akunu_plan::{
    Device, DeviceError, Entries, KvType, Loaded, ModelPlan, PlanOptions, ReplayId, Row, Submission, load,
    plan, unwatched,
};
use paper::{Paper, Recorded, Then, Words, render};

const CONTEXT: usize = 64;
const CHAIN: usize = 8;

/// A model on the mock GPU.
struct Drawn {
    device: TableDevice<Paper>,
    plan: ModelPlan,
    loaded: Loaded,
}

impl Drawn {
    fn of(path: &str) -> Drawn {
        Drawn::tuned(path, |_| {})
    }

    fn tuned(path: &str, tune: impl Fn(&mut Tuning)) -> Drawn {
        let model =
            open_model(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)).unwrap();
        let mut paper = Paper::new(&*model);
        tune(paper.tuning_mut());
        let mut device = TableDevice::on(paper).unwrap();
        let options = PlanOptions {
            context: CONTEXT,
            slots: 1,
            kv: KvType::F16,
            kv_bytes: None,
            prefill_rows: CONTEXT,
            prefill_logit_rows: 1,
            chain: CHAIN,
            windows: 1,
            beams: 1,
            word_times: false,
            fuse: true,
            keep_inputs: false,
            host: akunu_plan::OnHost::default(),
            stages: Vec::new(),
            stream_rows: None,
        };
        let plan = plan(&*model, device.capabilities(), &options).unwrap();
        let loaded = load(&plan, &*model, &mut device, &mut unwatched).unwrap();
        assert_eq!(device.allocated_bytes(), plan.memory.allocated(), "{path}");
        device.gpu_mut().forget();
        Drawn { device, plan, loaded }
    }

    fn replay(&mut self, replay: ReplayId, rows: &[Row], steps: usize) -> Result<Words, DeviceError> {
        let last = [rows.len() as u32 - 1];
        let submission =
            Submission { entries: Entries::Rows(rows), logit_rows: &last, steps, stop: &[2], cancel: None };
        self.device.replay(replay, submission)?;
        self.device.wait()?;
        Ok(self.device.gpu_mut().take())
    }

    fn chain(&mut self, position: usize, steps: usize) -> Words {
        self.replay(*self.loaded.replays.decode(), &[Row::causal(5, position as u32, 0)], steps).unwrap()
    }

    fn prefill(&mut self, rows: usize) -> Words {
        let rows: Vec<Row> = (0..rows as u32).map(|i| Row::causal(i % 7, i, 0)).collect();
        self.replay(*self.loaded.replays.prefill(), &rows, 1).unwrap()
    }
}

/// One of each architecture, and types with repacked weights: k-quants, and MLX's.
const MODELS: [(&str, &str); 9] = [
    ("llama", "models/llama-hd64-gqa2"),
    ("qwen2", "models/qwen2-hd64-bias"),
    ("qwen3", "models/qwen3-hd128-gqa2"),
    ("gemma", "models/gemma-hd256"),
    ("gemma2", "models/gemma2-hd64-softcap"),
    ("gemma3", "models/gemma3-hd256-layer-types"),
    ("phi3", "models/phi3-hd96-window"),
    ("llama_k_quants", "gguf/mixed-k.gguf"),
    ("llama_affine", "mlx/llama-mixed"),
];

#[test]
fn a_step_and_a_chunk_of_each_model_are_as_they_were() {
    for (name, path) in MODELS {
        let mut drawn = Drawn::of(path);
        let step = drawn.chain(0, 1);
        insta::assert_snapshot!(format!("{name}_first_token"), step.render());
        // Half of the table's rows.
        let chunk = drawn.prefill(CONTEXT / 2 + 1);
        insta::assert_snapshot!(format!("{name}_33_rows_of_64"), chunk.render());
    }
}

#[test]
fn a_chain_is_its_first_step_again_wherever_it_begins_and_ends() {
    for (name, path) in MODELS {
        let mut drawn = Drawn::of(path);
        let step = drawn.chain(0, 1).words;
        let commands = drawn.plan.tables.decode().commands.len();
        assert!(step.len() >= commands);
        // From the first token; across windows (those of the models have 3 to 24 positions) and the first splits; to
        // the cache's last position.
        for first in [0, 1, 13, 20, 30, CONTEXT - CHAIN] {
            let chain = drawn.chain(first, CHAIN);
            let steps: Vec<_> = chain.words.chunks(step.len()).collect();
            assert_eq!(steps.len(), CHAIN, "{name}");
            assert!(steps.iter().all(|words| *words == step), "{name} from {first}");
            // Only the 16 bytes of the row differ.
            let row = Row::causal(5, first as u32, 0);
            assert_eq!(chain.written("decode.rows").unwrap(), bytemuck::bytes_of(&row));
        }
    }
}

#[test]
fn a_chain_past_the_cache_is_refused_and_nothing_is_encoded() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let row = Row::causal(5, (CONTEXT - CHAIN + 1) as u32, 0);
    let refused = drawn.replay(*drawn.loaded.replays.decode(), &[row], CHAIN);
    assert!(matches!(refused, Err(DeviceError::BadRow { position: 57, .. })), "{refused:?}");
    assert_eq!((drawn.device.gpu().begun, drawn.device.gpu_mut().take().words.len()), (0, 0));
}

#[test]
fn fewer_rows_take_the_smallest_program_that_has_room_for_them() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let variants = drawn.device.variants(*drawn.loaded.replays.prefill());
    assert_eq!(variants.iter().map(|variant| variant.rows).collect::<Vec<_>>(), [16, CONTEXT]);
    let [one, sixteen, seventeen, all] = [1, 16, 17, CONTEXT].map(|rows| drawn.prefill(rows).words);
    assert!(one == sixteen && seventeen == all && one != all);
}

#[test]
fn the_next_chain_is_encoded_while_one_runs() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let mut lengths = Vec::new();
    let mut before: usize = 0;
    for steps in [1, 1, 2, 4, 8, 7, 8, 3, 6] {
        let begun = drawn.device.gpu().begun;
        let chain = drawn.chain(0, steps);
        lengths.push(chain.words.len());
        // Half of the last chain's steps were encoded ahead; if they are too many, none are used. Each wait encodes
        // for the next chain.
        let ahead = Some(before.div_ceil(2)).filter(|&ahead| ahead <= steps).unwrap_or(0);
        assert_eq!(drawn.device.gpu().begun - begun, 1 + usize::from(ahead < steps), "{steps}");
        before = steps;
    }
    assert_eq!(lengths, [1, 1, 2, 4, 8, 7, 8, 3, 6].map(|steps| steps * lengths[0]));
    // A pass of another table in between.
    let chunk = drawn.prefill(20).words;
    assert_eq!(chunk, drawn.prefill(21).words);
    assert_eq!(drawn.chain(3, 6).words.len(), 6 * lengths[0]);
}

#[test]
fn a_chain_that_finds_a_stop_or_is_cancelled_is_submitted_no_further() {
    let mut drawn = Drawn::tuned(MODELS[0].1, |tuning| tuning.part = 2);
    let step = drawn.chain(0, 1).words;
    let rows = [Row::causal(5, 0, 0)];
    let words = |steps: usize| vec![&step[..]; steps].concat();
    // The first step was encoded while the last chain ran.
    let parts: [usize; 5] = [1, 2, 2, 2, 1];
    for after in 1..=parts.len() {
        for stops in [true, false] {
            drawn.device.gpu_mut().forget();
            let cancel = Arc::new(AtomicBool::new(false));
            let then = if stops { Then::FindsAStop } else { Then::Cancels(Arc::clone(&cancel)) };
            drawn.device.gpu_mut().later = Some((after, then));
            let submission = Submission {
                entries: Entries::Rows(&rows),
                logit_rows: &[0],
                steps: CHAIN,
                stop: &[],
                cancel: Some(&cancel),
            };
            drawn.device.replay(*drawn.loaded.replays.decode(), submission).unwrap();
            drawn.device.wait().unwrap();
            // A stop is seen when a part is waited for, while the next one is already running.
            let submitted = if stops { after.max(2) } else { after };
            assert_eq!(drawn.device.gpu().submitted, submitted, "{stops} {after}");
            let steps = parts[..submitted].iter().sum();
            assert!(drawn.device.gpu_mut().take().words == words(steps), "{stops} {after}");
            // What was encoded ahead for the rest does no harm.
            assert!(drawn.chain(0, 2).words == words(2), "{stops} {after}");
        }
    }
}

#[test]
fn a_table_encoded_once_is_run_as_the_words_that_it_would_be_encoded_as() {
    for (name, path) in MODELS {
        let (mut direct, mut indirect) =
            (Drawn::of(path), Drawn::tuned(path, |tuning| tuning.indirect = true));
        let run = |words: &[Recorded]| match words {
            [Word::Barrier, Word::Run(words)] => render(words),
            _ => panic!("{words:?}"),
        };
        for rows in [1, 17] {
            let words = indirect.prefill(rows).words;
            assert_eq!(run(&words), render(&direct.prefill(rows).words), "{name}");
        }
        let step = render(&direct.chain(0, 1).words);
        let chain = indirect.chain(3, CHAIN).words;
        let steps: Vec<_> = chain.chunks(2).map(run).collect();
        assert!(steps.len() == CHAIN && steps.iter().all(|words| *words == step), "{name}");

        // A part of it.
        let rows = [Row::causal(5, 0, 0)];
        let submission =
            Submission { entries: Entries::Rows(&rows), logit_rows: &[0], steps: 1, stop: &[], cancel: None };
        let mut apart = String::new();
        for index in 0..indirect.plan.tables.decode().commands.len() {
            indirect.device.run_range(*indirect.loaded.replays.decode(), submission, index, 1).unwrap();
            apart += &run(&indirect.device.gpu_mut().take().words);
        }
        assert_eq!(apart, step, "{name}");
    }
    let mut drawn = Drawn::tuned(MODELS[0].1, |tuning| tuning.indirect = true);
    insta::assert_snapshot!("llama_two_indirect_steps", drawn.chain(0, 2).render());
}

#[test]
fn a_cancelled_submission_encodes_nothing() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let cancel = AtomicBool::new(true);
    let rows = [Row::causal(5, 0, 0)];
    let submission = Submission {
        entries: Entries::Rows(&rows),
        logit_rows: &[0],
        steps: 4,
        stop: &[],
        cancel: Some(&cancel),
    };
    drawn.device.replay(*drawn.loaded.replays.decode(), submission).unwrap();
    assert_eq!((drawn.device.wait().unwrap().steps, drawn.device.gpu().begun), (0, 0));
}

#[test]
fn commands_are_run_and_timed_one_by_one() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let step = drawn.chain(0, 1).words;
    let count = drawn.plan.tables.decode().commands.len();
    let rows = [Row::causal(5, 0, 0)];
    let submission =
        Submission { entries: Entries::Rows(&rows), logit_rows: &[0], steps: 1, stop: &[], cancel: None };
    let mut apart = Vec::new();
    for index in 0..count {
        drawn.device.run_range(*drawn.loaded.replays.decode(), submission, index, 1).unwrap();
        apart.extend(drawn.device.gpu_mut().take().words);
    }
    assert_eq!(apart, step);
    // With the rows that are already in memory.
    let again = Submission { entries: Entries::Rows(&[]), ..submission };
    drawn.device.run_range(*drawn.loaded.replays.decode(), again, 0, count).unwrap();
    let again = drawn.device.gpu_mut().take();
    assert_eq!(again.written("decode.rows").unwrap(), bytemuck::bytes_of(&rows[0]));
    assert_eq!(again.words, step);

    drawn.device.gpu_mut().forget();
    let mut ns = vec![0; count];
    drawn.device.time_commands(*drawn.loaded.replays.decode(), submission, &mut ns).unwrap();
    assert_eq!(drawn.device.gpu_mut().take().words, step);
    // The mock GPU's clock.
    assert_eq!(ns, (1..=count as u64).map(|n| n * 10).collect::<Vec<_>>());
    assert!(drawn.device.run_range(*drawn.loaded.replays.decode(), submission, count, 1).is_err());
}

#[test]
fn a_checked_chain_is_the_same_words_in_a_command_buffer_each() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let words = drawn.chain(0, 3).words;
    drawn.device.gpu_mut().tuning_mut().checked = true;
    let commands = drawn.plan.tables.decode().commands.len();
    let begun = drawn.device.gpu().begun;
    assert_eq!(drawn.chain(0, 3).words, words);
    assert_eq!(drawn.device.gpu().begun - begun, 3 * commands);
}

#[test]
fn a_command_buffer_that_fails_is_told_and_the_next_one_runs() {
    let mut drawn = Drawn::of(MODELS[0].1);
    let words = drawn.chain(0, 2).words;
    let row = [Row::causal(5, 0, 0)];
    drawn.device.gpu_mut().fails = true;
    let failed = drawn.replay(*drawn.loaded.replays.decode(), &row, 2).unwrap_err().to_string();
    assert_eq!(failed, "paper: running decode: torn");
    drawn.device.gpu_mut().forget();
    assert_eq!(drawn.chain(0, 2).words, words);

    // The first part of a chain fails while others are pending.
    let mut in_parts = Drawn::tuned(MODELS[0].1, |tuning| tuning.part = 2);
    in_parts.device.gpu_mut().fails = true;
    assert!(in_parts.replay(*in_parts.loaded.replays.decode(), &row, CHAIN).is_err());
    in_parts.device.gpu_mut().forget();
    assert_eq!(in_parts.chain(0, CHAIN).words.len(), CHAIN / 2 * words.len());

    // Executed command by command, the error names the command.
    drawn.device.gpu_mut().fails = true;
    let submission =
        Submission { entries: Entries::Rows(&row), logit_rows: &[0], steps: 1, stop: &[], cancel: None };
    let failed =
        drawn.device.run_range(*drawn.loaded.replays.decode(), submission, 4, 1).unwrap_err().to_string();
    assert_eq!(failed, "paper: running layer.0.attention: torn");
}

/// Whether a source uses scratch memory on Metal, where products send nothing to other ranks.
fn uses_scratch(text: &str) -> bool {
    let mut sends = text.split("#if SENDS");
    let first = sends.next().unwrap_or_default();
    let rest = sends.map(|part| part.split_once("#endif").map_or("", |(_, rest)| rest));
    std::iter::once(first).chain(rest).any(|part| part.contains("scratch"))
}

/// Checks which tensors have a place of their own in the file mapping.
#[test]
fn launches_beside_each_other_use_no_scratch_memory() {
    let mut beside = 0;
    for (_, path) in MODELS {
        let mut drawn = Drawn::of(path);
        let words = [drawn.chain(0, 2).words, drawn.prefill(9).words, drawn.prefill(CONTEXT).words].concat();
        for together in words.split(|word| matches!(word, Word::Barrier)) {
            let functions = together.iter().filter_map(|word| match word {
                Word::Pipeline(function) => Some(function),
                _ => None,
            });
            let functions: Vec<_> = functions.collect();
            for function in functions.iter().filter(|_| functions.len() > 1) {
                beside += 1;
                let uses = function.sources.iter().find(|source| uses_scratch(source.text));
                assert!(uses.is_none(), "{}: {uses:?}", function.name);
            }
        }
    }
    assert!(beside > 50, "{beside}");
}
