//! The test models on several ranks, compared with float64 logits from Hugging Face transformers.

use std::collections::BTreeMap;
use std::path::Path;

use akunu_arch::open_model;
use akunu_device_testing::goldens;
use akunu_fixtures::Dequantised;
use akunu_plan::{Device, KvType};

use crate::common::{cpus, references};

/// How far the logits of each model are from its goldens, or why it cannot be shared out.
fn all(
    ranks: usize,
    chunk: usize,
    open: &mut dyn FnMut() -> Box<dyn Device>,
) -> BTreeMap<String, Result<f64, String>> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models");
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(models).unwrap() {
        let folder = entry.unwrap().path();
        if folder.is_dir() {
            let model = Dequantised::as_stored(&*open_model(&folder).unwrap());
            let worst = goldens::worst(&model, open, &folder.join("golden.json"), chunk, KvType::F32);
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            println!("{ranks} ranks, {name}: {worst:?}");
            found.insert(name, worst);
        }
    }
    found
}

#[test]
fn reference_ranks_match_float64_goldens() {
    for ranks in [2, 3, 4, 8] {
        all(ranks, 7, &mut || references(ranks));
    }
}

#[test]
fn cpu_ranks_match_float64_goldens() {
    for ranks in [2, 3, 4, 8] {
        all(ranks, 7, &mut || cpus(ranks, 2));
    }
}
