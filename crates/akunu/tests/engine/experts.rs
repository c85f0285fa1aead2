//! Experts that are read from the file when they are needed, and counts of what passes read.
#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{bits, checked_in, checked_in_models, generate, options, tales, together};
use akunu::schedule::Request;
use akunu::{
    DeviceChoice, Engine, EngineOptions, Error, ExpertReads, GenerateOptions, Model, PassRows, ProfileOptions,
};
use akunu_arch::convert::{Conversion, ConvertOptions};
use akunu_arch::open_model;
use akunu_cpu::{CpuDevice, CpuOptions};
use akunu_fleet::Hybrid;
use akunu_format::quantise::Mix;
use akunu_plan::reference::ReferenceDevice;
use akunu_plan::{Device, Paging};
use akunu_testing::few_or_many;
use tempfile::TempDir;

/// A checked-in model as a GGUF in 8-bit blocks, whose experts are in one mapped file.
fn gguf(dir: &TempDir, folder: &Path) -> PathBuf {
    let file = dir.path().join(format!("{}.gguf", folder.file_name().unwrap().to_str().unwrap()));
    let weights = open_model(folder).unwrap();
    let recipe =
        ConvertOptions { mix: Mix::find("Q8_0").unwrap(), pure: false, vocabulary: None, imatrix: None };
    let conversion = Conversion::new(weights.as_ref(), &recipe).unwrap();
    let out = std::fs::File::create(&file).unwrap();
    conversion.write(out, 1, &false.into(), &mut |_| {}).unwrap();
    file
}

fn model(dir: &TempDir, name: &str) -> Arc<Model> {
    Arc::new(Model::open(gguf(dir, &checked_in("models").join(name))).unwrap())
}

/// Models with several experts for each token, or one.
fn mixtures() -> Vec<PathBuf> {
    let all = checked_in_models().into_iter().map(|(_, folder)| folder);
    all.filter(|folder| open_model(folder).unwrap().config().experts.is_some()).collect()
}

fn base() -> EngineOptions {
    EngineOptions { context: Some(64), chunk: Some(9), logit_rows: 9, ..options(DeviceChoice::Cpu) }
}

fn paged(memory: u64) -> EngineOptions {
    EngineOptions { expert_memory: Some(memory), ..base() }
}

fn engine(model: &Arc<Model>, options: &EngineOptions) -> Engine {
    Engine::new(model.clone(), options).unwrap()
}

/// All experts of a model, as they could be paged.
fn possible(model: &Model) -> Paging {
    let plan = engine(&Arc::new(Model::open(model_path(model)).unwrap()), &base()).plan().clone();
    Paging::possible(&plan, model.weights()).unwrap()
}

fn model_path(model: &Model) -> &Path {
    &model.weights().regions()[0].file().unwrap().path
}

/// Memory for this part of the experts, beside the slots that others pass through.
fn memory(paging: &Paging, part: u64, of: u64) -> u64 {
    paging.least_memory() + paging.expert_bytes().saturating_sub(1 + paging.least_memory()) * part / of
}

fn ids(model: &Model, count: u32, seed: u32) -> Vec<u32> {
    let vocab = model.config().vocab_size as u32;
    (0..count).map(|i| (seed * 31 + i * i * 7 + i * 101) % vocab).collect()
}

/// The bits of a prompt's logits, in passes of several rows, and the tokens that follow it one at a time.
fn outputs(engine: &mut Engine) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let prompt = ids(engine.model(), 31, 5);
    let logits = engine.logits(&prompt, true, None).unwrap().iter().map(|x| x.to_bits()).collect();
    let wanted = GenerateOptions { max_tokens: Some(12), ignore_eos: true, ..GenerateOptions::default() };
    let (_, generated) = generate(engine, &prompt[..8], &wanted);
    (logits, generated.ids, bits(engine))
}

fn reads(engine: &Engine) -> ExpertReads {
    engine.device().expert_reads().unwrap()
}

#[test]
fn paged_experts_give_the_same_bits_with_any_memory_and_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let mut tried = 0;
    for folder in mixtures().into_iter().take(few_or_many(6, 40)) {
        let model = Arc::new(Model::open(gguf(&dir, &folder)).unwrap());
        let paging = possible(&model);
        let mut whole = engine(&model, &base());
        let expected = outputs(&mut whole);
        for part in [0, 1, 3] {
            // Models with few experts have no slots to spare.
            let memory = memory(&paging, part, 4);
            if memory >= paging.expert_bytes() {
                continue;
            }
            let mut counts = None;
            for threads in [1, 4] {
                let options = EngineOptions { threads: Some(threads), ..paged(memory) };
                let mut engine = engine(&model, &options);
                let found = outputs(&mut engine);
                assert!(found == expected, "{}: part {part}, {threads} threads", folder.display());
                let plan = engine.plan();
                assert_eq!(engine.device().allocated_bytes(), plan.memory.allocated());
                assert!(plan.memory.expert_slots <= memory);
                let found = reads(&engine);
                assert!(found.misses > 0 && found.file_bytes > 0);
                assert_eq!(found.bytes, reads(&whole).bytes, "what rows are routed to");
                assert_eq!(*counts.get_or_insert(found), found, "counts do not depend on threads");
            }
            tried += 1;
        }
    }
    assert!(tried >= 6, "{tried}");
}

#[test]
fn every_command_of_a_paged_model_agrees_with_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["qwen3-moe", "qwen2-moe-shared", "gpt-oss"] {
        let model = model(&dir, name);
        let least = possible(&model).least_memory();
        let report = akunu::verify(&model, &paged(least), &ids(&model, 9, 3), &mut |_, _| {}).unwrap();
        assert!(report.first_bad().is_none(), "{name}: {:?}", report.first_bad());
        assert!(report.differences.iter().any(|d| d.label.contains("experts")), "{name}");
    }
}

/// A pass that needs all experts reads each one that is not kept once, and leaves those that are kept.
#[test]
fn prompts_leave_the_experts_that_steps_use() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "olmoe");
    let paging = possible(&model);
    let mut engine = engine(&model, &paged(paging.least_memory() + 3 * 2 * paging.layers[0].expert()));
    let paging = engine.plan().paging.clone().unwrap();
    assert!(paging.layers.iter().all(|layer| (layer.kept, layer.experts, layer.top) == (3, 9, 1)));
    let step = [7];
    for _ in 0..40 {
        engine.logits(&step, false, None).unwrap();
    }
    let count = |engine: &mut Engine, ids: &[u32]| {
        let before = reads(engine);
        engine.logits(ids, false, None).unwrap();
        reads(engine) - before
    };
    let steady = count(&mut engine, &step);
    assert_eq!((steady.misses, steady.file_bytes), (0, 0), "the experts of one token are kept");
    let mut most = 0;
    for seed in 0..20 {
        let prompt = ids(&model, 9, seed);
        let found = count(&mut engine, &prompt);
        let bytes: u64 = paging.layers[0].expert();
        assert_eq!(found.file_bytes, found.misses * bytes, "each expert is read once");
        assert_eq!(found.bytes, (found.hits + found.misses) * bytes);
        most = most.max(found.misses);
    }
    assert!(most > 2, "chunks took turns in the slots that experts pass through");
    assert_eq!(count(&mut engine, &step), steady);
}

#[test]
fn batches_of_paged_models_give_what_each_request_gives_alone() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "olmoe");
    let least = possible(&model).least_memory();
    let wanted = GenerateOptions { max_tokens: Some(10), ignore_eos: true, ..GenerateOptions::default() };
    let request =
        |seed| Request { prompt: ids(&model, 12, seed), options: wanted.clone(), ..Request::default() };
    let requests: Vec<Request> = (0..4).map(request).collect();
    let (found, batch) = together(engine(&model, &paged(least).batching(4)), &requests);
    assert!(reads(&batch).misses > 0);
    for (request, found) in requests.iter().zip(found) {
        let (_, alone) = generate(&mut engine(&model, &base()), &request.prompt, &wanted);
        assert_eq!(found.unwrap(), alone.ids);
    }
}

#[test]
fn the_cpu_pages_the_experts_that_it_computes_beside_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "qwen3-moe");
    let paging = possible(&model);
    let divided = |memory: Option<u64>, stream_rows| {
        let cpu = CpuDevice::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
        let device = Hybrid::new(Box::new(ReferenceDevice::new()), Box::new(cpu));
        let layers = model.config().layer_count;
        let options = EngineOptions {
            cpu_experts: Some(layers - 1),
            expert_memory: memory,
            stream_rows: Some(stream_rows),
            ..base()
        };
        Engine::on_device(model.clone(), Box::new(device), &options).unwrap()
    };
    for stream_rows in [0, 4] {
        let mut whole = divided(None, stream_rows);
        let expected = outputs(&mut whole);
        let mut parts = divided(Some(paging.least_memory()), stream_rows);
        assert_eq!(parts.plan().paging.as_ref().unwrap().layers.len(), model.config().layer_count - 1);
        assert!(outputs(&mut parts) == expected, "prompts stream from {stream_rows} rows on");
        let (found, of_whole) = (reads(&parts), reads(&whole));
        assert!(found.misses > 0 && found.uncounted == 0);
        assert_eq!(found.bytes, of_whole.bytes);
        assert_eq!((of_whole.hits, of_whole.misses), (0, 0));
    }
}

#[test]
fn both_sides_allocate_what_a_paged_plan_says() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "olmoe");
    let cpu = CpuDevice::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut hybrid = Hybrid::new(Box::new(ReferenceDevice::new()), Box::new(cpu));
    let least = possible(&model).least_memory();
    let options = EngineOptions { cpu_experts: Some(usize::MAX), ..paged(least) };
    let plan = akunu::plan(&model, hybrid.capabilities(), &options).unwrap();
    assert!(plan.paging.is_some());
    akunu_plan::load(&plan, model.weights(), &mut hybrid, &mut akunu_plan::unwatched).unwrap();
    let found = [hybrid.allocated_bytes(), hybrid.bytes_of(akunu_plan::Side::Host).unwrap()];
    assert_eq!(found, [plan.memory.allocated(), plan.memory.host_work]);
}

/// The bytes of experts that the reference and the CPU count are those of the picks.
#[test]
fn devices_count_the_same_experts() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mixtral", "qwen3-moe-every-expert", "deepseek-v2-lite"] {
        let model = model(&dir, name);
        let prompt = ids(&model, 9, 1);
        let [reference, cpu] = [DeviceChoice::Reference, DeviceChoice::Cpu].map(|device| {
            let mut engine = engine(&model, &EngineOptions { device, ..base() });
            engine.logits(&prompt, false, None).unwrap();
            let of_prompt = reads(&engine);
            engine.logits(&prompt[..1], false, None).unwrap();
            (of_prompt, reads(&engine) - of_prompt, possible(&model))
        });
        let (of_prompt, of_step, paging) = cpu;
        assert_eq!((of_prompt, of_step), (reference.0, reference.1), "{name}");
        assert_eq!(of_step.bytes, paging.token_bytes(), "{name}");
        assert!(of_prompt.bytes <= paging.expert_bytes() && of_prompt.bytes >= of_step.bytes, "{name}");
    }
}

/// Each command has the bytes of the experts that a pass of these rows is routed to.
#[test]
fn profiles_count_the_experts_of_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "qwen3-moe");
    for options in [base(), paged(possible(&model).least_memory())] {
        for rows in [PassRows::Step(1), PassRows::Step(3), PassRows::Prompt(9)] {
            let mut engine = engine(&model, &options.clone().batching(3));
            let before = reads(&engine);
            let timings = engine.profile(ProfileOptions { passes: 1, depth: 0, rows }).unwrap();
            let experts = timings.iter().filter(|timing| timing.label.contains(".experts_"));
            let found: u64 = experts.map(|timing| timing.cost.weight_bytes).sum();
            // A pass for warm-up, the timed one, and the one that counts.
            assert_eq!(3 * found, (reads(&engine) - before).bytes, "{rows:?}");
            if rows == PassRows::Step(1) {
                assert_eq!(found, possible(&model).token_bytes());
            }
        }
    }
}

fn overwrite(model: &Model, tensor: &str, value: f32) {
    let info = model.weights().tensor(tensor).unwrap();
    assert_eq!(info.dtype, akunu_format::DType::F32);
    let place = info.place();
    let bytes: Vec<u8> = (0..place.bytes / 4).flat_map(|_| value.to_le_bytes()).collect();
    write_at(model, place.offset, &bytes);
}

fn write_at(model: &Model, offset: usize, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(model_path(model)).unwrap();
    file.seek(SeekFrom::Start(offset as u64)).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn routers_that_give_nan_or_infinity_read_experts_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    for value in [f32::NAN, f32::INFINITY, f32::MAX] {
        let model = model(&dir, "qwen3-moe");
        overwrite(&model, "blk.0.ffn_gate_inp.weight", value);
        let model = Arc::new(Model::open(model_path(&model)).unwrap());
        let least = possible(&model).least_memory();
        let prompt = ids(&model, 9, 1);
        let of = |options: &EngineOptions| {
            let mut engine = engine(&model, options);
            let logits = engine.logits(&prompt, true, None).map_err(|error| error.to_string());
            logits.map(|logits| logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
        };
        assert_eq!(of(&paged(least)), of(&base()), "{value}");
    }
}

/// Where the last matrices of experts begin, if nothing behind them is used in the mapping: vectors were copied.
#[cfg(unix)]
fn last_experts(model: &Model) -> Option<usize> {
    let tensors = model.weights().tensors();
    let is_experts = |name: &str| name.contains("_exps.weight");
    let at =
        tensors.iter().filter(|tensor| is_experts(&tensor.name)).map(|tensor| tensor.place().offset).max()?;
    let behind = tensors.iter().filter(|tensor| tensor.place().offset > at);
    behind.map(|tensor| tensor.shape.len()).all(|dimensions| dimensions == 1).then_some(at)
}

#[test]
#[cfg(unix)]
fn a_file_that_becomes_shorter_ends_the_pass_and_not_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let models = mixtures().into_iter().map(|folder| Arc::new(Model::open(gguf(&dir, &folder)).unwrap()));
    let (model, at) = models.filter_map(|model| Some((model.clone(), last_experts(&model)?))).next().unwrap();
    let least = possible(&model).least_memory();
    let prompt = ids(&model, 9, 1);
    let mut engine = engine(&model, &paged(least));
    let expected = engine.logits(&prompt, false, None).unwrap().to_vec();
    let lost = std::fs::read(model_path(&model)).unwrap().split_off(at);
    OpenOptions::new().write(true).open(model_path(&model)).unwrap().set_len(at as u64).unwrap();
    for _ in 0..2 {
        let failed = engine.logits(&prompt, false, None).unwrap_err().to_string();
        assert!(failed.contains("has become shorter"), "{failed}");
    }
    write_at(&model, at, &lost);
    assert_eq!(engine.logits(&prompt, false, None).unwrap(), expected);
}

#[test]
fn memory_for_experts_is_refused_where_it_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "qwen3-moe");
    let paging = possible(&model);
    let plan = |model: &Arc<Model>, options: &EngineOptions| -> Result<bool, Error> {
        let device = CpuDevice::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        Ok(akunu::plan(model, device.capabilities(), options)?.paging.is_some())
    };
    // A model that fits is used in the mapped file.
    for (memory, is_paged) in [
        (None, false),
        (Some(0), false),
        (Some(paging.expert_bytes()), false),
        (Some(paging.least_memory()), true),
    ] {
        assert_eq!(plan(&model, &EngineOptions { expert_memory: memory, ..base() }).unwrap(), is_paged);
    }
    let few = plan(&model, &paged(paging.least_memory() - 1)).unwrap_err();
    assert!(matches!(few, Error::ExpertMemory { least, .. } if least == paging.least_memory()), "{few}");
    let dense = plan(&tales(), &paged(1 << 20)).unwrap_err();
    assert!(matches!(dense, Error::NoPagedExperts), "{dense}");
    // Experts of a folder are joined in memory.
    let folder = Arc::new(Model::open(checked_in("models/qwen3-moe")).unwrap());
    assert!(matches!(plan(&folder, &paged(1 << 20)), Err(Error::NoPagedExperts)));
}

#[test]
fn a_model_that_is_larger_than_the_memory_is_paged_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(&dir, "qwen3-moe");
    let plan = |memory: u64| {
        let device = CpuDevice::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let options = EngineOptions { memory: Some(memory), ..base() };
        akunu::plan(&model, device.capabilities(), &options).unwrap()
    };
    let whole = plan(u64::MAX).memory;
    // A limit includes the device's workspace.
    let needed = whole.peak() + whole.weights_in_place;
    assert!(plan(needed).paging.is_none());
    let paged = plan(needed - 1);
    let paging = paged.paging.as_ref().unwrap();
    assert_eq!(paged.memory.weights_in_place, whole.weights_in_place - paging.expert_bytes());
    let used = paged.memory.peak() + paged.memory.weights_in_place;
    assert!(used < needed && paged.memory.expert_slots == paging.memory(), "{used} of {needed}");
    let all = paging.layers.iter().map(|layer| layer.top as u64 * layer.expert()).sum::<u64>();
    assert!(paging.read_by_token() > 0 && paging.read_by_token() < all);
}
