//! Models split over several files.
#![allow(clippy::unwrap_used)] // in helpers of tests

use std::path::{Path, PathBuf};

use akunu_format::{DType, Gguf, GgufWriter, Metadata, Region, TensorSpec, Value};

/// Writes part `number` (from 1) with one tensor of two numbers.
fn part(folder: &Path, number: u16, count: u16, change: impl FnOnce(&mut Metadata)) -> PathBuf {
    let mut metadata = Metadata::default();
    if number == 1 {
        metadata.insert("general.architecture", Value::String("llama".into()));
    }
    metadata.insert("split.no", Value::U16(number - 1));
    metadata.insert("split.count", Value::U16(count));
    metadata.insert("split.tensors.count", Value::I32(i32::from(count)));
    change(&mut metadata);
    let specs = vec![TensorSpec::new(format!("blk.{number}.x"), DType::F32, [2])];
    let mut writer = GgufWriter::new(Vec::new(), &metadata, specs).unwrap();
    writer.tensor(|out| out.write_all(&[number as u8; 8])).unwrap();
    let path = folder.join(format!("tiny-{number:05}-of-{count:05}.gguf"));
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    path
}

#[test]
fn any_part_opens_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let parts: Vec<_> = (1..=3).map(|number| part(folder.path(), number, 3, |_| {})).collect();
    for path in &parts {
        let gguf = Gguf::open(path).unwrap();
        let names: Vec<_> = gguf.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["blk.1.x", "blk.2.x", "blk.3.x"]);
        assert_eq!(gguf.regions().len(), 3);
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
        for (i, tensor) in gguf.tensors().iter().enumerate() {
            assert_eq!(gguf.tensor_bytes(tensor), [i as u8 + 1; 8]);
        }
    }
}

#[track_caller]
fn refused(path: &Path, expected: &str) {
    let error = Gguf::open(path).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_missing_part_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let first = part(folder.path(), 1, 3, |_| {});
    part(folder.path(), 3, 3, |_| {});
    refused(&first, "split model: part 2 of 3 is missing: put ");
    refused(&first, "tiny-00002-of-00003.gguf beside the others");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = part(folder.path(), 1, 2, |_| {});
    let second = part(folder.path(), 2, 2, |metadata| {
        metadata.insert("split.no", Value::U16(7));
    });
    refused(
        &first,
        "tiny-00002-of-00002.gguf: split model: its file name says part 2, but `split.no` says 8",
    );
    part(folder.path(), 2, 2, |metadata| {
        metadata.insert("split.count", Value::U16(5));
    });
    refused(&first, "split model: `split.count` is 5, but the file name says 2");
    refused(&second, "rename it to NAME-00001-of-00005.gguf");
    part(folder.path(), 2, 2, |_| {});
    let first = part(folder.path(), 1, 2, |metadata| {
        metadata.insert("split.tensors.count", Value::I32(9));
    });
    refused(&first, "split model: `split.tensors.count` is 9, but the 2 parts have 2");
}

#[test]
fn a_renamed_part_says_what_it_should_be_called() {
    let folder = tempfile::tempdir().unwrap();
    let first = part(folder.path(), 1, 2, |_| {});
    let renamed = folder.path().join("model.gguf");
    std::fs::rename(first, &renamed).unwrap();
    refused(
        &renamed,
        "this is one part of 2, and the others are found by name: rename it to NAME-00001-of-00002.gguf",
    );
    let bytes = std::fs::read(&renamed).unwrap();
    let error = Gguf::from_region(Region::from_vec(bytes)).unwrap_err().to_string();
    assert_eq!(error, "split model: this is one part of a model split into 2; merge the parts first");
}

#[test]
fn the_same_tensor_in_two_parts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = part(folder.path(), 1, 2, |_| {});
    let second = part(folder.path(), 2, 2, |_| {});
    let mut bytes = std::fs::read(&second).unwrap();
    let at = bytes.windows(7).position(|window| window == b"blk.2.x").unwrap();
    bytes[at + 4] = b'1';
    std::fs::write(&second, bytes).unwrap();
    refused(&first, "tensor blk.1.x: it occurs twice");
}
