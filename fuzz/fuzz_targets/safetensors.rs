//! Arbitrary bytes as a configuration and a SafeTensors file (the first two bytes give the length of the former).
#![no_main]

use akunu_arch::{SafeTensorsModel, WeightProvider};
use akunu_format::Region;
use libfuzzer_sys::fuzz_target;

/// A valid configuration, for inputs that are only a SafeTensors file.
const CONFIG: &str =
    r#"{"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2}"#;

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return };
    let (config, file) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let config = std::str::from_utf8(config).ok().filter(|config| !config.is_empty()).unwrap_or(CONFIG);
    let Ok(model) = SafeTensorsModel::from_region(Region::from_vec(file.to_vec()), config) else { return };
    for tensor in model.tensors() {
        assert_eq!(model.tensor_bytes(tensor).len(), tensor.bytes);
        assert_eq!(model.plane_bytes(tensor).map(<[u8]>::len).iter().sum::<usize>(), tensor.stored_bytes());
        assert!(model.tensor(&tensor.name).is_some());
    }
});
