//! Arbitrary bytes as a GGUF file: the result is an error, or a container whose parts can all be read.
#![no_main]

use akunu_arch::GgufModel;
use akunu_format::gguf::Listing;
use akunu_format::{Gguf, Region};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let region = Region::from_vec(data.to_vec());
    let listing = Listing::from_region(&region);
    let Ok(gguf) = Gguf::from_region(region) else { return };
    // Every container can be listed, with the same tensors.
    let listed = listing.iter().flat_map(|listing| &listing.tensors).map(|tensor| &tensor.name);
    assert!(listing.is_ok() && listed.eq(gguf.tensors().iter().map(|tensor| &tensor.name)));
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor_bytes(tensor).len(), tensor.bytes);
        assert!(gguf.tensor(&tensor.name).is_some());
        assert!(tensor.rows().checked_mul(tensor.cols()).is_some());
    }
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        assert!(metadata.get(key).is_some());
        let _ = format!("{value:?}");
        let _ = (metadata.u32(key), metadata.f32s(key), metadata.i32s(key));
        if let Ok(Some(strings)) = metadata.strings(key) {
            assert!(strings.iter().map(str::len).sum::<usize>() <= data.len());
        }
    }
    let _ = GgufModel::from_gguf(gguf);
});
