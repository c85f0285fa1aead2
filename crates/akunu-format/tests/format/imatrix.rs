//! Importance matrices: both formats of a file that an independent script has written, and damaged files.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};

use akunu_format::blocks::Rng;
use akunu_format::{FormatError, Gguf, Imatrix, ImatrixEntry, Region};

fn file(suffix: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/imatrix");
    folder.join(format!("llama-hd64-gqa2.{suffix}"))
}

fn read(bytes: Vec<u8>) -> Result<Imatrix, FormatError> {
    Imatrix::from_region(Region::from_vec(bytes))
}

fn written(imatrix: &Imatrix) -> Vec<u8> {
    imatrix.write(Vec::new()).unwrap()
}

/// A matrix with two columns, and a stack of two with three.
fn small() -> Imatrix {
    let entry = |sums: &[f32], counts: &[f32]| ImatrixEntry { sums: sums.into(), counts: counts.into() };
    let entries = [
        ("blk.0.ffn_up.weight".to_string(), entry(&[1.0, 3.0], &[4.0])),
        ("blk.0.ffn_up_exps.weight".to_string(), entry(&[1.0, 2.0, 0.0, 4.0, 5.0, 6.0], &[0.0, 2.5])),
    ];
    Imatrix {
        entries: entries.into(),
        datasets: vec!["a".into(), "ü".into()],
        chunks: 7,
        chunk_size: Some(512),
    }
}

/// The older format of `small`'s first entry.
fn dat() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut numbers = |all: &[i32]| all.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    numbers(&[1, 3]);
    bytes.extend(b"a.w");
    for n in [2, 2, 1.5f32.to_bits() as i32, 2.5f32.to_bits() as i32, 2, 4] {
        bytes.extend(n.to_le_bytes());
    }
    bytes.extend(b"text");
    bytes
}

#[test]
fn files_of_both_formats_have_the_same_importance() {
    let (new, old) = (Imatrix::open(&file("gguf")).unwrap(), Imatrix::open(&file("dat")).unwrap());
    assert_eq!((new.chunks, new.chunk_size, &*new.datasets), (2, Some(24), &["make.py".to_string()][..]));
    assert_eq!((old.chunks, old.chunk_size, &old.datasets), (2, None, &new.datasets));
    assert_eq!(new.entries.len(), 15);
    assert!(new.entries.keys().eq(old.entries.keys()));
    for (name, entry) in &new.entries {
        assert_eq!(entry.counts, [40.0], "{name}");
        let shape = [1, entry.columns()];
        let [a, b] = [&new, &old].map(|file| file.importance(name, &shape).unwrap().unwrap());
        let mean = a.iter().map(|&w| f64::from(w)).sum::<f64>() / a.len() as f64;
        assert!((mean - 1.0).abs() < 1e-6, "{name}: {mean}");
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-6 * a), "{name}");
    }
}

#[test]
fn what_is_written_is_read() {
    for imatrix in [small(), Imatrix::open(&file("gguf")).unwrap()] {
        assert_eq!(read(written(&imatrix)).unwrap(), imatrix);
    }
    // As llama.cpp shapes them: a single matrix has a vector of sums.
    let gguf = Gguf::from_region(Region::from_vec(written(&small()))).unwrap();
    let shape = |name: &str| gguf.tensor(&format!("blk.0.{name}")).unwrap().shape.clone();
    assert_eq!((shape("ffn_up.weight.in_sum2"), shape("ffn_up.weight.counts")), (vec![2], vec![1]));
    assert_eq!(
        (shape("ffn_up_exps.weight.in_sum2"), shape("ffn_up_exps.weight.counts")),
        (vec![2, 3], vec![2, 1])
    );
}

#[test]
fn sums_of_two_texts_are_merged() {
    let mut merged = small();
    let mut other = small();
    let only = ImatrixEntry { sums: vec![9.0], counts: vec![1.0] };
    other.entries.insert("output.weight".into(), only.clone());
    merged.merge(&other).unwrap();
    assert_eq!(merged.entries["blk.0.ffn_up.weight"].sums, [2.0, 6.0]);
    assert_eq!(merged.entries["blk.0.ffn_up_exps.weight"].counts, [0.0, 5.0]);
    assert_eq!(merged.entries["output.weight"], only);
    assert_eq!((merged.chunks, merged.datasets.len()), (14, 4));

    let other = Imatrix { entries: [("blk.0.ffn_up.weight".into(), only)].into(), ..small() };
    let error = merged.merge(&other).unwrap_err().to_string();
    assert_eq!(error, "tensor blk.0.ffn_up.weight: it has 2 columns in one file and 1 in the other");
    let error = merged.merge(&read(dat()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("does not state the number of tokens"), "{error}");
}

#[test]
fn importance_is_that_of_a_tensor_with_these_columns() {
    let imatrix = small();
    let importance = |name: &str, shape: &[usize]| imatrix.importance(&format!("blk.0.{name}.weight"), shape);
    assert_eq!(importance("ffn_up", &[9, 2]).unwrap(), Some(vec![0.5, 1.5]));
    assert_eq!(importance("ffn_down", &[9, 2]).unwrap(), None);
    assert_eq!(
        importance("ffn_up", &[2, 9]).unwrap_err().to_string(),
        "tensor blk.0.ffn_up.weight: it has 9 columns, but 2 in the importance matrix, which belongs to another model"
    );
    assert!(importance("ffn_up_exps", &[9, 3]).unwrap_err().to_string().contains("3 in 2 matrices"));
    // A column that no input reached says nothing.
    let silent = ImatrixEntry { sums: vec![0.0; 2], counts: vec![4.0] };
    let silent = Imatrix { entries: [("w".to_string(), silent)].into(), ..small() };
    assert_eq!(silent.importance("w", &[1, 2]).unwrap(), None);
}

#[test]
fn the_older_format_is_read() {
    let imatrix = read(dat()).unwrap();
    assert_eq!(imatrix.entries["a.w"], ImatrixEntry { sums: vec![1.5, 2.5], counts: vec![2.0] });
    assert_eq!((imatrix.chunks, &*imatrix.datasets), (2, &["text".to_string()][..]));
    // The oldest files end after the entries.
    let oldest = read(dat()[..27].to_vec()).unwrap();
    assert_eq!((oldest.entries, oldest.datasets.len()), (imatrix.entries, 0));
}

#[test]
fn damaged_files_are_refused() {
    let refused = |bytes: Vec<u8>| read(bytes).unwrap_err().to_string();
    // Without the padding after the last tensor, and except where files without the name of a dataset end.
    let gguf = written(&small());
    for (whole, complete) in [(&gguf, gguf.len() - 24), (&dat(), 27)] {
        for length in (0..whole.len()).filter(|&length| length < gguf.len() - 24 && length != complete) {
            assert!(read(whole[..length].to_vec()).is_err(), "{length} of {} bytes", whole.len());
        }
    }
    let dat_with = |at: usize, number: i32| {
        let mut bytes = dat();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        refused(bytes)
    };
    assert!(dat_with(0, 0).contains("it has no entries"));
    assert!(dat_with(0, -1).contains("a length of -1"));
    assert!(dat_with(4, i32::MAX).contains("2147483647 bytes needed"));
    assert!(dat_with(11, -5).contains("a length of -5"));
    assert!(dat_with(15, i32::MAX).contains("the file ends inside entry 1 of 1"));
    assert!(dat_with(19, f32::NAN.to_bits() as i32).contains("its sum 0 is NaN"));
    assert!(dat_with(23, (-1.0f32).to_bits() as i32).contains("its sum 1 is -1"));
    let mut bytes = dat();
    bytes[8] = 0xff;
    assert!(refused(bytes).contains("not UTF-8"));

    let wrong_count = ImatrixEntry { sums: vec![1.0; 4], counts: vec![f32::INFINITY] };
    let imatrix = Imatrix { entries: [("w".to_string(), wrong_count)].into(), ..small() };
    assert!(refused(written(&imatrix)).contains("its count 0 is inf"));
    assert!(refused(written(&Imatrix { entries: [].into(), ..small() })).contains("it has no entries"));
    let model = std::fs::read(file("gguf").with_file_name("../gguf/mixed-legacy.gguf")).unwrap();
    assert!(refused(model).contains("this is no usable importance matrix"));
}

#[test]
fn no_mutation_panics_or_gives_numbers_that_are_not_finite() {
    let mut rng = Rng::new(5);
    let mut accepted = 0;
    for whole in [written(&small()), dat()] {
        for _ in 0..4000 {
            let mut bytes = whole.clone();
            for _ in 0..=rng.next_u64() % 3 {
                let at = (rng.next_u64() % bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            let Ok(imatrix) = read(bytes) else { continue };
            accepted += 1;
            for (name, entry) in &imatrix.entries {
                assert!(entry.sums.iter().chain(&entry.counts).all(|v| v.is_finite() && *v >= 0.0));
                let importance = imatrix.importance(name, &[1, entry.columns()]);
                let Ok(Some(importance)) = importance else { continue };
                assert!(importance.iter().all(|w| w.is_finite() && *w >= 0.0), "{name}: {importance:?}");
            }
        }
    }
    assert!(accepted > 100, "{accepted}: the mutations are too coarse to test anything");
}
