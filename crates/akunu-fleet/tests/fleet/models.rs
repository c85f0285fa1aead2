//! The test models on several ranks, compared with float64 logits from Hugging Face transformers.

use std::path::{Path, PathBuf};

use akunu_arch::{WeightProvider, open_model};
use akunu_device_testing::goldens;
use akunu_fixtures::Dequantised;
use akunu_plan::{Device, KvType, OnHost};
use akunu_testing::{Cases, cases, fewest_or};

use crate::common::{cpus, references};

pub fn folders(kind: &str) -> Vec<PathBuf> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(kind);
    let mut folders: Vec<PathBuf> = std::fs::read_dir(models).unwrap().map(|e| e.unwrap().path()).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

pub fn name(folder: &Path) -> String {
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

/// Why so many ranks cannot share a model.
fn refusal(model: &dyn WeightProvider, ranks: usize) -> Option<String> {
    let heads = model.config().head_count;
    if !heads.is_multiple_of(ranks) {
        return Some(format!("{ranks} ranks cannot share the model's {heads} heads equally"));
    }
    let has_states = model.config().recurrent.contains(&true);
    has_states.then(|| "layers with a state cannot be cut between ranks".into())
}

/// These models on so many ranks; returns how many could be shared.
pub fn all_match(
    ranks: usize,
    folders: impl Iterator<Item = PathBuf>,
    open: &mut dyn FnMut() -> Box<dyn Device>,
) -> usize {
    let mut shared = 0;
    for folder in folders {
        let name = name(&folder);
        let model = Dequantised::as_stored(&*open_model(&folder).unwrap());
        let worst =
            goldens::worst(&model, open, &folder.join("golden.json"), (7, KvType::F32, OnHost::default()));
        match (refusal(&model, ranks), worst) {
            (None, Ok(worst)) => {
                assert!(worst < 1e-5, "{name} on {ranks} ranks: {worst:.2e}");
                shared += 1;
            }
            (Some(reason), Err(found)) => {
                assert!(found.contains(&reason), "{name} on {ranks} ranks: {found}")
            }
            other => panic!("{name} on {ranks} ranks: {other:?}"),
        }
    }
    shared
}

#[test]
fn reference_ranks_match_float64_goldens() {
    // Few models have heads for 3 or 8.
    let step = fewest_or(3, 1, 1);
    for (ranks, step, least) in [(2, step, 45 / step), (3, 1, 6), (4, step, 28 / step), (8, 1, 3)] {
        let folders = folders("models").into_iter().step_by(step);
        let shared = all_match(ranks, folders, &mut || references(ranks));
        assert!(shared >= least, "{shared} models on {ranks} ranks");
    }
}

/// Numbers of ranks for model number `index`: all of them with all cases, else one that can share it, another one for each
/// model.
pub fn counts(folder: &Path, index: usize) -> Vec<usize> {
    let model = open_model(folder).unwrap();
    let mut counts = vec![2, 3, 4, 8];
    if cases() < Cases::All {
        counts.retain(|ranks| refusal(&*model, *ranks).is_none());
        counts = counts.get(index % counts.len().max(1)).copied().into_iter().collect();
    }
    counts
}

/// Each model on some number of ranks.
#[test]
fn cpu_ranks_match_float64_goldens() {
    let mut shared = [0; 9];
    for (index, folder) in folders("models").into_iter().enumerate().step_by(fewest_or(7, 1, 1)) {
        for ranks in counts(&folder, index) {
            let threads = if ranks == 2 { 2 } else { 1 };
            shared[ranks] += all_match(ranks, [folder.clone()].into_iter(), &mut || cpus(ranks, threads));
        }
    }
    assert!(cases() == Cases::Fewest || [2, 3, 4, 8].iter().all(|ranks| shared[*ranks] > 0), "{shared:?}");
}

/// Weights in blocks and in planes are cut between them. An activation may be rounded to the next code.
#[test]
fn quantised_weights_are_cut_between_blocks() {
    let mut shared = 0;
    for folder in [folders("quantised"), folders("mlx")].concat() {
        let name = name(&folder);
        let model = open_model(&folder).unwrap();
        let ids: Vec<u32> = (1..20).collect();
        let of = |device: &mut dyn Device| {
            goldens::logits(&*model, device, &ids, (7, KvType::F32, OnHost::default()))
        };
        let alone = of(&mut *references(1)).unwrap().concat();
        let largest = alone.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
        match of(&mut *references(2)) {
            Ok(found) => {
                let differ = alone.iter().zip(found.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(differ / largest < 0.02, "{name}: {}", differ / largest);
                shared += 1;
            }
            Err(error) => {
                let reasons = ["equally", "cannot be cut between", "another order"];
                assert!(reasons.iter().any(|reason| error.contains(reason)), "{name}: {error}");
            }
        }
    }
    assert!(shared >= 10, "{shared}");
}
