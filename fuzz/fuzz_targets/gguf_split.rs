//! Arbitrary bytes as the two parts of a split GGUF file (the first two bytes give the length of the first part): the
//! result is an error, or the same model whichever part is given.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use akunu_format::{Gguf, Loading};
use libfuzzer_sys::fuzz_target;

static PARTS: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("akunu-split-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the parts");
    [1, 2].map(|part| folder.join(format!("m-0000{part}-of-00002.gguf")))
});

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return };
    let (first, second) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    for (path, bytes) in PARTS.iter().zip([first, second]) {
        std::fs::write(path, bytes).expect("a part is written");
    }
    let [first, second] = &*PARTS;
    let loading = Loading::Read { available: || None };
    let (opened, other) = (Gguf::load(first, loading), Gguf::load(second, loading));
    let Ok(gguf) = opened else { return };
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor_bytes(tensor).len(), tensor.bytes);
        assert!(gguf.tensor(&tensor.name).is_some());
    }
    if gguf.regions().len() == 2 {
        let other = other.expect("the second part opens the model if the first does");
        assert_eq!(gguf.tensors(), other.tensors());
        assert_eq!(gguf.metadata().len(), other.metadata().len());
    }
});
